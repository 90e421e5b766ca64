"""What launches showed until they were ready, as metrics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from pytest_llmperf.catalog import metric
from pytest_llmperf.samples import StartUp
from pytest_llmperf.stats.value import MetricValue

__all__ = ["WHOLE_GPUS", "start_values"]

WHOLE_GPUS: Final = "whole-gpus"
"""Source of a memory that is that of GPUs, not that of the server's processes."""


def start_values(starts: Sequence[StartUp]) -> dict[str, MetricValue]:
    """Means over the launches that tell. What no launch tells is absent.

    Time to ready with warm and with cold caches apart; compilation of cold launches, memory until ready of warm ones,
    of all where there are no such; KV capacity of all. Memory of whole GPUs is none of the server's processes: where
    launches told both, that of the processes."""
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
    if whole:
        found["startup_memory"] = replace(found["startup_memory"], source=WHOLE_GPUS)
    return found
