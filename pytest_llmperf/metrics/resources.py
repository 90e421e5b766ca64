"""Memory and CPU of the server while the load ran, from telemetry."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from pytest_llmperf.catalog import metric
from pytest_llmperf.metrics.gpu import energy_value
from pytest_llmperf.metrics.rates import tokens_between
from pytest_llmperf.records import Trial
from pytest_llmperf.samples import Telemetry
from pytest_llmperf.stats.value import MetricValue

__all__ = ["memory_series", "resource_values"]

_WHOLE_CARDS = "memory of whole GPUs: the driver does not tell the server's processes apart"


def memory_series(telemetry: Telemetry) -> tuple[tuple[tuple[int, int], ...], str | None]:
    """(time, bytes) of the server's memory, and a note.

    Over all its GPUs, at times when each of them answered; host RSS for a server that computes on the CPU alone.
    """
    if telemetry.gpus is None:
        return tuple((sample.t_ns, sample.rss_bytes) for sample in telemetry.host), None
    # The two are never mixed: a whole GPU also holds what its driver and others have there. Processes are asked for
    # more seldom than whole GPUs.
    told = {sample.gpu for sample in telemetry.gpu if sample.server_bytes is not None}
    whole = bool(telemetry.gpu) and not told >= set(telemetry.gpus)
    by_time: dict[int, dict[int, int]] = defaultdict(dict)
    for sample in telemetry.gpu:
        size = sample.used_bytes if whole else sample.server_bytes
        if size is not None:
            by_time[sample.t_ns][sample.gpu] = size
    # A round in which a GPU did not answer would look like memory given back.
    complete = {t: cards for t, cards in by_time.items() if cards.keys() == set(telemetry.gpus)}
    return tuple((t, sum(cards.values())) for t, cards in sorted(complete.items())), _WHOLE_CARDS if whole else None


def resource_values(trials: Sequence[Trial]) -> dict[str, MetricValue]:
    """Peak memory and its growth (the largest of the trials), CPU seconds and GPU energy per million output tokens."""
    series = [memory_series(trial.telemetry) for trial in trials]
    if len({note for samples, note in series if samples}) > 1:  # the larger of unlike things means nothing
        series = [(samples, note) for samples, note in series if not note]
    note = next((note for _, note in series if note), None)
    absent = _absent(trials)
    sizes = [size for samples, _ in series for _, size in samples]
    peak = metric("peak_memory")
    return {
        "peak_memory": MetricValue(peak, max(sizes), len(sizes), note) if sizes else MetricValue(peak, None, 0, absent),
        "memory_growth": _growth([samples for samples, _ in series], note, absent),
        "cpu_seconds_per_mtok": _cpu(trials, absent),
        "energy_per_mtok": energy_value(trials),
    }


def _growth(series: Sequence[Sequence[tuple[int, int]]], note: str | None, absent: str) -> MetricValue:
    """Largest least-squares slope of memory over time among the trials."""
    slopes = [(slope, len(samples)) for samples in series if (slope := _slope(samples)) is not None]
    if not slopes:
        few = "too few memory samples for a slope" if any(series) else absent
        return MetricValue(metric("memory_growth"), None, 0, few)
    return MetricValue(metric("memory_growth"), max(slope for slope, _ in slopes), sum(n for _, n in slopes), note)


def _slope(samples: Sequence[tuple[int, int]]) -> float | None:
    """Bytes per second; None for fewer than three samples or no time between them."""
    if len(samples) < 3:
        return None
    seconds = [(t - samples[0][0]) / 1e9 for t, _ in samples]
    middle = sum(seconds) / len(seconds)
    mean = sum(size for _, size in samples) / len(samples)
    spread = sum((x - middle) ** 2 for x in seconds)
    if spread <= 0:
        return None
    return sum((x - middle) * (size - mean) for x, (_, size) in zip(seconds, samples, strict=True)) / spread


def _cpu(trials: Sequence[Trial], absent: str) -> MetricValue:
    """CPU time / output tokens, both between the first and the last sample inside the window."""
    which = metric("cpu_seconds_per_mtok")
    cpu, tokens, samples, unknown = 0.0, 0.0, 0, 0
    for trial in trials:
        window = trial.window
        inside = [s for s in trial.telemetry.host if window.start_ns <= s.t_ns <= window.end_ns]
        if len(inside) < 2:
            continue
        count = tokens_between(trial.records, inside[0].t_ns, inside[-1].t_ns)
        cpu += inside[-1].cpu_seconds - inside[0].cpu_seconds
        tokens += count.tokens
        unknown += count.unknown
        samples += len(inside)
    if samples == 0:
        few = "fewer than two samples of the server's CPU time in the window"
        return MetricValue(which, None, 0, few if any(trial.telemetry.host for trial in trials) else absent)
    if unknown:
        # Missing tokens would be blamed on the CPU.
        return MetricValue(which, None, samples, f"the server gave no token count for {unknown} requests")
    if tokens <= 0:
        return MetricValue(which, None, samples, "no output tokens between the samples")
    return MetricValue(which, cpu / tokens * 1e6, samples)


def _absent(trials: Sequence[Trial]) -> str:
    sampled = any(trial.telemetry.host for trial in trials)
    what = "host memory does not stand in for that of GPUs" if sampled else "the server's processes were not sampled"
    notes = dict.fromkeys(note for trial in trials for note in trial.telemetry.notes)
    return "; ".join((what, *notes))
