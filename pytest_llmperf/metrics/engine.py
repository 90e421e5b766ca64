"""What the engine states of itself while a load ran, as metrics. An absent source is "not measured", never 0.

Its counters and histograms only grow, so a window is the difference of two pages: of the last one at or before its
start and the first one at or after its end, where there are such. What the difference spans is said with the value.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

from pytest_llmperf.catalog import Metric, metric
from pytest_llmperf.records import Trial
from pytest_llmperf.samples import COUNTERS, Buckets, EngineSample, Quantity
from pytest_llmperf.stats.quantile import quantile
from pytest_llmperf.stats.value import MetricValue
from pytest_llmperf.units import format_quantity

__all__ = [
    "ENGINE_FAMILIES",
    "Growth",
    "bucket_quantile",
    "engine_latency",
    "engine_values",
    "falls",
    "growth",
    "mean_growth",
]

ENGINE_FAMILIES: Final[dict[str, Quantity]] = {"queue_wait": "queue_wait", "prefill_time": "prefill_time"}
"""Latency families that only the engine can state → its histogram."""

_SEVERAL: Final = 2
SEVERAL_SERVERS: Final = (
    "the engine's counters go up and down: several servers answer at this address, one after the other"
)
_RATES_APART: Final = 0.05


@dataclass(frozen=True, slots=True)
class Growth:
    """How much counters grew over ``seconds``."""

    by: dict[Quantity, float]
    seconds: float


def falls(samples: Iterable[EngineSample]) -> int:
    """How often a counter or histogram was lower than on the page before: a restart, or another server."""

    def fell(before: EngineSample, after: EngineSample) -> bool:
        numbers = [(before.values[q], after.values[q]) for q in before.values.keys() & after.values.keys() & COUNTERS]
        both = before.histograms.keys() & after.histograms.keys()
        numbers += [(before.histograms[q].count, after.histograms[q].count) for q in both]
        return any(later < earlier for earlier, later in numbers)

    return sum(fell(*pair) for pair in pairwise(samples))


def growth(trial: Trial, quantities: Sequence[Quantity], *, whole: bool = False) -> Growth | None:
    """Growth of ``quantities`` around the window, or over the ``whole`` load. After a fall a counter began at 0.

    None where fewer than two pages state all of them, or the pages are of several servers.
    """
    told = [s for s in trial.telemetry.engine if all(quantity in s.values for quantity in quantities)]
    used = told if whole else _around(trial, told)
    if len(used) < 2 or _several(trial):
        return None
    by = {
        quantity: sum(_rise(before.values[quantity], after.values[quantity]) for before, after in pairwise(used))
        for quantity in quantities
    }
    return Growth(by, (used[-1].t_ns - used[0].t_ns) / 1e9)


def mean_growth(trial: Trial, name: Quantity) -> float | None:
    """Mean in seconds of what a histogram observed over the whole load; None where it is not told."""
    found = _histogram(trial, name, whole=True)
    return found[0].total / found[0].count if found and found[0].count > 0 else None


def engine_values(trials: Sequence[Trial], hit_rate: MetricValue) -> dict[str, MetricValue]:
    """KV cache, preemptions, prefix cache and speculative decoding. ``hit_rate`` is what the requests' own usage says.

    Replays are pooled: samples together, ratios of summed counts, preemptions per load.
    """
    return {
        "kv_usage_p95": _kv_usage(trials),
        "kv_capacity_tokens": _capacity(trials),
        "preemptions": _preemptions(trials),
        "prefix_hit_rate": _hit_rate(trials, hit_rate),
        "acceptance_length": _acceptance(trials),
    }


def engine_latency(which: Metric, trials: Sequence[Trial]) -> MetricValue:
    """Mean (exact: sum / count) or percentile (interpolated in the buckets) of one of ``ENGINE_FAMILIES``."""
    name = ENGINE_FAMILIES[which.family.name]
    grown = [found for trial in trials if (found := _histogram(trial, name))]
    pooled = _pooled([histogram for histogram, _ in grown])
    if pooled is None:
        return _absent(which, trials, any(name in s.histograms for t in trials for s in t.telemetry.engine))
    count = round(pooled.count)
    if count < 1:
        return MetricValue(which, None, 0, "the engine finished no request between its pages")
    note = _span(math.fsum(seconds for _, seconds in grown), trials)
    if which.quantile is None:
        return MetricValue(which, pooled.total / pooled.count, count, note)
    value, limit = bucket_quantile(pooled, which.quantile)
    if value is None:
        return MetricValue(which, None, count, f"not known from the engine's buckets: {limit}")
    return MetricValue(which, value, count, f"from buckets; {note}")


def bucket_quantile(buckets: Buckets, q: float) -> tuple[float | None, str]:
    """The ``q``-quantile as Prometheus' ``histogram_quantile`` has it, linear within its bucket, and where it lies.

    None where it lies in the lowest bucket or the infinite one: these say nothing but a bound.
    """
    if len(buckets.bounds) < 2:
        return None, "it states none, or they changed"
    rank = q * buckets.count
    below, lower = 0.0, None
    for bound, cumulative in zip(buckets.bounds, buckets.counts, strict=True):
        if cumulative >= rank and math.isfinite(bound):
            if lower is None:
                return None, f"at most {format_quantity(bound, 's')}, its lowest bucket"
            share = (rank - below) / (cumulative - below) if cumulative > below else 1.0
            return lower + (bound - lower) * share, ""
        if math.isfinite(bound):
            below, lower = max(below, cumulative), bound
    return None, "more than its highest bound" if lower is None else f"more than {format_quantity(lower, 's')}"


def _around(trial: Trial, samples: Sequence[EngineSample]) -> Sequence[EngineSample]:
    """From the last at or before the start of the window to the first at or after its end."""
    before = [at for at, sample in enumerate(samples) if sample.t_ns <= trial.window.start_ns]
    after = [at for at, sample in enumerate(samples) if sample.t_ns >= trial.window.end_ns]
    return samples[max(before, default=0) : min(after, default=len(samples)) + 1]


def _several(trial: Trial) -> bool:
    return falls(trial.telemetry.engine) >= _SEVERAL


def _rise(before: float, after: float) -> float:
    return after - before if after >= before else after


def _histogram(trial: Trial, name: Quantity, *, whole: bool = False) -> tuple[Buckets, float] | None:
    """What was added to a histogram around the window, and over how many seconds."""
    told = [sample for sample in trial.telemetry.engine if name in sample.histograms]
    used = told if whole else _around(trial, told)
    if len(used) < 2 or _several(trial):
        return None
    steps = [_step(a.histograms[name], b.histograms[name]) for a, b in pairwise(used)]
    pooled = _pooled(steps)
    return None if pooled is None else (pooled, (used[-1].t_ns - used[0].t_ns) / 1e9)


def _step(before: Buckets, after: Buckets) -> Buckets:
    if after.count < before.count:  # restarted
        return after
    same = before.bounds == after.bounds
    counts = tuple(b - a for a, b in zip(before.counts, after.counts, strict=True)) if same else ()
    return Buckets(after.count - before.count, after.total - before.total, after.bounds if same else (), counts)


def _pooled(parts: Sequence[Buckets]) -> Buckets | None:
    """The sum; without buckets where their bounds differ."""
    if not parts:
        return None
    bounds = parts[0].bounds if len({part.bounds for part in parts}) == 1 else ()
    counts = tuple(map(sum, zip(*(part.counts for part in parts), strict=True))) if bounds else ()
    return Buckets(sum(part.count for part in parts), math.fsum(part.total for part in parts), bounds, counts)


def _kv_usage(trials: Sequence[Trial]) -> MetricValue:
    which = metric("kv_usage_p95")
    inside = [
        sample.values["kv_usage"]
        for trial in trials
        for sample in trial.telemetry.engine
        if "kv_usage" in sample.values and trial.window.start_ns <= sample.t_ns <= trial.window.end_ns
    ]
    if not inside:
        told = any("kv_usage" in sample.values for trial in trials for sample in trial.telemetry.engine)
        return _absent(which, trials, told, "none of the engine's pages fell into the window: make the load longer")
    return MetricValue(which, quantile(sorted(inside), 0.95), len(inside), _left_out(trials, "kv_usage"))


def _capacity(trials: Sequence[Trial]) -> MetricValue:
    which = metric("kv_capacity_tokens")
    told = [[n for s in t.telemetry.engine if (n := s.values.get("kv_capacity_tokens"))] for t in trials]
    last = [values[-1] for values in told if values]
    return MetricValue(which, sum(last) / len(last), len(last)) if last else _absent(which, trials, False)


def _preemptions(trials: Sequence[Trial]) -> MetricValue:
    """By the counter over the whole load; where it has none, by the lines of the log. Per load."""
    name: Quantity = "preemptions"
    which = metric(name)
    counted = [grown.by[name] for t in trials if (grown := growth(t, [name], whole=True))]
    logged = [float(n) for trial in trials if (n := trial.telemetry.preemption_warnings) is not None]
    found, source = (counted, None) if counted else (logged, "lines of the server's log that say so")
    if not found:
        return _absent(which, trials, any(name in s.values for t in trials for s in t.telemetry.engine))
    mean = f"mean of {len(found)} loads" if len(found) > 1 else None
    missing = f"not known of {len(trials) - len(found)} of {len(trials)} loads" if len(found) < len(trials) else None
    return MetricValue(
        which, sum(found) / len(found), len(found), "; ".join(filter(None, (source, mean, missing))) or None
    )


def _hit_rate(trials: Sequence[Trial], usage: MetricValue) -> MetricValue:
    """The requests' own usage where it tells of all of them, else the engine's counters."""
    found = _ratio(trials, "prefix_hits", "prefix_queries")
    if found is None:
        return usage
    rate, looked_up, seconds = found
    if rate > 1:  # counted at different times: one when a request begins, the other when it ends
        return usage
    if usage.value is None or usage.untold:
        note = f"by the engine's counters; {_span(seconds, trials)}"
        return MetricValue(usage.metric, rate, round(looked_up), note)
    if abs(rate - usage.value) <= _RATES_APART:
        return usage
    apart = f"by the requests' usage; the engine's counters say {rate:.3g}, {_span(seconds, trials)}"
    return replace(usage, note="; ".join(filter(None, (usage.note, apart))))


def _acceptance(trials: Sequence[Trial]) -> MetricValue:
    """1 + accepted / verification steps: the target model adds a token of its own to the accepted ones.

    Of an engine that counts no accepted tokens it is the mean of the length that its pages within the window state.
    """
    which = metric("acceptance_length")
    found = _ratio(trials, "accepted_tokens", "drafts")
    if found is not None:
        ratio, drafts, seconds = found
        return MetricValue(which, 1 + ratio, round(drafts), _span(seconds, trials))
    stated = [
        length
        for trial in trials
        for sample in trial.telemetry.engine
        if (length := sample.values.get("acceptance_length", 0)) > 0  # 0 until it has verified some
        and trial.window.start_ns <= sample.t_ns <= trial.window.end_ns
    ]
    if stated:
        return MetricValue(which, math.fsum(stated) / len(stated), len(stated), "mean of what its pages state")
    told = any("drafts" in sample.values for trial in trials for sample in trial.telemetry.engine)
    verified = any(grown.by["drafts"] > 0 for trial in trials if (grown := growth(trial, ["drafts"])))
    if verified:
        return _absent(which, trials, told, "drafts were verified, but how many were accepted is not stated")
    return _absent(which, trials, told, "no draft was verified: it does not decode speculatively")


def _ratio(trials: Sequence[Trial], over: Quantity, under: Quantity) -> tuple[float, float, float] | None:
    """Ratio of two counters' growth, the lower one, and the seconds; None where the lower one did not grow."""
    grown = [found for trial in trials if (found := growth(trial, [over, under]))]
    below = sum(found.by[under] for found in grown)
    if below <= 0:
        return None
    return sum(found.by[over] for found in grown) / below, below, sum(found.seconds for found in grown)


def _span(seconds: float, trials: Sequence[Trial]) -> str:
    window = sum(trial.window.seconds for trial in trials)
    return f"over {seconds:.3g} s around the window of {window:.3g} s"


def _left_out(trials: Sequence[Trial], quantity: Quantity) -> str | None:
    silent = sum(not any(quantity in sample.values for sample in trial.telemetry.engine) for trial in trials)
    return f"not known of {silent} of {len(trials)} loads" if silent else None


def _absent(
    which: Metric, trials: Sequence[Trial], told: bool, otherwise: str = "fewer than two pages of the engine's metrics"
) -> MetricValue:
    """No number, and why. ``told``: pages state it, and ``otherwise`` says why that is not enough."""
    pages = any(trial.telemetry.engine for trial in trials)
    if any(map(_several, trials)):
        why = SEVERAL_SERVERS
    elif told:
        why = otherwise
    elif pages:
        why = "the engine's metrics do not state it"
    else:
        notes = dict.fromkeys(note for t in trials for note in t.telemetry.notes if note.startswith("the engine's"))
        why = "; ".join(("no metrics of the engine were read", *notes))
    return MetricValue(which, None, 0, why)
