"""What launches showed until they were ready, as metrics."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_llmperf.catalog import metric
from pytest_llmperf.samples import StartUp
from pytest_llmperf.stats.value import MetricValue

__all__ = ["start_values"]


def start_values(starts: Sequence[StartUp]) -> dict[str, MetricValue]:
    """Means over the launches that tell. What no launch tells is absent.

    Time to ready with warm and with cold caches apart; compilation of cold launches, memory until ready of warm ones,
    of all where there are no such; KV capacity of all."""
    warm = [start for start in starts if not start.cold]
    told: dict[str, list[float | None]] = {
        "time_to_ready": [start.time_to_ready_s for start in warm],
        "time_to_ready_cold": [start.time_to_ready_s for start in starts if start.cold],
        "compile_time": [start.compile_s for start in starts if start.cold] or [start.compile_s for start in starts],
        "startup_memory": [start.memory_bytes for start in warm or starts],
        "kv_capacity_tokens": [start.kv_capacity_tokens for start in starts],
    }
    values = {name: [value for value in found if value is not None] for name, found in told.items()}
    return {name: MetricValue(metric(name), sum(v) / len(v), len(v)) for name, v in values.items() if v}
