"""``pytest-llmperf report``: the tables of a stored report, or the schema of ``report.json``."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from pathlib import Path

from pytest_llmperf.reports.failure import failure_message
from pytest_llmperf.reports.jsonfile import json_schema, read_report
from pytest_llmperf.reports.markdown import render as render_markdown
from pytest_llmperf.reports.terminal import render, render_summary

__all__ = ["SUMMARY", "configure"]

SUMMARY = "print a stored report, or the schema of report.json"

_MIN_WIDTH = 60
_FAILED = ("INVALID", "CONFOUNDED", "FAIL")


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "path",
        nargs="?",
        type=Path,
        metavar="PATH",
        default=Path("llmperf-report"),
        help="report.json or the folder that holds it (default: llmperf-report)",
    )
    parser.add_argument(
        "--format",
        choices=("text", "markdown", "json"),
        default="text",
        help="text for a terminal (default), markdown as in report.md, or json, checked against the schema",
    )
    parser.add_argument("--json", action="store_const", const="json", dest="format", help="same as --format json")
    parser.add_argument("--schema", action="store_true", help="print the JSON Schema of report.json and nothing else")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    if arguments.schema:
        print(json_schema())
        return 0
    report = read_report(arguments.path)
    if arguments.format == "markdown":
        print(render_markdown(report), end="")
        return 0
    if arguments.format == "json":
        print(report.model_dump_json(by_alias=True, indent=1))
        return 0
    width = max(_MIN_WIDTH, shutil.get_terminal_size((100, 24)).columns)
    color = sys.stdout.isatty() and "NO_COLOR" not in os.environ
    state = ", partial: the run was interrupted or is still going on" if report.partial else ""
    print(f"{len(report.tests)} tests, {report.created}, pytest-llmperf {report.plugin_version}{state}")
    for test in report.tests:
        print()
        print(render(test, width, color), end="")
        if test.verdict in _FAILED:
            print(failure_message(test, width=width))
        elif test.message:
            print(test.message)
    print()
    print(render_summary(report.tests, width, color), end="")
    return 0
