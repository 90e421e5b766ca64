"""A new session of a baseline from a candidate's launches: refused where they cannot be one, shown beside the old."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Final

from pytest_llmperf.baseline.keys import Key
from pytest_llmperf.baseline.refresh import Row, old_and_new, two_modes
from pytest_llmperf.baseline.samples import LaunchSamples, samples_of
from pytest_llmperf.campaign.case import Case
from pytest_llmperf.campaign.memory import Memory
from pytest_llmperf.campaign.terms import Terms
from pytest_llmperf.catalog import metric
from pytest_llmperf.checks import check_expectation
from pytest_llmperf.errors import UsageError
from pytest_llmperf.measured import metrics_of
from pytest_llmperf.stats.family import default_family
from pytest_llmperf.units import format_quantity

__all__ = ["refresh"]

SHOWN: Final = (*default_family(cpu_engine=True, ok_requests=1_000_000), "e2e_p50", "time_to_ready")
"""What the gate of either kind of engine usually judges, and what a person asks for next."""


def refresh(memory: Memory, case: Case, terms: Terms) -> tuple[str, ...]:
    """Store the launches of ``case``; gives old and new in words.

    Raises UsageError where launches are not valid, or look like two kinds of launch, unless ``terms.force``; errors of
    the store besides.
    """
    identity, nodeid = case.identities["candidate"], case.plan.nodeid
    before = memory.entry(identity, nodeid)
    session = memory.new_session(case, terms.reason)
    doubts = list(dict.fromkeys(case.faults)) if case.exhausted or case.suspects else []
    if not session.launches:
        raise UsageError(f"{nodeid}: no launch is fit for a baseline: {'; '.join(doubts) or 'none ran'}")
    kept = () if before is None or terms.replace else before.sessions
    doubts += two_modes((*kept, session))
    measured = metrics_of(case.plan, case.trials["candidate"], case.starts["candidate"])
    checks = [check_expectation(each, measured.get(each.metric)) for each in case.plan.expects]
    doubts += [check.reason for check in checks if check.verdict != "PASS"]
    if doubts and not terms.force:
        raise UsageError(
            f"{nodeid}: the baseline is not refreshed: {'; '.join(doubts)}; find out why, or store it with "
            "--llmperf-force"
        )
    memory.store.append(
        Key.of(identity, nodeid),
        identity,
        session,
        samples=_samples(case),
        definitions={name: metric(name).definition for name in session.launches[0].metrics},
        replace=terms.replace,
    )
    rows = [_line(row) for row in old_and_new(before, session) if row.metric in SHOWN and row.before]
    if rows:
        rows.append(f"all: pytest-llmperf baseline diff {shlex.quote(nodeid)}")
    sessions = min(6, len(kept) + 1)
    said = [f"baseline of {nodeid} refreshed: {len(session.launches)} launches, {sessions} session(s) stored"]
    if sessions == 1:
        said.append("one session is all there is: refresh on two other days, so that small changes can be acquitted")
    return (*said, *(f"  {row}" for row in rows), *(f"  stored in spite of: {doubt}" for doubt in doubts))


def _samples(case: Case) -> Sequence[LaunchSamples]:
    found = []
    trials = case.trials["candidate"]
    launches = list(dict.fromkeys(trial.launch for trial in trials))
    for launch, values in zip(launches, case.values["candidate"], strict=True):
        measured = metrics_of(case.plan, [trial for trial in trials if trial.launch == launch], ())
        found.append(samples_of(values.order, measured.values()))
    return found


def _line(row: Row) -> str:
    def shown(value: float | None) -> str:
        return "no finite value" if value is None else format_quantity(value, row.unit)

    change = "" if row.change is None else f" ({100 * row.change:+,.1f} %)"
    return f"{row.metric}: {shown(row.before)} → {shown(row.after)}{change}"
