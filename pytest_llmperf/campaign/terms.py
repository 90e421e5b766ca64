"""How the tests of a run are compared, as options and configuration say it; and what each test's gate is then told."""

from __future__ import annotations

import datetime
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Literal

from pytest_llmperf.engines.redact import HIDDEN, redact, secret_name
from pytest_llmperf.plan import Plan
from pytest_llmperf.settings.model import Accept, Budget
from pytest_llmperf.stats.family import default_family, gate_row
from pytest_llmperf.stats.launches import GateConfig, Tolerance
from pytest_llmperf.variables import Arms

__all__ = ["Mode", "Terms", "gate_config", "mode_of", "without_secret"]

Mode = Literal["sla", "stored", "interleaved", "screened", "targeted", "pair", "refresh"]


@dataclass(frozen=True, slots=True)
class Terms:
    """What the user asked of comparisons."""

    against: str = "latest"
    """``latest``, ``none`` or ``version=X``."""
    explicit: bool = False
    """``against`` was written, so a test without a baseline has one missing."""
    ab: str | None = None
    """``key=value``: the one change of a job of launches side by side."""
    allow: tuple[str, ...] = ()
    budget: Budget | None = None
    refresh: bool = False
    replace: bool = False
    force: bool = False
    reason: str = ""
    given: str = ""
    """The options by which this run chose its server and its store, for commands that repeat it; without secrets."""
    noise_blocks: int | None = None
    """A/A: both arms are the same, and this many blocks are run to learn how this runner varies."""
    pool: str | None = None
    accepted: tuple[Accept, ...] = field(default_factory=tuple)
    prices: Mapping[str, float] = field(default_factory=dict)
    """GPU as NVML names it → USD per hour of one."""

    def budget_s(self, gpus: int) -> float | None:
        """Wall-clock seconds that a campaign on so many GPUs may take."""
        if self.budget is None or self.budget.gpu_hours is None:
            return None if self.budget is None else self.budget.seconds
        return 3600 * self.budget.gpu_hours / max(1, gpus)

    @property
    def argument(self) -> str:
        """The option that the arms come from, as it was written but for secrets."""
        if self.ab is not None:
            return f"--llmperf-ab {shlex.quote(without_secret(self.ab))}"
        return f"--llmperf-against {shlex.quote(self.against)}"


def without_secret(assignment: str) -> str:
    """``key=value`` of an option for a person and for files: the value hidden where ``key`` names a secret."""
    key, equals, value = (part.strip() for part in assignment.partition("="))
    outer, _, inner = key.partition(".")
    hidden = outer == "env" and secret_name(inner, value)
    return redact([f"{key}{equals}{HIDDEN if hidden else value}"])[0]


def mode_of(plans: Sequence[Plan], terms: Terms, arms: Arms | None, stored: bool) -> Mode:
    """The mode of a campaign; ``stored``: the store has an entry for one of its tests."""
    targeted = plans[0].server.targeted
    if terms.refresh:
        return "refresh"
    if terms.ab is not None or terms.noise_blocks is not None:
        return "pair" if targeted and terms.ab is not None else "interleaved"
    if terms.against == "none":
        return "sla"
    if targeted:
        return "targeted"
    if arms is not None:
        return "screened"
    asked = terms.explicit or any(plan.regression is not None for plan in plans)
    return "stored" if asked or stored else "sla"


def gate_config(
    plan: Plan, *, cpu: bool, ok_requests: int, accepted: Sequence[Accept], today: datetime.date, max_blocks: int = 8
) -> tuple[GateConfig, tuple[str, ...]]:
    """What the gate of one test judges, and notes on it.

    The family is the default one with what the marker adds, or the marker's own. An accepted trade is a wider
    tolerance of its metric until it expires, never a narrower one: the rest of the family is judged as ever.
    """
    asked = plan.regression
    family = default_family(cpu_engine=cpu, ok_requests=ok_requests)
    if asked is not None:
        family = asked.metrics or tuple(dict.fromkeys((*family, *asked.tolerances)))
    tolerances = {}
    for name, each in asked.tolerances.items() if asked is not None else ():
        tolerances[name] = Tolerance.between(each.floor, each.limit)
    notes = []
    for trade in accepted:
        if not _is_of(trade.test, plan.nodeid):
            continue
        said = f"{trade.metric} up to {100 * trade.up_to:,.6g} % worse, approved by {trade.approved_by}: {trade.reason}"
        if trade.metric not in family:
            notes.append(f"an accepted trade has no use, since this test does not gate {trade.metric}: {said}")
            continue
        if today > trade.until:
            notes.append(f"an accepted trade has expired on {trade.until} and counts no more: {said}")
            continue
        tolerances[trade.metric] = _wider(trade.metric, tolerances.get(trade.metric), trade.up_to)
        notes.append(f"accepted until {trade.until}: {said}")
    return GateConfig(family, tolerances, max_blocks), tuple(notes)


def _wider(name: str, asked: Tolerance | None, accepted: float) -> Tolerance:
    row, trade = gate_row(name), Tolerance.between(accepted, 2 * accepted)
    usual = asked or (row.tolerance if row is not None else trade)
    return Tolerance(max(usual.floor, trade.floor), max(usual.limit, trade.limit))


def _is_of(test: str, nodeid: str) -> bool:
    """Whether ``test`` is the node id, its part after the last ``/``, or a pattern of it."""
    return test in (nodeid, nodeid.rpartition("/")[2]) or fnmatchcase(nodeid, test)
