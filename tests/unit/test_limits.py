"""Limits per request: which there may be, and where they come from if none is written."""

from __future__ import annotations

from typing import Any

import pytest
from made import record

from pytest_llmperf.errors import MarkerError
from pytest_llmperf.limits import PER_REQUEST, read_slas, read_slo
from pytest_llmperf.metrics.rates import meets
from pytest_llmperf.plan import Slo


def test_without_slo_the_highest_percentile_of_each_latency_is_the_limit_per_request() -> None:
    limits = {"ttft_p50": "1 s", "ttft_p99": "3 s", "ttft_p95": "2 s", "ttfb_p90": "4 s", "e2e_mean": "9 s"}
    assert read_slo(None, read_slas([limits])) == Slo(limits={"ttft": 3.0, "ttfb": 4.0})


def test_a_percentile_of_pooled_gaps_is_no_limit_on_the_largest_gap_of_a_request() -> None:
    slas = read_slas([{"icl_p99": "50 ms", "itl_p50": "20 ms", "peak_memory": "1 GiB"}])
    assert read_slo(None, slas) is None
    assert read_slo({"icl": "50 ms"}, slas) == Slo(limits={"icl": 0.05})


@pytest.mark.parametrize("family", PER_REQUEST)
def test_every_family_that_may_be_limited_decides_about_a_request(family: str) -> None:
    """TTFT and TTFB 100 ms, gaps 10 and 30 ms, TPOT 20 ms, E2E 140 ms, connect 5 ms."""
    one = record(chunks_ms=(100, 110, 140), chunk_tokens=(1, 1, 1), connect_start_ns=-5_000_000, connected_ns=0)
    truth = {"ttft": 0.1, "ttfb": 0.1, "ttfot": 0.1, "tpot": 0.02, "icl": 0.03, "itl": 0.03, "e2e": 0.14,
             "connect_time": 0.005}  # fmt: skip
    for limit, good in ((1.001, True), (0.999, False)):
        slo = read_slo({family: f"{truth[family] * limit} s"}, ())
        assert slo is not None
        assert meets(one, slo.limits) is good


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"tfft": "1 s"}, "unknown per-request metric 'tfft'; did you mean 'ttft'?"),
        ({"queue_wait": "1 s"}, "unknown per-request metric 'queue_wait'; known: ttft, ttfb, ttfot, tpot, icl, itl"),
        ({"ttft": "0 ms"}, "ttft: '0 ms' is a limit that no request can meet"),
        ({"ttft": 1}, "ttft: 1 has no unit"),
        ({}, "{} is not a dict such as"),
        ("1 s", "'1 s' is not a dict such as"),
    ],
)
def test_a_bad_slo_names_the_value_and_what_would_be_right(given: Any, expected: str) -> None:
    with pytest.raises(MarkerError) as caught:
        read_slo(given, ())
    assert expected in str(caught.value)


def test_a_misspelt_confidence_is_not_taken_for_a_metric() -> None:
    with pytest.raises(MarkerError, match="did you mean 'confidence'"):
        read_slas([{"ttft_p95": "1 s", "confidense": 0.95}])


@pytest.mark.parametrize("name", ["queue_wait_p95", "prefill_time_p50", "queue_wait_p99_9", "kv_usage_p95", "icl_p99"])
def test_no_confidence_is_asked_of_what_has_no_values_of_requests(name: str) -> None:
    limit = "50 %" if name == "kv_usage_p95" else "1 s"
    with pytest.raises(MarkerError, match=rf"confidence=.*does not apply to {name}: .*in a marker of its own"):
        read_slas([{name: limit, "ttft_p95": "1 s", "confidence": 0.95}])
    assert read_slas([{name: limit}, {"ttft_p95": "1 s", "confidence": 0.95}])[0].confidence is None
