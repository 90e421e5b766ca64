"""``expects=``: what is written, what it means, and what becomes of it."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_llmperf.catalog import METRICS, metric
from pytest_llmperf.errors import MarkerError
from pytest_llmperf.expectations import read_expects
from pytest_llmperf.gate import Check, judge
from pytest_llmperf.plan import Expectation
from pytest_llmperf.stats.value import MetricValue
from pytest_llmperf.units import DIMENSIONS

OPERATORS = (">", ">=", "<", "<=", "==", "!=")


def judged(written: str, found: MetricValue | None) -> Check:
    (expected,) = read_expects([written])
    measured = {} if found is None else {expected.metric: found}
    verdict = judge([], measured, invalid=(), ok=100, failed=0, expects=[expected])
    (check,) = verdict.checks
    assert (check.kind, check.metric, check.verdict) == ("expects", expected.metric, verdict.name)
    return check


@given(
    st.sampled_from(sorted(METRICS)),
    st.sampled_from(OPERATORS),
    st.floats(0.001, 0.999),
    st.floats(0, 2),
    st.sampled_from(["", " ", "  "]),
    st.data(),
)
def test_every_metric_operator_and_unit_is_read_as_python_reads_it(
    name: str, operator: str, number: float, value: float, space: str, data: st.DataObject
) -> None:
    unit, factor = data.draw(st.sampled_from(sorted(DIMENSIONS[metric(name).unit].items())))
    written = f"{name}{space}{operator}{space}{number!r} {unit}"
    check = judged(written, MetricValue(metric(name), value, 10))
    limit = number * factor
    assert check.limit == pytest.approx(limit)
    truth = {">": value > limit, ">=": value >= limit, "<": value < limit, "<=": value <= limit,
             "==": value == limit, "!=": value != limit}[operator]  # fmt: skip
    assert check.verdict == ("PASS" if truth else "INVALID")


def test_the_texts_of_the_manual() -> None:
    assert read_expects(["prefix_hit_rate > 0.5", "preemptions==0", "acceptance_length  >  1.5"]) == (
        Expectation(metric="prefix_hit_rate", operator=">", limit=0.5, written="prefix_hit_rate > 0.5"),
        Expectation(metric="preemptions", operator="==", limit=0, written="preemptions==0"),
        Expectation(metric="acceptance_length", operator=">", limit=1.5, written="acceptance_length > 1.5"),
    )
    assert read_expects(None) == read_expects([]) == ()
    assert read_expects(["memory_growth < -5 kB/s"])[0].limit == -5000


@pytest.mark.parametrize(
    ("given_", "expected"),
    [
        ("preemptions == 0", "'preemptions == 0' is not a list; write e.g. ['prefix_hit_rate > 0.5'"),
        (["preemptions"], "'preemptions' is not a metric, an operator and a quantity; write e.g."),
        ([5], "5 is not a metric, an operator and a quantity"),
        (["preemptions = 0"], "'preemptions = 0' has the unknown operator '='; known: >, >=, <, <=, ==, !="),
        (["preemptions <> 0"], "has the unknown operator '<>'"),
        (["prefix_hitrate > 0.5"], "unknown metric 'prefix_hitrate'; did you mean 'prefix_hit_rate'?"),
        (["ttft < 5 s"], "'ttft' needs a statistic; did you mean 'ttft_p95' or 'ttft_mean'?"),
        (["ttft_p95 < 5"], "'5' has no unit; allowed here: us, ms, s, min, h"),
        (["ttft_p95 < "], "'' is not a quantity; write e.g. '500 ms'"),
        (["prefix_hit_rate > 50"], "prefix_hit_rate is from 0 to 1 (100 %)"),
        (["preemptions != -1"], "preemptions is from 0 to infinity"),
        (["preemptions >= 0"], "'preemptions >= 0' always holds: it expects nothing"),
        (["prefix_hit_rate <= 100 %"], "always holds: it expects nothing"),
        (["preemptions < 0"], "'preemptions < 0' can never hold"),
        (["prefix_hit_rate > 1"], "can never hold"),
    ],
)
def test_a_bad_expectation_names_the_value_and_what_would_be_right(given_: Any, expected: str) -> None:
    with pytest.raises(MarkerError) as caught:
        read_expects(given_)
    assert str(caught.value).startswith("@pytest.mark.llmperf(expects=...): ")
    assert expected in caught.value.problem


def test_unmet_says_that_the_feature_was_not_exercised() -> None:
    check = judged("prefix_hit_rate > 0.5", MetricValue(metric("prefix_hit_rate"), 0.12, 10))
    assert check.verdict == "INVALID"
    assert check.reason == ("did not exercise what it is meant to: expects prefix_hit_rate > 0.5, and it is 12.0 %")
    assert judged("prefix_hit_rate > 0.1", MetricValue(metric("prefix_hit_rate"), 0.12, 10)).verdict == "PASS"


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (None, "preemptions is not measured: nothing in this run measures it"),
        (MetricValue(metric("preemptions"), None, 0, "no such counter"), "is not measured: no such counter"),
        (MetricValue(metric("preemptions"), None, 0, invalid="two servers"), "preemptions is invalid: two servers"),
        (MetricValue(metric("preemptions"), 0.0, 9, "most are silent", untold=0.9), "known for 10 % of the requests"),
    ],
)
def test_what_cannot_be_told_is_invalid_and_never_met(found: MetricValue | None, expected: str) -> None:
    check = judged("preemptions == 0", found)
    assert (check.verdict, check.value) == ("INVALID", None)
    assert check.reason.startswith("expects preemptions == 0, and ")
    assert expected in check.reason


def test_a_percentile_among_failed_requests_is_beyond_every_time() -> None:
    found = MetricValue(metric("ttft_p95"), None, 20, "1 of 20 failed", (0.1,) * 10 + (math.inf,) * 10)
    assert judged("ttft_p95 < 5 s", found).verdict == "INVALID"
    assert judged("ttft_p95 > 5 s", found).verdict == "PASS"
    assert judged("ttft_p95 > 5 s", found).value is None


def test_an_unmet_expectation_outranks_a_missed_limit_and_every_pass() -> None:
    (expected,) = read_expects(["preemptions == 0"])
    found = {"preemptions": MetricValue(metric("preemptions"), 3.0, 1)}
    verdict = judge([], found, invalid=(), ok=50, failed=50, expects=[expected])
    assert [check.verdict for check in verdict.checks] == ["INVALID", "FAIL"]
    assert verdict.name == "INVALID"


@pytest.mark.parametrize(
    ("written", "met"),
    [
        ("> 300 ms", True), (">= 300 ms", True), ("> 400 ms", False), ("<= 500 ms", True), ("< 500 ms", False),
        ("< 600 ms", True), ("<= 400 ms", False), ("== 400 ms", False), ("!= 400 ms", False), ("!= 300 ms", True),
        ("!= 500 ms", False), ("!= 600 ms", True),
    ],
)  # fmt: skip
def test_what_is_known_by_its_bucket_alone_is_met_only_for_sure(written: str, met: bool) -> None:
    found = MetricValue(metric("queue_wait_p95"), 0.4, 20, lower=0.3, upper=0.5)
    check = judged(f"queue_wait_p95 {written}", found)
    assert check.verdict == ("PASS" if met else "INVALID")
    assert "queue_wait_p95 is 300 ms..500 ms by the engine's buckets" in check.reason
