"""The report folder of a run: locked, cleared of the last run's files, rewritten whole after every test.

Whatever ends the run, ``report.json`` holds what was finished before, marked partial.
"""

from __future__ import annotations

import datetime
import fcntl
import os
import platform
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Final, final

from pytest_llmperf.errors import InfraError, LlmperfError
from pytest_llmperf.reports.jsonfile import REPORT_NAME, is_report, read_report, write_report
from pytest_llmperf.reports.markdown import MARKDOWN_NAME, SIGNATURE
from pytest_llmperf.reports.markdown import render as render_markdown
from pytest_llmperf.reports.wholefile import write_whole
from pytest_llmperf.result import CampaignReport, RunReport, TestReport

__all__ = ["Journal"]

_OURS: Final = {
    "logs": re.compile(r"[A-Za-z0-9._-]+-\d+\.log"),
    "records": re.compile(r"\.?[A-Za-z0-9-]*-[0-9a-f]{8}-\d+-\d+\.jsonl\.gz(\.tmp)?"),
    "telemetry": re.compile(r"\.?[A-Za-z0-9-]*-[0-9a-f]{8}-\d+-\d+\.jsonl\.gz(\.tmp)?"),
}
"""Folder beside a report → the names of what runs write there."""


@final
class Journal:
    """Writes the report of one run into one folder, which no other run may use meanwhile."""

    def __init__(self, folder: Path, lock: int, prices: Mapping[str, float]) -> None:
        self.path = folder / REPORT_NAME
        self._prices = dict(prices)
        self._lock = lock
        self._created = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")

    @classmethod
    def begin(cls, folder: Path, prices: Mapping[str, float] | None = None) -> Journal:
        """Take the folder; the files of the report that lies there go. ``prices``: GPU name → USD per hour.

        Raises InfraError where it cannot be written or another run holds it.
        """
        try:
            folder.mkdir(parents=True, exist_ok=True)
            lock = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise InfraError(f"the report folder {folder} cannot be written: {error.strerror}") from None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(lock)
            raise InfraError(f"another run writes its report to {folder}; give this one --llmperf-report DIR") from None
        journal = cls(folder, lock, prices or {})
        summary = folder / MARKDOWN_NAME
        if summary.exists() and not _is_ours(summary):
            journal.end()
            raise InfraError(f"{summary} is no report of ours: move it, or give --llmperf-report DIR")
        if not journal.path.exists():
            return journal
        try:
            last = cls.last_report(folder)
            for path in _files_beside(folder) if last is not None or is_report(journal.path) else ():
                path.unlink(missing_ok=True)
        except OSError as error:
            journal.end()
            raise InfraError(f"{folder}: files of the last report cannot be removed: {error.strerror}") from None
        if last is None and not is_report(journal.path):
            journal.end()
            raise InfraError(f"{journal.path} is no report of ours: move it, or give --llmperf-report DIR")
        return journal

    @staticmethod
    def last_report(folder: Path) -> RunReport | None:
        """The report that an earlier run left there, None where there is none that can be read."""
        try:
            return read_report(folder / REPORT_NAME)
        except LlmperfError:
            return None

    def write(self, campaigns: Sequence[CampaignReport], tests: Sequence[TestReport], *, partial: bool) -> None:
        report = RunReport(
            plugin_version=version("pytest-llmperf"),
            created=self._created,
            partial=partial,
            environment=_environment(),
            prices=self._prices,
            campaigns=tuple(campaigns),
            tests=tuple(tests),
        )
        try:
            write_report(self.path, report)
            write_whole(self.path.with_name(MARKDOWN_NAME), render_markdown(report))
        except OSError as error:
            raise InfraError(f"{self.path} cannot be written: {error.strerror}") from None

    def end(self) -> None:
        """Let the folder go."""
        os.close(self._lock)


def _is_ours(summary: Path) -> bool:
    try:
        with summary.open(encoding="utf-8", errors="replace") as file:
            return file.readline().rstrip() == SIGNATURE
    except OSError:
        return False


def _files_beside(folder: Path) -> Iterator[Path]:
    """What earlier runs have written beside their report, also those that were killed before they could say so.

    By its name: nothing else there is ours to delete."""
    for name, ours in _OURS.items():
        for path in (folder / name).glob("*"):
            if ours.fullmatch(path.name) and path.is_file():
                yield path


def _environment() -> dict[str, str]:
    return {
        "python": platform.python_version(),
        "implementation": sys.implementation.name,
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cpu_count": str(os.cpu_count()),
        "pytest": version("pytest"),
    }
