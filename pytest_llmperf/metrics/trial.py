"""From trials to metrics: ``measure`` for what is asked, and the counts that every report shows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from pytest_llmperf.catalog import ENGINE_FAMILIES, FAMILIES, METRICS, metric
from pytest_llmperf.metrics.engine import engine_latency, engine_values
from pytest_llmperf.metrics.latency import Pool, latency_value, pool
from pytest_llmperf.metrics.rates import rate_values
from pytest_llmperf.metrics.reads import GAP_FAMILIES, gap_fault
from pytest_llmperf.metrics.request import e2e, tpot, ttft
from pytest_llmperf.metrics.resources import resource_values
from pytest_llmperf.records import Outcome, Phase, RequestRecord, TokenSource, Trial
from pytest_llmperf.stats.value import MetricValue

__all__ = ["MEASURED", "Counts", "InFlight", "MetricValue", "counts", "in_flight", "measure", "slowest"]

MEASURED: Final[tuple[str, ...]] = (
    *(name for name, entry in METRICS.items() if entry.family.name in FAMILIES),
    "output_throughput",
    "total_throughput",
    "request_throughput",
    "goodput",
    "goodput_share",
    "error_rate",
    "prefix_hit_rate",
    "kv_usage_p95",
    "kv_capacity_tokens",
    "preemptions",
    "acceptance_length",
    "peak_memory",
    "memory_growth",
    "cpu_seconds_per_mtok",
    "energy_per_mtok",
)
"""What ``measure`` has a source for; other percentiles of the families too."""


_OF_TOKENS: Final = frozenset(
    {"tpot", "itl", "output_throughput", "total_throughput", "cpu_seconds_per_mtok", "energy_per_mtok"}
)
"""Families that rest on how many tokens there were."""
RECOUNTED: Final = "tokenizer"
"""Their source where the server states no counts: a tokenizer's count of a whole text is another one."""


@dataclass(frozen=True, slots=True)
class Counts:
    """Requests of a trial by how they ended. attempted = ok + failed + cut; the warm-up is apart."""

    attempted: int
    ok: int
    failed: int
    cut: int
    warmup: int
    failures: dict[str, int]
    """Failure class → count, the most frequent first."""


@dataclass(frozen=True, slots=True)
class InFlight:
    """Requests sent and not yet over, inside the window."""

    mean: float
    """Weighted by time."""
    maximum: int
    lowest: int = 0
    """Below zero only if a request ended before it began, which is a fault of ours."""


def measure(
    trials: Sequence[Trial], slo: Mapping[str, float] | None, wanted: Iterable[str] = MEASURED
) -> dict[str, MetricValue]:
    """The ``wanted`` metrics over one trial, or over several pooled (replays of one launch, or all launches).

    Latencies are pooled request by request, rates are sums over the windows / their seconds, memory is the
    largest. A metric without a source here has value None and a note. Raises KeyError for a name that is no
    metric. What rests on gaps between chunks is invalid where the client could not tell chunks apart.
    """
    records = [record for trial in trials for record in trial.records]
    pools: dict[str, Pool] = {}
    scalars = rate_values(trials, slo) | resource_values(trials)
    scalars |= engine_values(trials, scalars["prefix_hit_rate"])
    found: dict[str, MetricValue] = {}
    for name in wanted:
        entry = metric(name)
        family = entry.family.name
        if family in ENGINE_FAMILIES:
            found[name] = engine_latency(entry, trials)
        elif family in FAMILIES:
            if family not in pools:
                pools[family] = pool(records, family)
            found[name] = latency_value(entry, pools[family])
        else:
            found[name] = scalars.get(name) or MetricValue(entry, None, 0, "nothing in this run measures it")
    if _mostly_recounted(records):
        on_tokens = not {"tpot", "itl"}.isdisjoint(slo or ())
        found = {n: _of_source(v, RECOUNTED) if _rests_on_tokens(n, on_tokens) else v for n, v in found.items()}
    fault = gap_fault(trial.client for trial in trials)
    if fault is None:
        return found
    on_gaps = not GAP_FAMILIES.isdisjoint(slo or ())
    return {name: _invalid(value, fault) if _rests_on_gaps(name, on_gaps) else value for name, value in found.items()}


def _mostly_recounted(records: Sequence[RequestRecord]) -> bool:
    ok = [record for record in records if record.outcome is Outcome.OK]
    return 2 * sum(record.token_source is TokenSource.TOKENIZER for record in ok) > len(ok)


def _rests_on_tokens(name: str, limits_on_tokens: bool) -> bool:
    return metric(name).family.name in _OF_TOKENS or (limits_on_tokens and name in ("goodput", "goodput_share"))


def _of_source(value: MetricValue, source: str) -> MetricValue:
    return replace(value, source="+".join(filter(None, (value.source, source))))


def _rests_on_gaps(name: str, limits_on_gaps: bool) -> bool:
    return metric(name).family.name in GAP_FAMILIES or (limits_on_gaps and name in ("goodput", "goodput_share"))


def _invalid(value: MetricValue, fault: str) -> MetricValue:
    """Without the number: one that looks fine would be believed. What was not measured anyway stays that."""
    if value.value is None and not value.values:
        return value
    return replace(value, value=None, values=None, invalid=fault)


def counts(trial: Trial) -> Counts:
    """Measured requests by outcome."""
    measured = [record for record in trial.records if record.phase is Phase.MEASURED]
    outcomes = Counter(record.outcome for record in measured)
    failures = {outcome.value: n for outcome, n in outcomes.most_common() if outcome not in (Outcome.OK, Outcome.CUT)}
    return Counts(
        attempted=len(measured),
        ok=outcomes[Outcome.OK],
        failed=sum(failures.values()),
        cut=outcomes[Outcome.CUT],
        warmup=len(trial.records) - len(measured),
        failures=failures,
    )


def in_flight(trial: Trial) -> InFlight:
    """Mean and maximum over the window, warm-up stragglers included.

    A request is over at its last known time.
    """
    start, end = trial.window.start_ns, trial.window.end_ns
    events: list[tuple[int, int]] = []
    overlap = 0
    for record in trial.records:
        if record.sent_ns is None:
            continue
        over = max(end_of(record) or record.sent_ns, record.sent_ns)
        low, high = max(record.sent_ns, start), min(over, end)
        if low < high:
            overlap += high - low
            events += [(low, 1), (high, -1)]
    level = peak = lowest = 0
    for _, step in sorted(events):  # at the same time the end (-1) sorts before the next start
        level += step
        peak, lowest = max(peak, level), min(lowest, level)
    return InFlight(overlap / (end - start) if end > start else 0.0, peak, lowest)


def mean_in_flight(records: Iterable[RequestRecord], start_ns: int, end_ns: int) -> float:
    """Requests between send and end, on average over [start_ns, end_ns]."""
    spans = [(r.sent_ns, end_of(r) or r.sent_ns) for r in records if r.sent_ns is not None]
    return sum(max(0, min(over, end_ns) - max(sent, start_ns)) for sent, over in spans) / (end_ns - start_ns)


def slowest(trials: Sequence[Trial], each: int = 5) -> tuple[RequestRecord, ...]:
    """The ``each`` slowest ok requests by TTFT, by TPOT and by E2E, and the first failure of every class."""
    measured = [record for trial in trials for record in trial.records if record.phase is Phase.MEASURED]
    ok = [record for record in measured if record.outcome is Outcome.OK]
    chosen: dict[int, RequestRecord] = {}
    for formula in (ttft, tpot, e2e):
        ranked = sorted(ok, key=lambda record: formula(record) or 0.0, reverse=True)
        chosen |= {id(record): record for record in ranked[:each] if formula(record) is not None}
    seen: set[Outcome] = set()
    for record in measured:
        if record.failed and record.outcome not in seen:
            seen.add(record.outcome)
            chosen[id(record)] = record
    return tuple(sorted(chosen.values(), key=lambda record: e2e(record) or float("inf"), reverse=True))


def end_of(record: RequestRecord) -> int | None:
    """The last time known of a request."""
    known = (
        record.closed_ns,
        record.last_output_ns,
        record.first_output_ns,
        record.first_byte_ns,
        record.sent_ns,
    )
    return max((stamp for stamp in known if stamp is not None), default=None)
