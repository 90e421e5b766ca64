"""``pytest-llmperf COMMAND``. Exit status: 0 done, 1 done in part, 2 wrong usage or a file that cannot be used."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version

from pytest_llmperf.cli import baseline as baseline_command
from pytest_llmperf.cli import doctor as doctor_command
from pytest_llmperf.cli import help as help_command
from pytest_llmperf.cli import report as report_command
from pytest_llmperf.errors import LlmperfError

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status."""
    parser = argparse.ArgumentParser(
        prog="pytest-llmperf", description="Reports and baselines of pytest-llmperf, and its manual."
    )
    parser.add_argument("--version", action="version", version=f"pytest-llmperf {_version()}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, command in (
        ("report", report_command),
        ("baseline", baseline_command),
        ("doctor", doctor_command),
        ("help", help_command),
    ):
        command.configure(commands.add_parser(name, help=command.SUMMARY, description=command.SUMMARY))
    try:
        arguments = parser.parse_args(argv)
    except SystemExit as stop:  # argparse has printed what there is to say
        return stop.code if isinstance(stop.code, int) else 2
    try:
        status: int = arguments.run(arguments)
        sys.stdout.flush()
    except LlmperfError as error:
        print(f"pytest-llmperf {arguments.command}: error: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # ``| head`` has seen enough; nothing more may be written at exit either
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return status


def _version() -> str:
    try:
        return version("pytest-llmperf")
    except PackageNotFoundError:
        return "(not installed)"


if __name__ == "__main__":
    sys.exit(main())
