"""What the engine states of itself while a load ran, as metrics. An absent source is "not measured", never 0.

What the difference of two pages spans is said with the value.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from pytest_llmperf.catalog import ENGINE_FAMILIES, Metric, metric
from pytest_llmperf.metrics.coverage import LINES_S, PAGES_S, gap_in
from pytest_llmperf.metrics.growth import growth, histogram_growth, is_several, pages_of, pooled, unstated
from pytest_llmperf.records import Trial
from pytest_llmperf.samples import Buckets, Counter, EngineSample, Gauge, Quantity
from pytest_llmperf.stats.quantile import quantile
from pytest_llmperf.stats.value import MetricValue
from pytest_llmperf.units import format_bounds

__all__ = ["SEVERAL_SERVERS", "Bucketed", "bucket_quantile", "engine_latency", "engine_values"]

SEVERAL_SERVERS: Final = (
    "the engine's counters go up and down: several servers answer at this address, one after the other"
)
COUNTED: Final = "engine-counters"
LOGGED: Final = "log"
"""Sources of metrics that may come from elsewhere."""
_RATES_APART: Final = 0.05
_FEWEST: Final = 2
"""Bounds of a histogram that says anything of quantiles."""


@dataclass(frozen=True, slots=True)
class Bucketed:
    """A quantile that is known to lie above ``lower`` (in the lowest bucket, at 0: at or above it), and at or below
    ``upper``; None: nobody knows how far above."""

    value: float
    lower: float
    upper: float | None


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
    name = next(each for each in ENGINE_FAMILIES if each == which.family.name)
    grown = [found for trial in trials if (found := histogram_growth(trial, name))]
    added = pooled([histogram for histogram, _ in grown])
    if added is None or any(unstated(trial, name) for trial in trials):
        return _absent(which, trials, any(name in s.histograms for t in trials for s in t.telemetry.engine),
                       rests_on=(name,))  # fmt: skip
    count = round(added.count)
    if count < 1:
        return MetricValue(which, None, 0, "the engine finished no request between its pages")
    note = _span(math.fsum(seconds for _, seconds in grown), trials)
    if which.quantile is None:
        return MetricValue(which, added.total / added.count, count, note)
    lies = bucket_quantile(added, which.quantile)
    if lies is None:
        return MetricValue(which, None, count, "the engine's histogram has no buckets, or they changed")
    note = f"{format_bounds(lies.lower, lies.upper, which.unit)} by the engine's buckets; {note}"
    return MetricValue(which, lies.value, count, note, lower=lies.lower, upper=lies.upper)


def bucket_quantile(buckets: Buckets, q: float) -> Bucketed | None:
    """The ``q``-quantile as Prometheus' ``histogram_quantile`` has it: linear within its bucket, from 0 in the lowest
    one; the second highest bound where it lies above. None without buckets."""
    if len(buckets.bounds) < _FEWEST:
        return None
    rank = q * buckets.count
    below, lower = 0.0, 0.0
    for bound, cumulative in zip(buckets.bounds, buckets.counts, strict=True):
        if math.isinf(bound):
            break
        if cumulative >= rank:
            return Bucketed(lower + (bound - lower) * (rank - below) / (cumulative - below), lower, bound)
        below, lower = cumulative, bound
    return Bucketed(lower, lower, None)


def _kv_usage(trials: Sequence[Trial]) -> MetricValue:
    which = metric("kv_usage_p95")
    telling = [(t, s) for t in trials for s in t.telemetry.engine if "kv_usage" in s.values]
    logged = all(sample.logged for _, sample in telling)  # a page goes before the log
    inside = [
        sample.values["kv_usage"]
        for trial, sample in telling
        if sample.logged is logged and trial.window.start_ns <= sample.t_ns <= trial.window.end_ns
    ]
    if not inside:
        none = f"none of the engine's {'log lines' if logged else 'pages'} fell into the window: make the load longer"
        return _absent(which, trials, bool(telling), none, rests_on=("kv_usage",))
    said = "by lines of the server's log" if logged else None
    if gap := _unseen(telling, trials, logged=logged):
        return MetricValue(which, None, 0, f"the engine's KV usage was {gap}")
    note = "; ".join(filter(None, (said, _left_out(trials, "kv_usage")))) or None
    return MetricValue(which, quantile(sorted(inside), 0.95), len(inside), note, source=LOGGED if logged else "")


def _unseen(telling: Sequence[tuple[Trial, EngineSample]], trials: Sequence[Trial], *, logged: bool) -> str | None:
    """Why the samples do not cover the window of a trial that has some; None where they do."""
    every = LINES_S if logged else PAGES_S
    times = [[s.t_ns for own, s in telling if own is trial and s.logged is logged] for trial in trials]
    gaps = (gap_in(found, trial.window, every) for trial, found in zip(trials, times, strict=True) if found)
    return next((gap for gap in gaps if gap is not None), None)


def _capacity(trials: Sequence[Trial]) -> MetricValue:
    which = metric("kv_capacity_tokens")
    told = [[n for s in t.telemetry.engine if (n := s.values.get("kv_capacity_tokens"))] for t in trials]
    last = [values[-1] for values in told if values]
    return (
        MetricValue(which, sum(last) / len(last), len(last))
        if last
        else _absent(which, trials, False, rests_on=("kv_capacity_tokens",))
    )


def _preemptions(trials: Sequence[Trial]) -> MetricValue:
    """By the counter over the whole load; where it has none, by the lines of the log. Per load."""
    name: Counter = "preemptions"
    which = metric(name)
    short = any(unstated(trial, name, whole=True) for trial in trials)
    counted = [] if short else [grown.by[name] for t in trials if (grown := growth(t, [name], whole=True))]
    logged = [float(n) for trial in trials if (n := trial.telemetry.preemption_warnings) is not None]
    found, said = (counted, None) if counted else (logged, "as the server's log counts them")
    if not found:
        told = any(name in s.values for t in trials for s in t.telemetry.engine)
        return _absent(which, trials, told, rests_on=(name,), whole=True)
    mean = f"mean of {len(found)} loads" if len(found) > 1 else None
    missing = f"not known of {len(trials) - len(found)} of {len(trials)} loads" if len(found) < len(trials) else None
    note = "; ".join(filter(None, (said, mean, missing))) or None
    return MetricValue(which, sum(found) / len(found), len(found), note, source=LOGGED if said else "")


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
        return MetricValue(usage.metric, rate, round(looked_up), note, source=COUNTED)
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
    stating = [(t, s) for t in trials for s in pages_of(t) if "acceptance_length" in s.values]
    stated = [
        length
        for trial, sample in stating
        if (length := sample.values["acceptance_length"]) > 0  # 0 until it has verified some
        and trial.window.start_ns <= sample.t_ns <= trial.window.end_ns
    ]
    if stated and (gap := _unseen(stating, trials, logged=False)):
        return MetricValue(which, None, 0, f"what the engine's pages state of it was {gap}")
    if stated:
        return MetricValue(which, math.fsum(stated) / len(stated), len(stated), "mean of what its pages state")
    drafted = [grown.by["drafts"] for trial in trials if (grown := growth(trial, ["drafts"]))]
    none = "no draft was verified: it does not decode speculatively"
    why = "it counts drafts, and not what was accepted" if any(drafted) else none
    return _absent(which, trials, bool(drafted), why, rests_on=("drafts", "accepted_tokens", "acceptance_length"))


def _ratio(trials: Sequence[Trial], over: Counter, under: Counter) -> tuple[float, float, float] | None:
    """Ratio of two counters' growth, the lower one, and the seconds; None where the lower one did not grow, and where
    the pages of some trial leave out some of its window."""
    grown = [found for trial in trials if (found := growth(trial, [over, under]))]
    below = sum(found.by[under] for found in grown)
    if below <= 0 or any(unstated(trial, quantity) for trial in trials for quantity in (over, under)):
        return None
    return sum(found.by[over] for found in grown) / below, below, sum(found.seconds for found in grown)


def _span(seconds: float, trials: Sequence[Trial]) -> str:
    window = sum(trial.window.seconds for trial in trials)
    return f"over {seconds:.3g} s around the window of {window:.3g} s"


def _left_out(trials: Sequence[Trial], quantity: Gauge) -> str | None:
    silent = sum(not any(quantity in sample.values for sample in trial.telemetry.engine) for trial in trials)
    return f"not known of {silent} of {len(trials)} loads" if silent else None


def _absent(
    which: Metric,
    trials: Sequence[Trial],
    told: bool,
    otherwise: str = "fewer than two pages of the engine's metrics",
    *,
    rests_on: Sequence[Quantity],
    whole: bool = False,
) -> MetricValue:
    """No number, and why. ``told``: pages state it, and ``otherwise`` says why that is not enough. It ``rests_on``
    these quantities of the pages, around the window or over the ``whole`` load."""
    pages = any(map(pages_of, trials))
    unknown = [why for trial in trials for name in rests_on if (why := unstated(trial, name, whole=whole))]
    untold = [
        text for trial in trials for page in pages_of(trial) for name, text in page.untold.items() if name in rests_on
    ]
    if any(map(is_several, trials)):
        why = SEVERAL_SERVERS
    elif unknown:
        why = unknown[0]
    elif untold and not told:
        why = f"the engine's pages state what it cannot be: {untold[0]}"
    elif told:
        why = otherwise
    elif pages:
        why = "the engine's metrics do not state it"
    else:
        notes = dict.fromkeys(note for t in trials for note in t.telemetry.notes if note.startswith("the engine's"))
        why = "; ".join(("no metrics of the engine were read", *notes))
    return MetricValue(which, None, 0, why)
