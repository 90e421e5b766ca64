"""The section of the terminal at the end of a run: one report's tests."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from pytest_llmperf.reports.terminal import render, render_summary
from pytest_llmperf.result import TestReport

__all__ = ["show_tests"]


def show_tests(reporter: pytest.TerminalReporter, tests: Sequence[TestReport], path: Path) -> None:
    """Write what was measured, what was left undecided, and where the report lies."""
    reporter.section("llmperf", "=")
    width = reporter.config.get_terminal_writer().fullwidth
    run = [report for report in tests if report.duration_s > 0]
    for report in run:
        reporter.write(render(report, width, reporter.hasmarkup) + "\n")
    if len(run) < len(tests):
        reporter.write_line(f"{len(tests) - len(run)} test(s) not run: the run ended before their turn")
    reporter.write(render_summary(run, width, reporter.hasmarkup))
    reporter.write_line(f"report: {path}")
