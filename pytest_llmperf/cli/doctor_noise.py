"""``pytest-llmperf doctor noise``: how much launches of the same server differ on this runner."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from pytest_llmperf.reports.jsonfile import REPORT_NAME, read_report

__all__ = ["TEXT", "configure", "run"]

TEXT: Final = (
    "launch the server of the tests several times, twice in every block, and remember how much the launches differ: "
    "the smallest change that the gate can show on this runner follows from it"
)


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("tests", nargs="*", metavar="TEST", help="files or node ids of performance tests")
    parser.add_argument("--blocks", type=int, default=4, metavar="N", help="blocks of two launches (default 4)")
    parser.add_argument("--budget", metavar="TIME", help="most that it may take, e.g. '20 min'")
    parser.add_argument("--server", metavar="NAME", help="server of the configuration")
    parser.add_argument("--json", action="store_true", help="print what was learnt as JSON")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """The exit status is that of the test run."""
    command = [sys.executable, "-m", "pytest", "--llmperf", "--llmperf-noise", str(arguments.blocks)]
    for name in ("budget", "server"):
        if (value := getattr(arguments, name)) is not None:
            command += [f"--llmperf-{name}", value]
    with TemporaryDirectory(prefix="llmperf-noise-") as folder:
        # The report of a gate is not to be overwritten. One word: pytest takes a second one for a path of tests.
        command.append(f"--llmperf-report={folder}")
        status = subprocess.call([*command, *arguments.tests], stdout=sys.stderr if arguments.json else None)
        file = Path(folder) / REPORT_NAME
        if arguments.json and file.exists():
            report = read_report(file)
            print(json.dumps({test.nodeid: {"verdict": test.verdict, "learnt": test.notes} for test in report.tests},
                             indent=1))  # fmt: skip
    return status
