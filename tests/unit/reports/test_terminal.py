"""What a person sees, against golden files; ``LLMPERF_GOLDEN=1 pytest tests/unit/reports`` rewrites them."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import compared
import pytest
import reported

from pytest_llmperf.reports.failure import failure_message
from pytest_llmperf.reports.markdown import render as markdown
from pytest_llmperf.reports.terminal import render
from pytest_llmperf.result import MetricReport, TestReport

GOLDEN = Path(__file__).parents[2] / "golden"
KINDS: dict[str, Callable[[], TestReport]] = {
    "passing": reported.passing,
    "failing": reported.failing,
    "invalid": reported.invalid,
    "regressed": compared.regressed,
    "accepted": compared.accepted,
    "undecided": compared.undecided,
    "confounded": compared.confounded,
    "without_baseline": compared.without_baseline,
}


def compare(name: str, text: str) -> None:
    path = GOLDEN / name
    if "LLMPERF_GOLDEN" in os.environ:
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


@pytest.mark.parametrize("kind", KINDS)
def test_the_table_of_a_test_reads_as_agreed(kind: str) -> None:
    compare(f"terminal_{kind}.txt", render(KINDS[kind](), 100, color=False))


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in ("passing", "accepted")])
def test_the_message_of_a_failed_test_reads_as_agreed(kind: str) -> None:
    compare(f"message_{kind}.txt", failure_message(KINDS[kind](), ".llmperf/report.json") + "\n")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("width", [60, 80, 100, 200])
def test_no_line_is_wider_than_asked(kind: str, width: int) -> None:
    shown = render(KINDS[kind](), width, color=False) + failure_message(KINDS[kind](), width=width)
    assert max(len(line) for line in shown.splitlines()) <= width


def test_color_changes_nothing_but_color() -> None:
    colored = render(reported.failing(), 100, color=True)
    assert "\x1b[" in colored
    plain = re.sub(r"\x1b\[[0-9;]*m", "", colored)
    assert [line.rstrip() for line in plain.splitlines()] == render(reported.failing(), 100, False).splitlines()


def test_a_test_that_measured_nothing_is_shown_without_a_table() -> None:
    bare = reported.passing().model_copy(
        update={"metrics": {}, "trials": (), "slas": (), "identity": None, "verdict": "NOT_RUN"}
    )
    shown = render(bare, 100, color=False)
    assert shown.startswith("NOT_RUN  test_chat.py::test_chat\n")
    assert "TTFT" not in shown
    assert "NOT_RUN: no check" in failure_message(bare)


def test_gaps_that_the_client_could_not_tell_apart_are_shown_as_invalid_and_never_as_numbers() -> None:
    report = reported.mixed_reads()
    shown = render(report, 100, color=False)
    (row,) = [line for line in shown.splitlines() if line.lstrip().startswith("ICL ")]
    assert row.split() == ["ICL", *["invalid"] * 5, "80"]
    assert "TPOT  20.0 ms" in shown
    assert "! icl_p99: invalid: 2 % of the chunks came in one read with an earlier one" in shown
    assert report.verdict == "INVALID"
    assert (report.metrics["icl_p99"].value, report.metrics["icl_p99"].invalid is None) == (None, False)


def test_an_unsettled_trial_says_so_above_its_numbers_and_does_not_fail_for_it() -> None:
    report = reported.unsettled()
    shown = render(report, 100, color=False)
    assert report.verdict == "PASS"
    assert re.search(r"^  ! UNSETTLED: TTFT rose from 100.0 ms to 195 ms after 48 % of the window", shown, re.MULTILINE)
    assert shown.index("UNSETTLED") < shown.index("TTFT  ")


def test_text_of_the_server_is_shown_as_it_is_and_not_as_markup() -> None:
    report = reported.failing()
    checks = tuple(replace(c, reason="[red]x[/red] :smile:") for c in report.slas)
    assert "[red]x[/red] :smile:" in render(report.model_copy(update={"slas": checks}), 100, color=False)


def test_slowest_requests_of_several_trials_say_which() -> None:
    report = reported.failing()
    second = report.trials[0].model_copy(update={"replay": 1})
    text = failure_message(report.model_copy(update={"trials": (report.trials[0], second)}))
    assert " 0.0#13 " in text
    assert " 0.1#13 " in text
    assert "6 connection_lost" in text


def test_what_qualifies_a_limited_figure_is_shown_everywhere() -> None:
    report = reported.passing()
    metrics = {
        **report.metrics,
        "queue_wait_p95": MetricReport(value=0.2, unit="s", n=28, definition="queue_wait/1", note="from buckets"),
        "kv_usage_p95": MetricReport(value=0.2, unit="ratio", n=8, definition="kv_usage_p95/1", note="not asked for"),
    }
    sla = replace(report.slas[0], metric="queue_wait_p95")
    report = report.model_copy(update={"metrics": metrics, "slas": (*report.slas, sla)})
    said = "queue_wait_p95: from buckets; n counts what the engine finished around the window, warm-up included"
    assert said in " ".join(render(report, 200, color=False).split())
    assert said in markdown(reported.run_report(report))
    assert "not asked for" not in render(report, 200, color=False)


def test_what_stands_in_for_the_memory_of_the_server_is_said() -> None:
    report = reported.passing()
    whole = report.metrics["peak_memory"].model_copy(update={"note": "memory of whole GPUs"})
    report = report.model_copy(update={"metrics": {**report.metrics, "peak_memory": whole}})
    assert "note: peak_memory: memory of whole GPUs" in render(report, 100, color=False)


def test_a_row_that_is_left_out_is_said_to_be() -> None:
    said = "note: ITL is not shown: the server states no token counts per chunk"
    assert said in render(reported.passing(), 100, color=False)
    t = reported.with_memory([replace(each, chunk_tokens=(1, 1, 1)) for each in reported.closed_loop()])
    counted = render(reported.report_of(t), 100, color=False)
    assert "\n  ITL " in counted
    assert "not shown" not in counted


def test_a_workload_that_is_called_as_its_api_is_named_once() -> None:
    report = reported.passing()
    workload = report.plan.workload.model_copy(update={"name": "chat"})
    plan = report.plan.model_copy(update={"workload": workload})
    assert " · chat · concurrency 4" in render(report.model_copy(update={"plan": plan}), 200, color=False)
    assert " · chat tiny · concurrency 4" in render(report, 200, color=False)
