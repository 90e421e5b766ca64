"""Memory and CPU of the server while the load ran, from telemetry."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Final

from pytest_llmperf.catalog import metric
from pytest_llmperf.metrics.coverage import gap_in, short_of
from pytest_llmperf.metrics.gpu import energy_value, own_notes
from pytest_llmperf.metrics.rates import tokens_between
from pytest_llmperf.metrics.start import WHOLE_GPUS
from pytest_llmperf.records import Trial
from pytest_llmperf.samples import Telemetry
from pytest_llmperf.stats.value import MetricValue

__all__ = ["memory_series", "resource_values"]

_Series = Sequence[tuple[int, int]]
_SHORTEST_NS: Final = 10_000_000_000
"""Of samples that a slope is drawn through: a server settles for some seconds after its first requests."""
_FEW_S: Final = 3.0
"""A window of less has few samples, wherever they come to lie in it."""
_MOST_SAMPLES: Final = 500
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
        series = [((), None) if note else (samples, note) for samples, note in series]
        kept = [(trial, samples) for trial, (samples, _) in zip(trials, series, strict=True) if samples]
    else:
        kept = [(trial, samples) for trial, (samples, _) in zip(trials, series, strict=True)]
    note = next((note for _, note in series if note), None)
    absent = _absent(trials)
    sizes = [size for samples, _ in series for _, size in samples]
    peak = metric("peak_memory")
    unseen = _unseen(kept) if sizes else absent
    return {
        "peak_memory": MetricValue(peak, max(sizes), len(sizes), note, source=WHOLE_GPUS if note else "")
        if not unseen
        else MetricValue(peak, None, 0, unseen),
        "memory_growth": _growth(trials, [samples for samples, _ in series], note, absent),
        "cpu_seconds_per_mtok": _cpu(trials, absent),
        "energy_per_mtok": energy_value(trials),
    }


def _growth(trials: Sequence[Trial], series: Sequence[_Series], note: str | None, absent: str) -> MetricValue:
    """The largest of the trials' slopes inside their windows."""
    which = metric("memory_growth")
    if not any(series):
        return MetricValue(which, None, 0, absent)
    inside = [
        [sample for sample in samples if trial.window.start_ns <= sample[0] <= trial.window.end_ns]
        for trial, samples in zip(trials, series, strict=True)
    ]
    long = [samples for samples in inside if samples and samples[-1][0] - samples[0][0] >= _SHORTEST_NS]
    if not long:
        short = f"a slope needs samples over {_SHORTEST_NS / 1e9:.0f} s of a window; measure for longer"
        return MetricValue(which, None, 0, short)
    unseen = [
        gap
        for trial, samples in zip(trials, inside, strict=True)
        if samples in long and (gap := gap_in([t for t, _ in samples], trial.window))
    ]
    if unseen:
        return MetricValue(which, None, 0, f"the server's memory was {unseen[0]}")
    source = WHOLE_GPUS if note else ""
    return MetricValue(which, max(map(_slope, long)), sum(map(len, long)), note, source=source)


def _slope(samples: _Series) -> float:
    """Bytes per second: median of the slopes between all pairs of (at most 500 of) the samples.

    One step, such as a work space that the first large batch needs, does not move it; a leak that lasts
    does (Theil 1950, Sen 1968).
    """
    import numpy as np  # the command line shows reports without it

    thinned = np.array(samples[:: math.ceil(len(samples) / _MOST_SAMPLES)], dtype=float)
    before, after = np.triu_indices(len(thinned), k=1)
    seconds, sizes = ((thinned[after] - thinned[before]) / (1e9, 1.0)).T
    return float(np.median(sizes / seconds))


def _cpu(trials: Sequence[Trial], absent: str) -> MetricValue:
    """CPU time / output tokens, both between the first and the last sample inside the window."""
    which = metric("cpu_seconds_per_mtok")
    cpu, tokens, samples, unknown = 0.0, 0.0, 0, 0
    unseen: list[str] = []
    for trial in trials:
        window = trial.window
        inside = [s for s in trial.telemetry.host if window.start_ns <= s.t_ns <= window.end_ns]
        if len(inside) < 2 and window.seconds <= _FEW_S:
            continue
        if short := short_of([s.t_ns for s in inside], window):
            unseen.append(short)
            continue
        count = tokens_between(trial.records, inside[0].t_ns, inside[-1].t_ns)
        cpu += inside[-1].cpu_seconds - inside[0].cpu_seconds
        tokens += count.tokens
        unknown += count.unknown
        samples += len(inside)
    if samples == 0 and not unseen:
        few = "fewer than two samples of the server's CPU time in the window"
        return MetricValue(which, None, 0, few if any(trial.telemetry.host for trial in trials) else absent)
    if unseen:
        return MetricValue(which, None, 0, f"the server's CPU time was {unseen[0]}")
    if unknown:
        # Missing tokens would be blamed on the CPU.
        return MetricValue(which, None, samples, f"the server gave no token count for {unknown} requests")
    if tokens <= 0:
        return MetricValue(which, None, samples, "no output tokens between the samples")
    return MetricValue(which, cpu / tokens * 1e6, samples)


def _unseen(kept: Sequence[tuple[Trial, _Series]]) -> str | None:
    """Why the most that was seen need not be the most there was."""
    gaps = [(trial, gap_in([t for t, _ in samples], trial.window)) for trial, samples in kept]
    found = next(((trial, gap) for trial, gap in gaps if gap is not None), None)
    if found is None:
        return None
    return "; ".join((f"the server's memory was {found[1]}", *own_notes([found[0]])))


def _absent(trials: Sequence[Trial]) -> str:
    sampled = any(trial.telemetry.host for trial in trials)
    what = "host memory does not stand in for that of GPUs" if sampled else "the server's processes were not sampled"
    return "; ".join((what, *own_notes(trials)))
