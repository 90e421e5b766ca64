"""What the server's own words say about a trial: its counters, its log. Evidence that no request shows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from pytest_llmperf.metrics.engine import SEVERAL_SERVERS
from pytest_llmperf.metrics.facts import LoadFacts
from pytest_llmperf.metrics.growth import falls, growth, mean_growth, pages_of
from pytest_llmperf.records import Outcome, Phase, RequestRecord, Trial
from pytest_llmperf.units import format_quantity

__all__ = ["Observed", "observed"]

FOREIGN: Final = 0.02
FOREIGN_REQUESTS: Final = 3
FOREIGN_TOKENS: Final = 0.05
"""What another client's share must exceed, of ours; prompts of requests that failed are estimated."""
CACHED: Final = 0.01
"""Share of the prompt tokens beyond what all requests have in common by their template."""
_ALIKE: Final = 1
_ALIKE_AT_MOST: Final = 8
"""Tokens that prompts may have in common by chance: of any two, and of one with all before it (its first two words)."""
_TTFT_APART: Final = 2.0
_TTFT_FLOOR_S: Final = 0.05


@dataclass(frozen=True, slots=True)
class Observed:
    """``reasons`` make the trial INVALID."""

    reasons: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def observed(trial: Trial, facts: LoadFacts) -> Observed:
    """Restarts, other clients, hits in the prefix cache that the load did not ask for, errors in the log."""
    fell = falls(pages_of(trial))
    reasons, notes = _cached(trial, facts)
    if fell == 1 or (fell and not facts.targeted):  # the server that we started is the only one at its address
        reasons.append("the engine's counters fell while the load ran: the server was restarted; run it again")
    elif fell:
        notes.append(SEVERAL_SERVERS)
    else:
        foreign, perhaps = _others(trial)
        reasons += foreign
        notes += perhaps
    errors = trial.telemetry.log_errors
    if errors:
        others = "" if len(errors) == 1 else f" (the first of {len(errors)} or more)"
        notes.append(f"the server's log reports an error while the load ran: {errors[0]}{others}")
    return Observed(tuple(reasons), (*notes, *_between(trial)))


def _others(trial: Trial) -> tuple[list[str], list[str]]:
    """Another client: the server counts more requests, or more prompt tokens, than we sent.

    What ran or waited on the first page was sent before the load and may finish in it.
    """
    sent = [record for record in trial.records if record.sent_ns is not None]
    ours = len(sent) + trial.client.retried
    pages = pages_of(trial)
    first = pages[0].values if pages else {}
    earlier = first.get("running", 0.0) + first.get("waiting", 0.0)
    grown = growth(trial, ["requests"], whole=True)
    if grown is not None:
        more = grown.by["requests"] - ours - earlier
        said = f"the server finished {grown.by['requests']:,.0f} requests while we sent {ours:,}"
        if more > max(FOREIGN_REQUESTS, FOREIGN * ours):
            return [f"another client used the server: {said}; keep it to this test"], []
        if more > 0:
            return [], [f"{said}: another client may have used it"]
    known = [record.prompt_tokens for record in sent if record.prompt_tokens is not None]
    grown = growth(trial, ["prompt_tokens"], whole=True)
    if grown is None or not known:
        return [], []
    # A request that failed or was cut has no usage: as long as the longest, at most.
    tokens = sum(known) + (len(sent) - len(known) + trial.client.retried + earlier) * max(known)
    if grown.by["prompt_tokens"] <= (1 + FOREIGN_TOKENS) * tokens:
        return [], []
    said = f"the server read {grown.by['prompt_tokens']:,.0f} prompt tokens while we sent {tokens:,.0f}"
    return [f"another client used the server: {said}; keep it to this test"], []


def _cached(trial: Trial, facts: LoadFacts) -> tuple[list[str], list[str]]:
    """Reasons and notes where the prefix cache served what no request was meant to share: too good to be true.

    A data set's texts may share what they like: a note. So may requests that were preempted: some engines let them
    find their own beginning again, and count it.
    """
    if facts.shared_prefix:
        return [], []
    ok = [r for r in trial.records if r.phase is Phase.MEASURED and r.outcome is Outcome.OK]
    known = [r.cached_tokens for r in ok if r.cached_tokens is not None and r.prompt_tokens]
    # Some servers leave a count of 0 out: the prompts of all are what the hits are a share of.
    cached, prompts = float(sum(known)), float(sum(r.prompt_tokens or 0 for r in ok))
    requests, source = len(known), ""
    counted = growth(trial, ["prefix_hits", "prefix_queries"], whole=True)
    # Without usage nobody knows how long the template is, that all requests have in common.
    if len(known) < len(ok) and counted is not None and prompts:
        cached, prompts = counted.by["prefix_hits"], counted.by["prefix_queries"]
        requests = sum(record.sent_ns is not None for record in trial.records)
        source = ", by the engine's counters"
    least, most = (cached - requests * (facts.template_tokens + alike) for alike in (_ALIKE_AT_MOST, _ALIKE))
    if prompts <= 0 or most <= CACHED * prompts:
        return [], []
    share = f"{100 * most / prompts:.1f} % of the prompt tokens came from the cache{source}"
    said = f"prefix cache hits in a load that promised none: {share}"
    again = growth(trial, ["preemptions"], whole=True)
    if facts.recorded or least <= CACHED * prompts or (source and again is not None and again.by["preemptions"]):
        return [], [said]
    return [f"{said}: empty the cache before the load, or turn it off (enable_prefix_caching = false)"], []


def _between(trial: Trial) -> list[str]:
    """A note where the first token takes much longer to us than to the engine: something lies between."""
    stated = mean_growth(trial, "ttft")
    ours = _first_outputs(trial.records)
    if stated is None or not ours:
        return []
    mean = math.fsum(ours) / len(ours)
    if mean <= max(_TTFT_APART * stated, stated + _TTFT_FLOOR_S):
        return []
    by_us, by_it = format_quantity(mean, "s"), format_quantity(stated, "s")
    return [
        f"the first output took {by_us} on average from the send, {by_it} by the engine: the rest lies between them"
    ]


def _first_outputs(records: Sequence[RequestRecord]) -> list[float]:
    return [
        (record.first_output_ns - record.sent_ns) / 1e9
        for record in records
        if record.outcome is Outcome.OK and record.first_output_ns is not None and record.sent_ns is not None
    ]
