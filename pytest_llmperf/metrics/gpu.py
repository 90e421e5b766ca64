"""GPU energy and price per million output tokens."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from pytest_llmperf.catalog import metric
from pytest_llmperf.metrics.coverage import gap_in, short_of
from pytest_llmperf.metrics.rates import tokens_between
from pytest_llmperf.records import Trial, Window
from pytest_llmperf.samples import GpuSample
from pytest_llmperf.stats.value import MetricValue

__all__ = ["cost_value", "energy_value", "own_notes"]

_INTEGRATED = "power integrated over time: the driver has no energy counter"


def energy_value(trials: Sequence[Trial]) -> MetricValue:
    """Energy of the server's whole GPUs / output tokens, both between the first and the last sample in the window at
    which every GPU told; summed over the trials before the division.

    By the driver's counter of energy; where one of the GPUs has none, by the trapezoidal rule over its power.
    """
    which = metric("energy_per_mtok")
    unseen = [gap for trial in trials if (gap := _gap(trial, short_of))]
    if unseen:
        return MetricValue(which, None, 0, "; ".join((f"the GPUs' energy was {unseen[0]}", *own_notes(trials))))
    counted = [_spent(trial, _by_counter) for trial in trials]
    integrated = any(spent is None for spent in counted)
    found = [_spent(trial, _by_power) for trial in trials] if integrated else counted
    if integrated and (between := [gap for trial in trials if (gap := _gap(trial, gap_in))]):
        return MetricValue(which, None, 0, f"the GPUs' power was {between[0]}, and they have no counter of energy")
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
    gpus, rounds = trial.telemetry.gpus, _rounds(trial)
    if not gpus or len(rounds) < 2:
        return None
    each = [joules([cards[gpu] for cards in rounds.values()]) for gpu in gpus]
    known = [energy for energy in each if energy is not None]
    if len(known) < len(each):
        return None
    count = tokens_between(trial.records, min(rounds), max(rounds))
    return _Spent(sum(known), count.tokens, count.unknown, len(rounds))


def _rounds(trial: Trial) -> dict[int, dict[int, GpuSample]]:
    """Samples of the window with energy or power, by time and GPU; only times at which every GPU told, rising."""
    window = trial.window
    rounds: dict[int, dict[int, GpuSample]] = defaultdict(dict)
    for sample in trial.telemetry.gpu:
        # Only samples with everything count: those in between have neither energy nor power.
        inside = window.start_ns <= sample.t_ns <= window.end_ns
        if inside and (sample.energy_j is not None or sample.power_w is not None):
            rounds[sample.t_ns][sample.gpu] = sample
    return {t: rounds[t] for t in sorted(rounds) if rounds[t].keys() >= set(trial.telemetry.gpus or ())}


def _gap(trial: Trial, look: Callable[[Sequence[int], Window], str | None]) -> str | None:
    """What ``look`` says of the times at which all GPUs told; None for fewer than two, which are no figure anyway."""
    rounds = _rounds(trial)
    return look(list(rounds), trial.window) if len(rounds) > 1 else None


def own_notes(trials: Sequence[Trial]) -> tuple[str, ...]:
    """Notes of the telemetry on the server's processes and GPUs, without those on what the engine says of itself."""
    notes = dict.fromkeys(note for trial in trials for note in trial.telemetry.notes)
    return tuple(note for note in notes if not note.startswith(("the engine's metrics", "the server's log")))


def _by_counter(samples: Sequence[GpuSample]) -> float | None:
    """None too where the counter began anew, or stands still: no GPU that is on takes nothing."""
    counts = [sample.energy_j for sample in samples]
    known = [count for count in counts if count is not None]
    if len(known) < len(counts) or any(after < before for before, after in pairwise(known)):
        return None
    return (known[-1] - known[0]) or None


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
        return "; ".join(("its GPUs were not sampled", *own_notes(trials)))
    return "fewer than two samples of the GPUs' energy or power in the window: measure for some seconds more"
