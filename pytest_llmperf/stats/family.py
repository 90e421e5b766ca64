"""Which metrics a regression gate may judge, with what margins, and how noisy they are before a runner is known.

The figures come from simulation and from recordings of real engines (launches of vLLM on an H200, of llama.cpp on a
shared CPU). ``s0`` is the standard deviation of one launch's log value where nothing else is known; ``sd_floor`` is
the smallest that is believed, since a few launches that happen to agree prove nothing about the next one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final

from pytest_llmperf.catalog import ENGINE_FAMILIES, FAMILIES, metric
from pytest_llmperf.stats.launches import Tolerance

__all__ = ["GateRow", "default_family", "gate_row", "why_not_gateable"]


@dataclass(frozen=True, slots=True)
class GateRow:
    """What the gate assumes of one metric. Standard deviations are of log values."""

    tolerance: Tolerance
    sd_floor: float
    s0: float
    min_ok: int
    """Successful requests that every launch needs: at least ten beyond the quantile."""
    min_tokens: int = 0
    """Output tokens that every launch needs in addition."""
    primary: bool = False
    """Its noise decides whether a job is worth going on with, and its margin is never widened."""
    steady: bool = False
    """Set by configuration, not by speed (memory): it says nothing about how noisy a job is."""
    one_token_chunks: bool = False
    """Means the same in both arms only where each chunk holds one token: the caller leaves it out elsewhere."""


def _row(margin: float, sd_floor: float, s0: float, min_ok: int, *, min_tokens: int = 0) -> GateRow:
    return GateRow(Tolerance.of(margin / 2), sd_floor, s0, min_ok, min_tokens)


_TTFT_P50: Final = _row(0.05, 0.002, 0.020, 20)
_TTFT_P95: Final = _row(0.08, 0.004, 0.035, 200)
_TTFT_P99: Final = _row(0.15, 0.008, 0.070, 1000)
_TPOT_MEAN: Final = _row(0.05, 0.001, 0.020, 20)
_THROUGHPUT: Final = _row(0.05, 0.001, 0.020, 20)
_GOODPUT: Final = _row(0.05, 0.003, 0.030, 50)
_MEMORY: Final = replace(_row(0.02, 0.0005, 0.002, 1), steady=True)
_READY: Final = _row(0.20, 0.005, 0.050, 1)

_ROWS: Final[dict[str, GateRow]] = {
    "ttft_p50": replace(_TTFT_P50, primary=True),
    "tpot_mean": replace(_TPOT_MEAN, primary=True),
    "tpot_p50": _TPOT_MEAN,
    "tpot_p95": _row(0.05, 0.002, 0.020, 200),
    "icl_p50": replace(_row(0.02, 0.0005, 0.004, 20), one_token_chunks=True),
    "icl_p99": _row(0.10, 0.004, 0.035, 200, min_tokens=10_000),
    "output_throughput": replace(_THROUGHPUT, primary=True),
    "total_throughput": _THROUGHPUT,
    "request_throughput": _THROUGHPUT,
    "goodput": _GOODPUT,
    "goodput_share": _GOODPUT,
    "peak_memory": _MEMORY,
    "startup_memory": _MEMORY,
    "kv_capacity_tokens": _MEMORY,
    "time_to_ready": _READY,
    "compile_time": _READY,
    "energy_per_mtok": _row(0.05, 0.002, 0.020, 20),
    "cpu_seconds_per_mtok": _row(0.10, 0.002, 0.035, 20),
}
_BY_STATISTIC: Final[dict[str, GateRow]] = {
    "mean": _TTFT_P50,
    "p50": _TTFT_P50,
    "p90": _TTFT_P95,
    "p95": _TTFT_P95,
    "p99": _TTFT_P99,
}
"""Latencies without a row of their own."""

_RATIO: Final = "its relative change is not a measure of harm; set a limit with sla or expects"
_WHY_NOT: Final[dict[str, str]] = {
    "error_rate": "errors are judged apart from the family: more than 1 % failed in two launches is FAIL",
    "cost_per_mtok": "it follows from output_throughput; gate that",
    "time_to_ready_cold": "it is measured once per arm; set a limit with sla",
    "memory_growth": "it lies near 0, where relative changes mean nothing; set a limit with sla",
}


@lru_cache(maxsize=512)
def gate_row(name: str) -> GateRow | None:
    """The row of a metric; None where it cannot be gated. Raises KeyError for a name that the catalog does not know."""
    entry = metric(name)
    in_buckets = entry.family.name in ENGINE_FAMILIES and entry.quantile is not None
    if name in _ROWS or entry.family.name not in FAMILIES or in_buckets:
        return _ROWS.get(name)
    return _BY_STATISTIC.get(name.removeprefix(f"{entry.family.name}_"))


def why_not_gateable(name: str) -> str:
    """For a metric without a row: why, and what to do instead. Raises KeyError for an unknown name."""
    family = metric(name).family.name
    if family in ENGINE_FAMILIES:
        return f"the engine tells only which of its buckets it lies in, and no change inside one; gate {family}_mean"
    if family in FAMILIES:
        return f"the noise of this percentile is not known; gate {family}_p50, _p90, _p95, _p99 or _mean"
    return _WHY_NOT.get(name, _RATIO)


def default_family(*, cpu_engine: bool, ok_requests: int) -> tuple[str, ...]:
    """The metrics gated where a test names none. ``ok_requests``: of the launch that has the fewest.

    On a shared CPU every time is noisy and CPU seconds per token are not, so they join the family there.
    """
    family = ["ttft_p50", "tpot_mean", "output_throughput", "peak_memory"]
    if ok_requests >= _TTFT_P95.min_ok:
        family.append("ttft_p95")
    if cpu_engine:
        family.append("cpu_seconds_per_mtok")
    return tuple(family)
