"""The metric table: every name that markers, reports, baselines and the command line may use, and no other.

A latency family name takes a statistic suffix: ``ttft_mean``, ``ttft_p95``, ``ttft_p99_9`` (the 99.9th percentile).
Definitions are numbered; a value without the same definition id is not comparable.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Literal, get_args

from pytest_llmperf.errors import nearest

__all__ = ["ENGINE_FAMILIES", "FAMILIES", "METRICS", "UNMEASURED", "Family", "Metric", "metric"]

Better = Literal["lower", "higher"]


@dataclass(frozen=True, slots=True)
class Family:
    """What a metric measures, before a statistic is taken of it."""

    name: str
    unit: str
    better: Better
    definition: str
    """Stable id of the definition that is applied, e.g. ``ttft/1``."""
    meaning: str


@dataclass(frozen=True, slots=True)
class Metric:
    """One reportable number: a family, and for per-request families a statistic over the requests."""

    name: str
    family: Family
    quantile: float | None = None
    """In (0, 1) for a percentile; None for a mean or a scalar."""

    @property
    def unit(self) -> str:
        return self.family.unit

    @property
    def better(self) -> Better:
        return self.family.better

    @property
    def definition(self) -> str:
        return self.family.definition


def _family(name: str, unit: str, better: Better, meaning: str) -> Family:
    return Family(name, unit, better, f"{name}/1", meaning)


FAMILIES: Final[dict[str, Family]] = {
    family.name: family
    for family in (
        _family("ttft", "s", "lower", "send (open loop: schedule) to the first chunk bearing output"),
        _family("ttfb", "s", "lower", "send (open loop: schedule) to the first byte of the response"),
        _family("ttfot", "s", "lower", "send (open loop: schedule) to the first output that is not reasoning"),
        _family("tpot", "s", "lower", "(last - first output chunk) / (output tokens - tokens in the first chunk)"),
        _family("icl", "s", "lower", "gap between successive output-bearing chunks, all requests pooled"),
        _family("itl", "s", "lower", "chunk gap / tokens in the chunk, where the server counts them; pooled by token"),
        _family("e2e", "s", "lower", "send (open loop: schedule) to the last output-bearing chunk"),
        _family("queue_wait", "s", "lower", "waiting time as the engine states it"),
        _family("prefill_time", "s", "lower", "prefill time as the engine states it"),
        _family("connect_time", "s", "lower", "opening the connection, TLS included"),
    )
}
"""Per-request families: they take ``_mean`` or ``_pNN``."""

EngineFamily = Literal["queue_wait", "prefill_time"]
ENGINE_FAMILIES: Final[tuple[EngineFamily, ...]] = get_args(EngineFamily)
"""Those that only the engine states, in a histogram: a percentile is known by its bucket, a mean is exact, and no
single request has a value."""

_SCALARS: Final[tuple[Family, ...]] = (
    _family("output_throughput", "tok/s", "higher", "output tokens credited by time stamp in the window / window"),
    _family("total_throughput", "tok/s", "higher", "output tokens plus prompt tokens of requests begun / window"),
    _family("request_throughput", "req/s", "higher", "requests finished well in the window / window"),
    _family("goodput", "req/s", "higher", "requests that meet every per-request limit / window"),
    _family("goodput_share", "ratio", "higher", "requests that meet every per-request limit / attempted"),
    _family("error_rate", "ratio", "lower", "failed / attempted, requests cut by us excluded"),
    _family("peak_memory", "B", "lower", "largest memory of the server's processes while the load ran"),
    _family("startup_memory", "B", "lower", "largest memory of the server's processes until it was ready"),
    _family("memory_growth", "B/s", "lower", "slope of the server's memory while the load ran"),
    _family("kv_capacity_tokens", "tok", "higher", "tokens that the KV cache holds"),
    _family("prefix_hit_rate", "ratio", "higher", "prompt tokens found in the prefix cache / prompt tokens"),
    _family("kv_usage_p95", "ratio", "lower", "95th percentile of KV cache usage while the load ran"),
    _family("preemptions", "count", "lower", "requests preempted while the load ran"),
    _family("time_to_ready", "s", "lower", "start of the server to ready, compile caches warm"),
    _family("time_to_ready_cold", "s", "lower", "start of the server to ready, compile caches cold"),
    _family("compile_time", "s", "lower", "compilation as the engine's log states it"),
    _family("energy_per_mtok", "J", "lower", "GPU energy per million output tokens"),
    _family("cpu_seconds_per_mtok", "s", "lower", "CPU time of the server's processes per million output tokens"),
    _family("cost_per_mtok", "USD", "lower", "price per million output tokens"),
    _family("mbu", "ratio", "higher", "achieved / peak memory bandwidth"),
    _family("mfu", "ratio", "higher", "achieved / peak FLOP rate"),
    _family("scaling_efficiency", "ratio", "higher", "speed-up / number of GPUs"),
    _family("acceptance_length", "ratio", "higher", "tokens per verification step of speculative decoding"),
)

UNMEASURED: Final = ("mbu", "mfu", "scaling_efficiency")
"""Names that are kept for what no part of this version measures."""

METRICS: Final[dict[str, Metric]] = {
    **{family.name: Metric(family.name, family) for family in _SCALARS},
    **{
        f"{name}_{statistic}": Metric(f"{name}_{statistic}", family, quantile)
        for name, family in FAMILIES.items()
        for statistic, quantile in (("mean", None), ("p50", 0.5), ("p90", 0.9), ("p95", 0.95), ("p99", 0.99))
    },
}
"""Every metric that reports print; ``metric()`` also knows other percentiles of the per-request families."""

_PERCENTILE: Final = re.compile(r"(?P<family>[a-z0-9]+(?:_[a-z]+)*)_p(?P<whole>\d\d)(?:_(?P<fraction>\d+))?\Z")


def metric(name: str) -> Metric:
    """The metric called ``name``. Raises KeyError whose text names the nearest valid spelling."""
    known = METRICS.get(name)
    if known is not None:
        return known
    match = _PERCENTILE.match(name)
    if match and match["family"] in FAMILIES:
        quantile = float(f"{match['whole']}.{match['fraction'] or 0}") / 100
        if 0 < quantile < 1:
            return Metric(name, FAMILIES[match["family"]], quantile)
    if name in FAMILIES:
        raise KeyError(f"{name!r} needs a statistic; did you mean '{name}_p95' or '{name}_mean'?")
    if re.fullmatch(rf"({'|'.join(FAMILIES)})_p\d+(_\d+)?", name):
        raise KeyError(f"{name!r} is not a percentile; write p01 to p99, or e.g. '{name.partition('_p')[0]}_p99_9'")
    raise KeyError(f"unknown metric {name!r}{nearest(name, tuple(METRICS))}")
