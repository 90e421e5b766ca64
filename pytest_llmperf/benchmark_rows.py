"""Where results meet pytest-benchmark: rows for its session while it is active, and a file of its form without it."""

from __future__ import annotations

import datetime
import json
import platform
import shutil
import subprocess
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any, Final, final

import pytest

from pytest_llmperf.exchange.benchmark import Row, document, rows_of
from pytest_llmperf.reports.wholefile import write_whole
from pytest_llmperf.result import TestReport

__all__ = ["BenchmarkRows", "refuse_benchmark_only"]

GIT_S: Final = 10.0


def refuse_benchmark_only(config: pytest.Config) -> None:
    """Raise pytest.UsageError where pytest-benchmark would skip every performance test of a run that asks for them."""
    if config.getoption("benchmark_only", False):
        raise pytest.UsageError(
            "--benchmark-only skips every test without the fixture 'benchmark', so all performance tests: leave it "
            "away, or select with -m llmperf"
        )


@final
class BenchmarkRows:
    """Hands the rows over at the end of the run. Registered in a plain run and in the controller, not in workers."""

    def __init__(self, config: pytest.Config, reports: Callable[[], Sequence[TestReport]], file: Path | None) -> None:
        self._config = config
        self._reports = reports
        self._file = file
        self.trouble: str | None = None
        """Why rows or file are missing."""

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_sessionfinish(self) -> Generator[None, object, object]:
        # Around everything: pytest-benchmark stores and compares in a wrapper of its own, before plain hooks.
        rows = [row for test in self._reports() for row in rows_of(test)]
        session = self._session()
        try:
            if session is not None:
                session.benchmarks += [_metadata(row) for row in rows]
        except (ImportError, AttributeError, TypeError) as error:
            self.trouble = f"pytest-benchmark of this version takes no rows ({error}); --llmperf-benchmark-json does"
        if self._file is not None:
            self._write(self._file, rows)
        return (yield)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self.trouble is not None:
            terminalreporter.write_line(f"llmperf: {self.trouble}", red=True)
        elif self._file is not None:
            terminalreporter.write_line(f"llmperf: rows in the form of pytest-benchmark: {self._file}")

    def _session(self) -> Any:
        """pytest-benchmark's session where the plugin is active and nobody switched it off, else None.

        Under xdist it switches itself off, since its own fixture measures nothing there; a row of ours was measured on
        a device that its worker owns.
        """
        session = getattr(self._config, "_benchmarksession", None)
        if session is None or not self._config.pluginmanager.hasplugin("benchmark"):
            return None
        option = self._config.getoption
        asked_off = option("benchmark_disable", False) and not option("benchmark_enable", False)
        by_xdist = bool(option("numprocesses", None)) and not asked_off
        return None if session.skip or asked_off or (session.disabled and not by_xdist) else session

    def _write(self, file: Path, rows: Sequence[Row]) -> None:
        content = document(
            rows,
            machine_info=_machine_info(),
            commit_info=_commit_info(self._config.rootpath),
            created=datetime.datetime.now(datetime.UTC).isoformat(),
        )
        try:
            write_whole(file, json.dumps(content, indent=4, allow_nan=False) + "\n")
        except OSError as error:
            self.trouble = f"{file} cannot be written: {error.strerror}"


def _metadata(row: Row) -> Any:
    """The row as pytest-benchmark keeps it, with its own statistics."""
    from pytest_benchmark.stats import Metadata

    made: Any = Metadata
    found = made(row, iterations=1, options={})
    for value in row.values:
        found.update(value)
    return found


def _machine_info() -> dict[str, Any]:
    return {
        "node": platform.node(),
        "processor": platform.processor(),
        "machine": platform.machine(),
        "python_compiler": platform.python_compiler(),
        "python_implementation": platform.python_implementation(),
        "python_implementation_version": platform.python_version(),
        "python_version": platform.python_version(),
        "python_build": list(platform.python_build()),
        "release": platform.release(),
        "system": platform.system(),
        "cpu": {},
    }


def _commit_info(root: Path) -> dict[str, Any]:
    """The commit of ``root``; ``unversioned`` where it is none of git's."""
    said = _git(root, "show", "-s", "--format=%H%n%cI%n%aI")
    if said is None:
        return {"id": "unversioned", "time": None, "author_time": None, "dirty": False, "project": root.name,
                "branch": "(unknown)"}  # fmt: skip
    commit, committed, authored = said.splitlines()
    branch = _git(root, "rev-parse", "--abbrev-ref", "HEAD") or "(unknown)"
    return {
        "id": commit,
        "time": committed,
        "author_time": authored,
        "dirty": bool(_git(root, "status", "--porcelain", "--untracked-files=no")),
        "project": root.name,
        "branch": "(detached head)" if branch == "HEAD" else branch,
    }


def _git(root: Path, *arguments: str) -> str | None:
    git = shutil.which("git")
    if git is None:
        return None
    try:
        done = subprocess.run([git, *arguments], cwd=root, capture_output=True, text=True, check=False, timeout=GIT_S)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
