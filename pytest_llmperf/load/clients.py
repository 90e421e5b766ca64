"""How many client processes a load needs."""

from __future__ import annotations

import math
import os
from itertools import islice
from typing import TYPE_CHECKING, Final

from pytest_llmperf.load.arrivals import schedule

if TYPE_CHECKING:
    from pytest_llmperf.plan import Plan

__all__ = ["EVENTS_PER_PROCESS", "clients_for"]

EVENTS_PER_PROCESS: Final = 52_000
"""Tokens a second that one process receives without sharing reads, at 0.6 to 0.8 of a core."""
STREAM_RATE: Final = 50.0
"""Tokens a second and stream that a closed loop is planned for: how fast it will really be is what is measured."""
_LOOKED_AT: Final = 200


def clients_for(plan: Plan, cores: int | None = None) -> int:
    """``plan.clients``, or what the planned token rate needs at the highest level or rate of the load, which may be a
    ramp's start or one of its steps. At most one process less than there are cores, since processes that share a core
    make each other late."""
    if plan.clients != "auto":
        return plan.clients
    load = plan.load
    if load.peak_rate is not None:
        lengths = [a.output_tokens for a in islice(schedule(plan.workload, load, plan.seed), _LOOKED_AT)]
        rate = load.peak_rate * sum(lengths) / max(1, len(lengths))
    else:
        rate = (load.peak_concurrency or 1) * STREAM_RATE
    most = (cores or _cores()) - 1
    return max(1, min(math.ceil(rate / EVENTS_PER_PROCESS), most))


def _cores() -> int:
    """Cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
