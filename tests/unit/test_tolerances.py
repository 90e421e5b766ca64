"""Tolerated changes as written: what they mean to the gate, and how markers of several levels add up."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_llmperf.errors import MarkerError
from pytest_llmperf.plan import Regression, ToleratedChange
from pytest_llmperf.tolerances import read_regression


def change(written: Any) -> ToleratedChange:
    found = read_regression([{"ttft_p50": written}])
    assert found is not None
    assert found.metrics is None
    return found.tolerances["ttft_p50"]


@given(st.floats(0.001, 100))
def test_a_plain_tolerance_rules_out_twice_as_much_and_fails_from_half_of_that(percent: float) -> None:
    """M = 2T, L = log(1 + M), floor L / 2: the definition of a tolerance."""
    found = change(f"{percent!r} %")
    assert math.log1p(found.limit) == pytest.approx(math.log(1 + 2 * percent / 100), rel=1e-12)
    assert math.log1p(found.floor) == pytest.approx(math.log(1 + 2 * percent / 100) / 2, rel=1e-9)
    assert found.floor < percent / 100 * (1 + 1e-12)  # "about T", from below
    assert ToleratedChange.model_validate_json(found.model_dump_json()) == found


@pytest.mark.parametrize("written", ["3 %..5 %", "3%..5%", "0.03 .. 5 %", " 3 % ..  0.05"])
def test_a_range_gives_both_ends_as_they_are(written: str) -> None:
    assert change(written) == ToleratedChange(floor=0.03, limit=0.05, written=written)


def test_a_bare_ratio_is_a_share() -> None:
    assert change(0.03).limit == change("3 %").limit
    assert change(0.03).written == "0.03"


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("3 ms", "'3 ms' has the unknown unit 'ms'; allowed here: a bare number, %; write e.g. '3 %', or '3 %..5 %'"),
        ("three", "'three' is not a quantity"),
        (None, "None is not a quantity"),
        ([3, 5], "[3, 5] is not a quantity"),
        (True, "True is not a quantity"),
        ("-3 %", "'-3 %' is negative"),
        ("0 %", "'0 %' tolerates nothing"),
        (0, "0 tolerates nothing"),
        ("0 %..3 %", "'0 %..3 %' tolerates nothing"),
        (3, "3 would be 300 %; write e.g. '3 %'"),
        (1, "1 would be 100 %; write e.g. '3 %'"),
        ("1", "'1' would be 100 %"),
        ("3", "'3' would be 300 %"),
        ("120 %", "'120 %' is more than 100 %; write e.g. '3 %'"),
        ("5 %..3 %", "'5 %..3 %' is reversed: the smaller change comes first"),
        ("3..5 %", "'3..5 %' would be 300 %"),
        ("3 %..", "'' is not a quantity"),
        ("1 %..2 %..3 %", "'2 %..3 %' is not a quantity"),
        ("nan %", "'nan %' is not a quantity"),
        ("1e999 %", "is not a finite number"),
    ],
)
def test_a_bad_tolerance_names_the_value_and_what_would_be_right(written: Any, expected: str) -> None:
    with pytest.raises(MarkerError) as caught:
        change(written)
    assert str(caught.value).startswith("@pytest.mark.regression(ttft_p50=...): ")
    assert expected in caught.value.problem


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"ttft_95": "3 %"}, "(ttft_95=...): unknown metric 'ttft_95'; did you mean 'ttft_p95'?"),
        ({"ttft": "3 %"}, "'ttft' needs a statistic; did you mean 'ttft_p95' or 'ttft_mean'?"),
        ({"metric": ["ttft_p50"]}, "(metric=...): unknown metric 'metric'; did you mean 'metrics'?"),
        ({"metrics": []}, "(metrics=...): [] is not a list such as"),
        ({"metrics": "ttft_p50"}, "(metrics=...): 'ttft_p50' is not a list such as"),
        ({"metrics": [5]}, "(metrics=...): 5 is not the name of a metric"),
        ({"metrics": ["tpot_men"]}, "(metrics=...): unknown metric 'tpot_men'; did you mean 'tpot_mean'?"),
        ({"metrics": ["ttft_p50", "ttft_p50"]}, "(metrics=...): 'ttft_p50' is listed twice"),
        ({"metrics": ["tpot_mean"], "ttft_p50": "3 %"}, "(ttft_p50=...): has a tolerance, but is not in metrics="),
    ],
)
def test_a_bad_family_names_the_nearest_valid_spelling(arguments: dict[str, Any], expected: str) -> None:
    with pytest.raises(MarkerError) as caught:
        read_regression([arguments])
    assert expected in str(caught.value)


@pytest.mark.parametrize(
    "name",
    [
        "prefix_hit_rate", "preemptions", "kv_usage_p95", "mbu", "mfu", "acceptance_length", "scaling_efficiency",
        "cost_per_mtok", "memory_growth", "error_rate", "time_to_ready_cold", "ttft_p42",
        "queue_wait_p95", "prefill_time_p50",
    ],
)  # fmt: skip
def test_what_cannot_be_gated_is_refused_with_the_reason_and_the_way_out(name: str) -> None:
    for arguments in ({name: "3 %"}, {"metrics": [name]}):
        with pytest.raises(MarkerError) as caught:
            read_regression([arguments])
        problem = caught.value.problem
        assert problem.startswith(f"{name} cannot be gated: ")
        assert "sla" in problem


@pytest.mark.parametrize(
    "name",
    [
        "ttft_p50",
        "queue_wait_mean",
        "ttfb_p99",
        "e2e_mean",
        "icl_p50",
        "goodput",
        "peak_memory",
        "compile_time",
        "energy_per_mtok",
    ],
)
def test_what_can_be_gated_is_taken(name: str) -> None:
    assert read_regression([{name: "3 %"}]) is not None


def test_no_marker_asks_for_nothing_and_an_empty_one_for_the_defaults() -> None:
    assert read_regression([]) is None
    assert read_regression([{}]) == Regression()


def test_the_closest_tolerance_of_a_metric_wins() -> None:
    found = read_regression([{"ttft_p50": "3 %", "tpot_mean": "4 %"}, {"ttft_p50": "5 %"}])
    assert found is not None
    assert {name: each.written for name, each in found.tolerances.items()} == {"ttft_p50": "5 %", "tpot_mean": "4 %"}


def test_a_closer_family_drops_what_is_outside_of_it_and_a_closer_metric_joins_it() -> None:
    far, near = {"ttft_p50": "3 %", "tpot_mean": "4 %"}, {"metrics": ["tpot_mean"]}
    found = read_regression([far, near])
    assert found is not None
    assert (found.metrics, list(found.tolerances)) == (("tpot_mean",), ["tpot_mean"])
    joined = read_regression([far, near, {"peak_memory": "1 %"}])
    assert joined is not None
    assert (joined.metrics, list(joined.tolerances)) == (("tpot_mean", "peak_memory"), ["tpot_mean", "peak_memory"])
