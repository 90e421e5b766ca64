from __future__ import annotations

import pytest

from pytest_llmperf.catalog import FAMILIES, METRICS, metric
from pytest_llmperf.units import DIMENSIONS

# product.md, "Metric names": these and no others.
PER_REQUEST = ["ttft", "ttfb", "ttfot", "tpot", "icl", "itl", "e2e", "queue_wait", "prefill_time", "connect_time"]
SCALARS = [
    "output_throughput",
    "total_throughput",
    "request_throughput",
    "goodput",
    "goodput_share",
    "error_rate",
    "peak_memory",
    "startup_memory",
    "memory_growth",
    "kv_capacity_tokens",
    "prefix_hit_rate",
    "kv_usage_p95",
    "preemptions",
    "time_to_ready",
    "time_to_ready_cold",
    "compile_time",
    "energy_per_mtok",
    "cpu_seconds_per_mtok",
    "cost_per_mtok",
    "mbu",
    "mfu",
    "scaling_efficiency",
    "acceptance_length",
]
HIGHER = [
    "output_throughput",
    "total_throughput",
    "request_throughput",
    "goodput",
    "goodput_share",
    "kv_capacity_tokens",
    "prefix_hit_rate",
    "mbu",
    "mfu",
    "scaling_efficiency",
    "acceptance_length",
]


def test_the_names_are_those_of_the_product_and_no_others() -> None:
    statistics = ("mean", "p50", "p90", "p95", "p99")
    assert set(METRICS) == {f"{name}_{s}" for name in PER_REQUEST for s in statistics} | set(SCALARS)


def test_directions_are_those_of_the_product() -> None:
    assert {name for name, entry in METRICS.items() if entry.better == "higher"} == set(HIGHER)


def test_every_metric_has_a_known_unit_and_a_numbered_definition() -> None:
    for entry in METRICS.values():
        assert entry.unit in DIMENSIONS
        assert entry.definition == f"{entry.family.name}/1"
        assert entry.family.meaning


@pytest.mark.parametrize(
    ("name", "quantile"), [("ttft_p95", 0.95), ("ttft_p99_9", 0.999), ("e2e_p05", 0.05), ("queue_wait_p75", 0.75)]
)
def test_any_percentile_of_a_family_is_a_metric(name: str, quantile: float) -> None:
    assert metric(name).quantile == pytest.approx(quantile)
    assert metric(name).name == name


def test_a_scalar_that_ends_like_a_percentile_has_no_quantile() -> None:
    assert metric("kv_usage_p95").quantile is None


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("tftt_p95", "did you mean 'ttft_p95'"),
        ("ttft", "did you mean 'ttft_p95' or 'ttft_mean'"),
        ("throughput", "did you mean"),
        ("ttft_p00", "is not a percentile"),
        ("ttft_p100", "write p01 to p99"),
        ("output_throughput_p95", "unknown metric"),
        ("", "unknown metric"),
    ],
)
def test_an_unknown_name_is_refused_with_the_nearest_one(name: str, hint: str) -> None:
    with pytest.raises(KeyError) as caught:
        metric(name)
    assert hint in str(caught.value)


def test_families_are_those_per_request() -> None:
    assert list(FAMILIES) == PER_REQUEST
