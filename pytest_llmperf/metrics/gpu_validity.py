"""Whether the GPUs were in a state that numbers can be trusted in: in one trial, and alike in two arms."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Final

from pytest_llmperf.cards import SLOWDOWNS, STEP_MHZ, reasons_in
from pytest_llmperf.metrics.coverage import gap_in
from pytest_llmperf.records import Trial
from pytest_llmperf.samples import GPU_LOST, GpuSample

__all__ = ["ARMS_NOTE", "GpuFacts", "arms_state", "gpu_state"]

ARMS_NOTE: Final = "the GPU's"
"""How a note on the state of the arms begins: a later one, over more launches, replaces it."""

SLOWED: Final = 0.01
"""Share of a GPU's samples with a slowdown that makes a trial INVALID; less is a note."""
START_K: Final = 10.0
"""Difference of the mean temperatures that the arms' launches began their loads with."""
CLOCK_OFF: Final = 0.05
"""Difference of the highest clocks: steps of 15 MHz for temperature are less."""
NEAR_NS: Final = 1_000_000_000
"""Time between two samples that tell processes."""
FREE: Final = 0.2
"""Share of an arm's busy samples in which no power cap held the clock: then its highest is its limit."""
FEW: Final = 3
STRAYED: Final = 0.05
"""Share of the busy samples that may be off a locked clock by more than a step."""
_IDLE: Final = 0x1
_POWER_CAP: Final = 0x4


@dataclass(frozen=True, slots=True)
class GpuFacts:
    """What was asked of the GPUs."""

    shared: bool = False
    """Others may compute on them beside the server."""
    locked_mhz: int | None = None
    """What the SM clocks are to be held at."""


_PLAIN: Final = GpuFacts()


def gpu_state(trial: Trial, facts: GpuFacts = _PLAIN) -> tuple[list[str], list[str]]:
    """Reasons that make a trial INVALID, and notes.

    Samples of the window count; for processes, which are asked for more seldom, also those close to it. A power cap is
    normal under load and says nothing, unless a clock is to be held. What no sample shows has not been shown to hold:
    each GPU of the server that has none is spoken of.
    """
    window = trial.window
    inside: dict[int, list[GpuSample]] = defaultdict(list)
    near: dict[int, list[GpuSample]] = defaultdict(list)
    for sample in trial.telemetry.gpu:
        if window.start_ns <= sample.t_ns <= window.end_ns:
            inside[sample.gpu].append(sample)
        if window.start_ns - NEAR_NS <= sample.t_ns <= window.end_ns + NEAR_NS:
            near[sample.gpu].append(sample)
    reasons: list[str] = [note for note in trial.telemetry.notes if note.startswith(GPU_LOST)]
    notes: list[str] = []
    if trial.telemetry.gpus == ():
        notes.append("which GPUs the server has is not known: neither a slowdown nor others on them can be seen")
    for gpu in sorted({*(trial.telemetry.gpus or ()), *near}):
        samples = inside[gpu]
        share, text = _slowed(gpu, samples, window.start_ns)
        if share:
            (reasons if share >= SLOWED else notes).append(text)
        strangers = _strangers(gpu, near[gpu], window.start_ns)
        if strangers:
            (notes if facts.shared else reasons).append(strangers)
        if facts.locked_mhz is not None:
            reasons += _strayed(gpu, samples, facts.locked_mhz)
        notes += _unseen(gpu, near[gpu], shared=facts.shared)
        seen = [sample.t_ns for sample in trial.telemetry.gpu if sample.gpu == gpu]
        if near[gpu] and (gap := gap_in(seen, window)):
            notes.append(f"GPU {gpu} was {gap}: what slowed it down then, or who else was on it, is not known")
    return reasons, notes


def arms_state(baseline: Sequence[Trial], candidate: Sequence[Trial]) -> tuple[str | None, tuple[str, ...]]:
    """Why the GPUs of the arms were not in the same state (None: as far as known they were), and notes.

    Temperatures are those before the first load of each launch, and asked from two launches on each side on: the very
    first launch finds a cooler GPU, whichever arm it is of. A clock that differs while a power cap is active may be
    the doing of the variable itself: a note.
    """
    faults, notes = [], []
    warm = [_start_temperatures(trials) for trials in (baseline, candidate)]
    busy = [_busy(trials) for trials in (baseline, candidate)]
    if baseline and candidate:
        notes += _one_sided("temperature before the load", [len(each) for each in warm])
        notes += _one_sided("clock under load", [len(each) for each in busy])
    if all(len(each) >= 2 for each in warm):
        before, after = (fmean(each) for each in warm)
        if abs(before - after) > START_K:
            began = f"the arms began at different GPU temperatures, {before:.0f} °C and {after:.0f} °C on average"
            faults.append(f"{began}: let the GPU cool down, or warm it up, alike before every launch")
    if all(len(each) >= FEW for each in busy):
        limits = [max(sample.sm_clock_mhz or 0 for sample in each) for each in busy]
        low = limits.index(min(limits))
        text = f"{ARMS_NOTE} clock reached {limits[0]} MHz in the baseline and {limits[1]} MHz in the candidate"
        if limits[1 - low] > (1 + CLOCK_OFF) * limits[low]:
            if _is_free(busy[low]):
                faults.append(f"{text}: set the same clock limit for both (nvidia-smi -q -d CLOCK shows it)")
            else:
                notes.append(f"{text}, with the power cap active: it may be the doing of what is compared")
        else:
            notes += _typical(busy)
    return "; ".join(faults) or None, tuple(notes)


def _one_sided(what: str, known: Sequence[int]) -> list[str]:
    """A note where one arm alone tells ``what``."""
    if all(known) or not any(known):
        return []
    side = "baseline" if known[0] else "candidate"
    return [f"{ARMS_NOTE} {what} is known of the {side} alone: whether the arms were alike cannot be told"]


def _slowed(gpu: int, samples: Sequence[GpuSample], start_ns: int) -> tuple[float, str]:
    known = [sample for sample in samples if sample.throttle is not None]
    slow = [sample for sample in known if (sample.throttle or 0) & SLOWDOWNS]
    if not slow:
        return 0.0, ""
    kinds = Counter(text for sample in slow for text in reasons_in((sample.throttle or 0) & SLOWDOWNS))
    hottest = max((sample.temperature_c for sample in samples if sample.temperature_c is not None), default=None)
    share = len(slow) / len(known)
    when = f"between {_seconds(slow[0], start_ns)} and {_seconds(slow[-1], start_ns)} of the window"
    heat = "" if hottest is None else f", up to {hottest:.0f} °C"
    return share, (
        f"GPU {gpu} slowed down: {' and '.join(kinds)} in {100 * share:.1f} % of {len(known)} samples, {when}{heat}: "
        "see to its cooling and power supply"
    )


def _strangers(gpu: int, samples: Sequence[GpuSample], start_ns: int) -> str:
    met = [sample for sample in samples if sample.foreign_pids]
    if not met:
        return ""
    pids = sorted({pid for sample in met for pid in sample.foreign_pids or ()})
    who = f"process {pids[0]}" if len(pids) == 1 else f"processes {', '.join(map(str, pids))}"
    when = f"between {_seconds(met[0], start_ns)} and {_seconds(met[-1], start_ns)} after the window began"
    return f"foreign {who} on GPU {gpu} {when}: give the server a GPU of its own"


def _strayed(gpu: int, samples: Sequence[GpuSample], mhz: int) -> list[str]:
    clocks = [sample.sm_clock_mhz for sample in samples if sample.sm_clock_mhz is not None and _is_busy(sample)]
    if not clocks:
        return [f"GPU {gpu}: no sample under load tells its clock, so nothing shows that it held {mhz} MHz"]
    off = [clock for clock in clocks if abs(clock - mhz) > STEP_MHZ]
    if len(off) <= STRAYED * len(clocks):
        return []
    strayed = f"GPU {gpu} did not hold its locked clock of {mhz} MHz: {min(off)} to {max(off)} MHz in"
    return [f"{strayed} {100 * len(off) / len(clocks):.0f} % of {len(clocks)} samples: lock a lower one"]


def _unseen(gpu: int, samples: Sequence[GpuSample], *, shared: bool) -> list[str]:
    """What cannot be ruled out, since the driver tells nothing of it."""
    if not samples:
        return [f"GPU {gpu}: no sample of the window: neither a slowdown nor others on it can be seen"]
    found = []
    if all(sample.throttle is None for sample in samples):
        found.append(f"GPU {gpu}: the driver does not tell what holds its clock down: a slowdown cannot be seen")
    if not shared and all(sample.foreign_pids is None for sample in samples):
        found.append(f"GPU {gpu}: the driver does not tell whose processes compute on it: others cannot be seen")
    return found


def _is_busy(sample: GpuSample) -> bool:
    """Whether it is known that no idleness held the clock."""
    return sample.throttle is not None and not sample.throttle & _IDLE


def _seconds(sample: GpuSample, start_ns: int) -> str:
    return f"{(sample.t_ns - start_ns) / 1e9:.1f} s"


def _start_temperatures(trials: Sequence[Trial]) -> list[float]:
    """Of each launch that tells, the mean over its GPUs of the first sample of its first trial."""
    first: dict[int, Trial] = {}
    for trial in trials:
        if trial.launch not in first or trial.replay < first[trial.launch].replay:
            first[trial.launch] = trial
    found = []
    for trial in first.values():
        by_gpu: dict[int, float] = {}
        for sample in trial.telemetry.gpu:
            if sample.t_ns <= trial.window.start_ns and sample.temperature_c is not None:
                by_gpu.setdefault(sample.gpu, sample.temperature_c)
        if by_gpu:
            found.append(fmean(by_gpu.values()))
    return found


def _busy(trials: Sequence[Trial]) -> list[GpuSample]:
    """Samples inside the windows at which the clock was held by no idleness."""
    return [
        sample
        for trial in trials
        for sample in trial.telemetry.gpu
        if trial.window.start_ns <= sample.t_ns <= trial.window.end_ns
        and sample.sm_clock_mhz is not None
        and _is_busy(sample)
    ]


def _is_free(samples: Sequence[GpuSample]) -> bool:
    free = sum(not (sample.throttle or 0) & _POWER_CAP for sample in samples)
    return free >= FEW and free >= FREE * len(samples)


def _typical(busy: Sequence[Sequence[GpuSample]]) -> list[str]:
    """A note where the clocks under load differ although the limits do not."""
    before, after = (median(sample.sm_clock_mhz or 0 for sample in each) for each in busy)
    if not before or abs(after / before - 1) <= CLOCK_OFF:
        return []
    caps = [sum(bool((s.throttle or 0) & _POWER_CAP) for s in each) / len(each) for each in busy]
    clocks = f"{before:.0f} MHz in the baseline and {after:.0f} MHz in the candidate (median)"
    capped = f"with the power cap active in {100 * caps[0]:.0f} % and {100 * caps[1]:.0f} % of the samples"
    return [f"{ARMS_NOTE} clock under load was {clocks}, {capped}"]
