"""GPU energy and price per million output tokens."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from pytest_llmperf.catalog import metric
from pytest_llmperf.metrics.rates import tokens_between
from pytest_llmperf.records import Trial
from pytest_llmperf.samples import GpuSample
from pytest_llmperf.stats.value import MetricValue

__all__ = ["cost_value", "energy_value"]

_INTEGRATED = "power integrated over time: the driver has no energy counter"


def energy_value(trials: Sequence[Trial]) -> MetricValue:
    """Energy of the server's whole GPUs / output tokens, both between the first and the last sample in the window at
    which every GPU told; summed over the trials before the division.

    By the driver's counter of energy; where one of the GPUs has none, by the trapezoidal rule over its power.
    """
    which = metric("energy_per_mtok")
    counted = [_spent(trial, _by_counter) for trial in trials]
    integrated = any(spent is None for spent in counted)
    found = [_spent(trial, _by_power) for trial in trials] if integrated else counted
    known = [spent for spent in found if spent is not None]
    if not known or len(known) < len(found):
        return MetricValue(which, None, 0, _absent(trials))
    samples = sum(spent.samples for spent in known)
    if any(spent.unknown for spent in known):
        unknown = sum(spent.unknown for spent in known)
        return MetricValue(which, None, samples, f"the server gave no token count for {unknown} requests")
    tokens = sum(spent.tokens for spent in known)
    if tokens <= 0:
        return MetricValue(which, None, samples, "no output tokens between the samples")
    value = sum(spent.joules for spent in known) / tokens * 1e6
    note, source = (_INTEGRATED, "power") if integrated else (None, "")
    return MetricValue(which, value, samples, note, source=source)


def cost_value(throughput: MetricValue, usd_per_hour: float | None, gpu: str = "") -> MetricValue:
    """``usd_per_hour`` of all GPUs × hours of the window / output tokens in it, by the output throughput. ``gpu``: what
    the configuration would have a price of; empty or ``unknown`` where the server does not tell."""
    which = metric("cost_per_mtok")
    if usd_per_hour is None:
        return MetricValue(which, None, 0, _no_price(gpu))
    if not throughput.value:
        return MetricValue(which, None, throughput.n, throughput.note or "no output tokens in the window")
    value = usd_per_hour / 3600 / throughput.value * 1e6
    return MetricValue(which, value, throughput.n, throughput.note, source=throughput.source)


def _no_price(gpu: str) -> str:
    if gpu in ("", "unknown"):
        return (
            "the server's GPU and their number are not known, so that they have no price: declare them in its identity"
        )
    example = "0.10 USD/h" if gpu == "cpu" else "3.50 USD/h"
    return f'no price is known of {gpu!r}: set e.g. prices."{gpu}" = "{example}" in the configuration'


@dataclass(frozen=True, slots=True)
class _Spent:
    """Energy and output tokens of one trial between the same two times."""

    joules: float
    tokens: float
    unknown: int
    samples: int


def _spent(trial: Trial, joules: Callable[[Sequence[GpuSample]], float | None]) -> _Spent | None:
    """None where that way of telling the energy has no figures of some GPU."""
    gpus, window = trial.telemetry.gpus, trial.window
    if not gpus:
        return None
    rounds: dict[int, dict[int, GpuSample]] = defaultdict(dict)
    for sample in trial.telemetry.gpu:
        # Only samples with everything count: those in between have neither energy nor power.
        inside = window.start_ns <= sample.t_ns <= window.end_ns
        if inside and (sample.energy_j is not None or sample.power_w is not None):
            rounds[sample.t_ns][sample.gpu] = sample
    whole = sorted(t for t, cards in rounds.items() if cards.keys() >= set(gpus))
    if len(whole) < 2:
        return None
    each = [joules([rounds[t][gpu] for t in whole]) for gpu in gpus]
    known = [energy for energy in each if energy is not None]
    if len(known) < len(each):
        return None
    count = tokens_between(trial.records, whole[0], whole[-1])
    return _Spent(sum(known), count.tokens, count.unknown, len(whole))


def _by_counter(samples: Sequence[GpuSample]) -> float | None:
    """None too where the counter began anew."""
    counts = [sample.energy_j for sample in samples]
    known = [count for count in counts if count is not None]
    if len(known) < len(counts) or any(after < before for before, after in pairwise(known)):
        return None
    return known[-1] - known[0]


def _by_power(samples: Sequence[GpuSample]) -> float | None:
    total = 0.0
    for before, after in pairwise(samples):
        if before.power_w is None or after.power_w is None:
            return None
        total += (before.power_w + after.power_w) / 2 * (after.t_ns - before.t_ns) / 1e9
    return total


def _absent(trials: Sequence[Trial]) -> str:
    if any(trial.telemetry.gpus is None for trial in trials):
        return "the server computes on the CPU, whose energy is not measured"
    if not any(trial.telemetry.gpu for trial in trials):
        notes = dict.fromkeys(note for trial in trials for note in trial.telemetry.notes)
        return "; ".join(("its GPUs were not sampled", *notes))
    return "fewer than two samples of the GPUs' energy or power in the window: measure for some seconds more"
