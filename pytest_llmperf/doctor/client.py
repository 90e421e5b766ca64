"""How far this machine's client can be trusted: steps of rising token rate, each held against the truth."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, final

from pytest_llmperf.doctor.study import NullServer, Step, Stepped, run_step

__all__ = ["FULL", "QUICK", "Ceiling", "ceiling", "faults", "study"]

QUICK: Final = (
    Step(1, 50),
    Step(16, 50),
    Step(64, 50),
    Step(256, 50),
    Step(256, 50, in_step=True),
    Step(512, 50),
    Step(1024, 50),
    Step(1024, 75),
)
FULL: Final = (
    *(Step(streams, 50, seconds=4) for streams in (1, 16, 64, 256, 512, 1024)),
    Step(4096, 12, seconds=4),
    *(Step(streams, 50, seconds=4, in_step=True) for streams in (64, 256, 1024)),
    *(Step(streams, 50, seconds=4, random=True) for streams in (64, 256)),
    Step(256, 250, seconds=2),
    Step(1024, 50, seconds=4, clients=2),
)

MAX_SHARED: Final = 0.001
MAX_ICL_ERROR_S: Final = 0.000_2
MAX_BUSY: Final = 0.9
MIN_RATE: Final = 0.98


@final
@dataclass(frozen=True, slots=True)
class Ceiling:
    """Up to which rate the client can be trusted, and what stopped it there."""

    tokens_per_s: float
    """The highest rate of a step without fault; 0 where there was none."""
    reached: bool
    """A step with a higher rate had a fault of the client's; False: the ceiling lies higher."""
    realtime: bool


def study(steps: Sequence[Step], told: Callable[[Stepped], None]) -> tuple[Stepped, ...]:
    """Run ``steps`` one after another against one null server; ``told`` hears of each as it ends."""
    found = []
    with NullServer() as server:
        for step in steps:
            stepped = run_step(server, step)
            told(stepped)
            found.append(stepped)
    return tuple(found)


def faults(stepped: Stepped) -> tuple[str, ...]:
    """Why the client cannot be trusted at this step; empty: it can."""
    found = []
    if stepped.failed:
        found.append(f"{stepped.failed} requests failed")
    if stepped.shared > MAX_SHARED:
        found.append("shared reads")
    if stepped.unstamped > MAX_SHARED:
        found.append("no kernel stamps" if stepped.unstamped == 1 else "unstamped reads")
    if not stepped.icl_p99 <= MAX_ICL_ERROR_S:
        found.append("ICL error")
    if stepped.busiest > MAX_BUSY:
        found.append("client CPU")
    return tuple(found)


def ceiling(found: Sequence[Stepped]) -> Ceiling:
    """The highest rate below the first faulty one. Steps with random gaps take no part: short gaps share reads
    whatever the rate."""
    steady = sorted((each for each in found if not each.step.random), key=lambda each: each.events_per_s)
    best, reached = 0.0, False
    for each in steady:
        if faults(each):
            reached = True
            break
        best = each.events_per_s
    return Ceiling(best, reached, all(each.realtime for each in found))
