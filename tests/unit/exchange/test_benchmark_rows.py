"""Rows for pytest-benchmark: which, with what values, and statistics checked against that plugin's own."""

from __future__ import annotations

import json
import statistics

import compared
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pytest_benchmark.stats import Stats

from pytest_llmperf.exchange.benchmark import Row, document, launch_values, rows_of
from pytest_llmperf.result import MetricReport, TestReport, ValidityReport


def change(test: TestReport, launch: int, **metrics: float | None) -> TestReport:
    """``test`` with other values in one launch."""
    trials = list(test.trials)
    found = trials[launch].metrics | {
        name: trials[launch].metrics[name].model_copy(update={"value": value}) for name, value in metrics.items()
    }
    trials[launch] = trials[launch].model_copy(update={"metrics": found})
    return test.model_copy(update={"trials": tuple(trials)})


def rows(test: TestReport) -> dict[str, Row]:
    return {row.group: row for row in rows_of(test)}


MEASURED = compared.with_launches(compared.accepted(), (100, 110, 130))


def test_a_row_has_one_value_per_launch_of_the_candidate() -> None:
    baseline = compared.with_launches(MEASURED, (50, 50), arm="baseline").trials
    both = MEASURED.model_copy(update={"trials": (*MEASURED.trials, *baseline)})
    assert rows(both)["ttft_p50"].values == pytest.approx((0.1, 0.11, 0.13))
    assert rows(both)["tpot_mean"].values == pytest.approx((0.02, 0.02, 0.02))


def test_replays_of_a_launch_are_one_value() -> None:
    trials = (MEASURED.trials[0], MEASURED.trials[1].model_copy(update={"launch": 0, "replay": 1}), MEASURED.trials[2])
    assert rows(MEASURED.model_copy(update={"trials": trials}))["ttft_p50"].values == pytest.approx((0.105, 0.13))


def test_names_hold_node_id_and_metric_and_nothing_that_an_upgrade_changes() -> None:
    row = rows(MEASURED)["ttft_p50"]
    assert (row.fullname, row.group, row.param) == ("perf/test_chat.py::test_chat[16]/ttft_p50", "ttft_p50", "16")
    assert row.name == "test_chat[16]/ttft_p50"
    identity = MEASURED.identity
    assert identity is not None
    version = identity.input["version"].model_copy(update={"value": "0.34.0"})
    upgraded = MEASURED.model_copy(
        update={"identity": identity.model_copy(update={"input": {**identity.input, "version": version}})}
    )
    assert {r.fullname for r in rows_of(upgraded)} == {r.fullname for r in rows_of(MEASURED)}
    assert rows(upgraded)["ttft_p50"].extra_info["llmperf"]["version"] == "0.34.0"
    odd = rows(MEASURED.model_copy(update={"nodeid": "a.py::test_x[m::n]"}))["ttft_p50"]
    assert (odd.name, odd.param) == ("test_x[m::n]/ttft_p50", "m::n")


def test_a_rate_is_stored_as_seconds_per_token_so_that_operations_per_second_are_the_rate() -> None:
    row = rows(change(change(change(MEASURED, 0, output_throughput=1000), 1, output_throughput=1000), 2,
                      output_throughput=500))["output_throughput"]  # fmt: skip
    assert row.values == pytest.approx((0.001, 0.001, 0.002))
    assert row.extra_info["llmperf"]["launches"] == [1000, 1000, 500]
    assert (row.extra_info["llmperf"]["unit"], row.extra_info["llmperf"]["better"]) == ("tok/s", "higher")


def test_what_is_no_time_is_in_the_extra_information_and_nowhere_else() -> None:
    assert "error_rate" not in rows(MEASURED)
    others = rows(MEASURED)["ttft_p50"].extra_info["llmperf"]["others"]
    assert others["error_rate"] == {"unit": "ratio", "launches": [0, 0, 0]}
    assert others["goodput_share"]["unit"] == "ratio"


@pytest.mark.parametrize("value", [None, 0.0])
def test_a_launch_without_a_value_or_with_zero_takes_its_row_away(value: float | None) -> None:
    """pytest-benchmark breaks on NaN and takes a change from zero for infinite."""
    changed = rows(change(MEASURED, 1, ttft_p50=value))
    assert "ttft_p50" not in changed
    info = changed["tpot_mean"].extra_info["llmperf"]
    assert info["others"]["ttft_p50"]["launches"] == pytest.approx([0.1, value, 0.13])


def test_no_number_of_an_invalid_trial_or_metric_gets_out() -> None:
    trial = MEASURED.trials[0].model_copy(update={"validity": ValidityReport(valid=False, reasons=("client lag",))})
    broken = MEASURED.model_copy(update={"trials": (trial,)})
    assert rows_of(broken) == ()
    fault = MetricReport(value=0.1, unit="s", n=1, definition="ttft/1", invalid="why")
    trial = MEASURED.trials[0].model_copy(update={"metrics": MEASURED.trials[0].metrics | {"ttft_p50": fault}})
    assert launch_values(MEASURED.model_copy(update={"trials": (trial,)}))["ttft_p50"] == (None,)


def test_rows_of_a_test_that_did_not_pass_are_marked_and_not_stored() -> None:
    failed = compared.with_launches(compared.regressed(), (100, 110))
    assert all(row.has_error for row in rows_of(failed))
    assert not any(row.has_error for row in rows_of(MEASURED))
    stored = document([*rows_of(failed), *rows_of(MEASURED)], machine_info={}, commit_info={}, created="")
    assert {row["fullname"].partition("[")[0] for row in stored["benchmarks"]} == {"perf/test_chat.py::test_chat"}


def test_the_comparison_is_told_with_its_interval() -> None:
    told = rows(MEASURED)["tpot_mean"].extra_info["llmperf"]["comparison"]
    assert (told["verdict"], told["allowed"], told["change_low"]) == ("PASS", 0.03, -0.006)


def test_a_test_that_measured_nothing_has_no_rows() -> None:
    assert rows_of(MEASURED.model_copy(update={"trials": (), "metrics": {}})) == ()


@given(st.lists(st.floats(1e-6, 1e3), min_size=1, max_size=12))
def test_statistics_are_those_of_pytest_benchmark(values: list[float]) -> None:
    theirs = Stats()
    for value in values:
        theirs.update(value)
    row = Row("n", "f", "g", None, tuple(values), has_error=False)
    (made,) = document([row], machine_info={}, commit_info={}, created="")["benchmarks"]
    stats = made["stats"]
    expected = theirs.as_dict()
    assert stats.keys() == expected.keys() | {"data", "iterations"}
    for name in ("min", "max", "mean", "stddev", "rounds", "median", "q1", "q3", "ops", "total"):
        assert stats[name] == pytest.approx(expected[name]), name
    assert stats["iqr"] == pytest.approx(expected["iqr"], abs=1e-9)
    assert stats["data"] == values


def test_outliers_are_counted_as_by_pytest_benchmark() -> None:
    for values in ([1.0, 1.1, 1.2, 1.3, 9.0], [0.1, 5.0, 5.1, 5.2, 5.3, 5.4], [2.0], [1.0, 3.0]):
        theirs = Stats()
        theirs.data = values
        (made,) = document(
            [Row("n", "f", "g", None, tuple(values), False)], machine_info={}, commit_info={}, created=""
        )["benchmarks"]
        assert made["stats"]["outliers"] == theirs.outliers
        assert (made["stats"]["ld15iqr"], made["stats"]["hd15iqr"]) == (theirs.ld15iqr, theirs.hd15iqr)


def test_the_file_is_plain_json() -> None:
    content = document(rows_of(MEASURED), machine_info={}, commit_info={}, created="2027-01-02T03:04:05+00:00")
    again = json.loads(json.dumps(content, allow_nan=False))
    assert again.keys() == {"machine_info", "commit_info", "benchmarks", "datetime", "version"}
    assert statistics.fmean(again["benchmarks"][0]["stats"]["data"]) == pytest.approx((0.1 + 0.11 + 0.13) / 3)
