"""Words of a comparison, the count of comparisons, and what JUnit is told."""

from __future__ import annotations

from dataclasses import replace

import compared
import pytest
import reported

from pytest_llmperf.comparisons import DifferenceReport, Forecast
from pytest_llmperf.reports.compared import (
    change_text,
    compared_line,
    count_line,
    differences,
    percent,
    sureness,
    undecided,
)
from pytest_llmperf.reports.failure import MOST_LINES, failure_message
from pytest_llmperf.reports.junit import properties
from pytest_llmperf.reports.markdown import render as markdown
from pytest_llmperf.reports.schedule import describe_campaign
from pytest_llmperf.reports.spent import spent_text
from pytest_llmperf.reports.terminal import render, render_summary
from pytest_llmperf.result import TestReport


def test_a_change_keeps_the_sign_of_its_metric_and_says_which_way_is_worse() -> None:
    assert change_text(compared.WORSE) == "+18.2 % (+15.1 … +21.4)"
    assert "+18.2 % (+15.1 … +21.4) worse, allowed 5 %" in compared_line(compared.WORSE)
    slower = compared.RATE.model_copy(update={"verdict": "FAIL", "change": -0.052, "ruled_out": None})
    assert "−5.2 % (−1.2 … +0.3) worse, allowed 2 %" in compared_line(slower)


def test_a_metric_without_a_finite_value_is_shown_as_infinite_where_it_failed_for_that() -> None:
    text = failure_message(compared.lost())
    assert text.startswith("FAIL: ttft_p50 181 ms → ∞, allowed 5 %: no finite value in 3 of 3 launches\n")
    missing = compared.entry("ttft_p50", "INCONCLUSIVE", 0.1, None, allowed=0.05)
    assert "100 ms → n/a, allowed 5 %" in compared_line(missing)


def test_memory_of_the_host_is_shown_with_its_unit() -> None:
    found = DifferenceReport(
        name="kv_offloading_size", kind="input", role="came_with", baseline="default", candidate="7.450580596923828"
    )
    shown = compared.judgement("PASS").model_copy(update={"differences": (found,)})
    assert list(differences(shown, "came_with")) == ["came with it: kv_offloading_size default → 7.45058 GiB"]


def test_a_large_change_is_readable() -> None:
    assert change_text(compared.entry("ttft_p50", "FAIL", 0.1, 2.5)) == "+2,400.0 %"


@pytest.mark.parametrize(
    ("ratio", "said"),
    [
        (0.05, "5 %"),
        (0.0123456, "1.23 %"),
        (9.994, "999 %"),
        (9.996, "1,000 %"),
        (12.5, "1,250 %"),
        (1e5, "10,000,000 %"),
    ],
)
def test_a_large_limit_is_no_power_of_ten(ratio: float, said: str) -> None:
    assert percent(ratio) == said
    entry = compared.WORSE.model_copy(update={"allowed": ratio, "ruled_out": ratio, "change_high": max(ratio, 0.2)})
    found = compared.judgement("FAIL", detects={"ttft_p50": ratio})
    test = compared.report("a.py::t", found, entry)
    for text in (render(test, 100, color=False), render(test, 60, color=False), failure_message(test),
                 markdown(compared.run(test))):  # fmt: skip
        assert said in text
        assert "e+" not in text


@pytest.mark.parametrize(
    ("tests", "said"),
    [
        ([], "0 comparisons, no test asked for one"),
        ([reported.passing], "0 comparisons, no test asked for one"),
        ([compared.without_baseline], "0 comparisons, 1 test without baseline, NOTHING WAS COMPARED"),
        ([compared.confounded], "0 comparisons, 1 test confounded, NOTHING WAS COMPARED"),
        ([compared.lost], "1 comparison (1 failed)"),
        (
            [compared.regressed, compared.undecided, compared.without_baseline],
            "5 comparisons (1 failed, 1 undecided, 3 passed), 1 test without baseline",
        ),
        ([compared.accepted, reported.passing], "2 comparisons (2 passed), 1 test asked for none"),
    ],
)
def test_comparisons_that_were_made_are_counted(tests: list[object], said: str) -> None:
    made = [test() for test in tests if callable(test)]
    assert count_line(made) == said
    assert render_summary(made, 100, color=False).endswith(f"{said}\n")


def test_a_metric_that_is_shown_only_is_no_comparison() -> None:
    shown = compared.report("a.py::test_a", compared.judgement("PASS"), compared.SHOWN)
    assert count_line([shown]) == "0 comparisons, NOTHING WAS COMPARED"


def test_undecided_tests_are_repeated_at_the_end_with_what_decides_them() -> None:
    tests = [compared.accepted(), compared.undecided(), compared.without_baseline()]
    vague, new = undecided(tests)
    assert vague == (
        "INCONCLUSIVE perf/test_agent.py::test_agent[8] · decide: pytest --llmperf -k test_agent --llmperf-against "
        "version=0.32.0"
    )
    assert new == (
        "NO_BASELINE perf/test_new.py::test_new · decide: pytest --llmperf --llmperf-refresh --llmperf-reason "
        "'first baseline'"
    )
    assert render_summary(tests, 200, color=False).startswith(f"! {vague}\n! {new}\n")


def test_why_a_test_is_undecided_is_said_once() -> None:
    test = compared.undecided()
    assert test.judgement is not None
    said = render(test, 200, color=False) + render_summary([test], 200, color=False)
    assert said.count(test.judgement.reason) == 1


def test_fields_that_neither_side_tells_are_named_once_with_one_explanation() -> None:
    names = ("driver", "gpu_memory", "host", "mig")
    note = "neither side tells it: not verified to be the same"
    fields = tuple(compared.DTYPE.model_copy(update={"name": name, "note": note}) for name in names)
    [sentence] = differences(compared.judgement("PASS", differences=fields), "unverified")
    assert sentence == "not verified, unknown on both sides: driver, gpu_memory, host, mig"


def test_how_sure_counts_launches_and_tells_noise() -> None:
    assert sureness(compared.regressed()) == (
        "4 baseline and 4 candidate launches, interleaved; p = 0.0075 over all metrics and looks if nothing were worse"
    )
    assert "3.2 times the one expected" in sureness(compared.undecided())
    targeted = compared.report("a.py::t", compared.judgement("INCONCLUSIVE", mode="targeted", p_global=1.0))
    assert sureness(targeted) == "running server, nothing could be launched"


def crowded() -> TestReport:
    """Everything that can be said at once."""
    many = [compared.WORSE.model_copy(update={"metric": f"ttft_p{n}"}) for n in range(50, 62)]
    came = tuple(compared.TORCH.model_copy(update={"name": f"library_{n}"}) for n in range(60))
    found = compared.judgement("FAIL", differences=(*came, compared.SEQS), remedy=compared.AB)
    slow = reported.failing()
    return slow.model_copy(update={"judgement": found, "comparisons": tuple(many), "verdict": "FAIL"})


@pytest.mark.parametrize("make", [crowded, compared.regressed, compared.undecided, reported.failing, reported.invalid])
def test_a_message_is_at_most_a_screen_long(make: object) -> None:
    assert callable(make)
    lines = failure_message(make(), ".llmperf/report.json").splitlines()
    assert len(lines) <= MOST_LINES + (12 if make is crowded else 0)
    assert lines[-1].startswith("report: ")


def test_a_crowded_message_says_what_it_left_out() -> None:
    text = failure_message(crowded(), "r.json")
    assert "… and 10 more in the report" in text
    assert "more lines in the report" in text
    assert f"next: {compared.AB}" in text.replace("\n  ", " ")
    assert "slowest requests" not in text


def test_a_narrow_terminal_gets_lines_in_place_of_the_table() -> None:
    wide, narrow = (render(compared.regressed(), width, color=False) for width in (100, 70))
    assert "ruled out\n" in wide
    assert "✗ ttft_p50 181 ms → 214 ms, +18.2 % (+15.1 … +21.4) worse" in narrow


def test_large_costs_are_no_powers_of_ten() -> None:
    assert spent_text(compared.run(campaigns=(compared.launches(90_000),))) == "about 3,000 GPU-min"
    long = Forecast(
        mode="side by side", launches=(4, 16), seconds=(3600.0, 46_800.0), gpus=8, detects={"ttft_p99": 12.5}
    )
    said = "\n".join(describe_campaign([reported.plan()], None, long))
    assert ", at most 104 GPUh" in said
    assert "ttft_p99 1,250 %" in said


def test_a_load_is_timed_per_launch_or_said_not_to_be() -> None:
    forecast = Forecast(mode="limits only", launches=(1, 1), seconds=None, gpus=0)
    assert describe_campaign([reported.plan()], None, forecast)[0].endswith(
        "1 test(s), its load has not been timed yet"
    )
    timed = describe_campaign([reported.plan(concurrency=4, duration=20.0)], None, forecast)
    assert timed[0].endswith("1 test(s), about 20.0 s of load a launch")


def test_an_acceptance_is_written_as_the_configuration_reads_it() -> None:
    gross = compared.WORSE.model_copy(update={"change": 12.0, "change_high": 12.5})
    said = markdown(compared.run(compared.report("a.py::t", compared.judgement("FAIL"), gross)))
    assert 'up_to = "1250 %"' in said


# JUnit


def test_junit_is_told_what_each_comparison_came_to() -> None:
    told = dict(properties(compared.regressed()))
    assert told["llmperf_comparison"] == "FAIL"
    assert told["llmperf_comparison_ttft_p50"] == "FAIL"
    assert told["llmperf_comparison_tpot_mean"] == "PASS"
    assert told["llmperf_change_ttft_p50"] == pytest.approx(0.214 / 0.181 - 1)
    assert told["llmperf_variable"] == "version: 0.32.0 → 0.33.0"
    assert "llmperf_comparison_ttft_p99" not in told
    assert told["llmperf_ttft_p50"] == compared.regressed().metrics["ttft_p50"].value


def test_junit_gets_no_figure_of_an_invalid_trial() -> None:
    told = properties(reported.invalid())
    assert reported.invalid().metrics["ttft_p50"].value is not None
    assert told == []


def test_junit_gets_no_figure_of_an_invalid_metric() -> None:
    report = reported.passing()
    check = replace(report.slas[0], verdict="INVALID")
    told = dict(properties(report.model_copy(update={"slas": (check,)})))
    assert check.metric == "ttft_p95"
    assert "llmperf_ttft_p95" not in told
    assert "llmperf_ttft_p50" in told
    fault = report.metrics["tpot_mean"].model_copy(update={"invalid": "why"})
    told = dict(properties(report.model_copy(update={"metrics": report.metrics | {"tpot_mean": fault}})))
    assert "llmperf_tpot_mean" not in told
