"""What launches showed until they were ready, as metrics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from pytest_llmperf.catalog import metric
from pytest_llmperf.samples import StartUp
from pytest_llmperf.stats.value import MetricValue
from pytest_llmperf.units import format_quantity

__all__ = ["START_METRICS", "WHOLE_GPUS", "start_values", "unseen_start"]

WHOLE_GPUS: Final = "whole-gpus"
"""Source of a memory that is that of GPUs, not that of the server's processes."""
_WARM_CACHES: Final = "warm-caches"
"""Source of a time of compilation in which little was compiled."""
START_METRICS: Final = ("time_to_ready", "time_to_ready_cold", "compile_time", "startup_memory")
"""Of a launch, and of no single load on it."""


def start_values(starts: Sequence[StartUp]) -> dict[str, MetricValue]:
    """Means over the launches that tell. What no launch tells is absent.

    Time to ready with warm and with cold caches apart; compilation of cold launches, memory until ready of warm ones,
    of all where there are no such; KV capacity of all. Compilation with warm caches, which read what was compiled, has
    a source of its own. Memory of whole GPUs is none of the server's processes: where launches told both, that of the
    processes."""
    warm = [start for start in starts if not start.cold]
    measured = [start for start in warm or starts if start.memory_bytes is not None]
    whole = bool(measured) and all(start.whole_gpus for start in measured)
    told: dict[str, list[float | None]] = {
        "time_to_ready": [start.time_to_ready_s for start in warm],
        "time_to_ready_cold": [start.time_to_ready_s for start in starts if start.cold],
        "compile_time": [start.compile_s for start in starts if start.cold] or [start.compile_s for start in starts],
        "startup_memory": [start.memory_bytes for start in measured if start.whole_gpus is whole],
        "kv_capacity_tokens": [start.kv_capacity_tokens for start in starts],
    }
    values = {name: [value for value in found if value is not None] for name, found in told.items()}
    found = {name: MetricValue(metric(name), sum(v) / len(v), len(v)) for name, v in values.items() if v}
    if "compile_time" in found and len(warm) == len(starts):
        found["compile_time"] = replace(found["compile_time"], source=_WARM_CACHES)
    if whole:
        found["startup_memory"] = replace(found["startup_memory"], source=WHOLE_GPUS)
    return found


def unseen_start(name: str, starts: Sequence[StartUp], *, memory: str, cache: str) -> MetricValue:
    """One of ``START_METRICS`` that no launch tells, with the reason.

    ``memory``: where the server's processes are, that their memory was not seen; ``cache``: the folder of its compile
    caches, empty where none is known."""
    times = [start.time_to_ready_s for start in starts if start.time_to_ready_s is not None]
    took = ", ".join(format_quantity(time, "s") for time in times)
    whose = "this launch's" if len(times) == 1 else "all launches'"
    if not times:
        why = "the server was running already: its start was not seen"
    elif name == "time_to_ready":
        why = f"{whose} compile caches were cold: {took} is time_to_ready_cold; run it again"
    elif name == "time_to_ready_cold" and cache:
        why = f"{whose} compile caches were warm: {took} is time_to_ready; without the folder {cache} it is cold"
    elif name == "time_to_ready_cold":
        why = f"no compile caches of this server are known here: {took} is time_to_ready"
    elif name == "compile_time":
        why = "the server's log does not tell how long it compiled"
    else:
        why = f"the memory of the server's processes was not seen while it started: {memory}"
    return MetricValue(metric(name), None, 0, why)
