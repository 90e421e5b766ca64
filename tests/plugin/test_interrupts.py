"""However a run ends - Ctrl-C, SIGTERM, kill -9, at any moment - no server stays, and what was measured is kept."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

TESTS = """
import pytest

@pytest.mark.llmperf(server="embedded", workload={"input": 24, "output": 8}, concurrency=2, requests=10)
def test_short(llmperf):
    llmperf.run()

@pytest.mark.llmperf(server="embedded", workload={"input": 24, "output": 8}, concurrency=2, duration="120 s")
def test_long(llmperf):
    llmperf.run()
"""


def descendants(pid: int) -> list[psutil.Process]:
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def wait_until(condition: Callable[[], bool], what: str, timeout_s: float = 30.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"timed out: {what}"
        time.sleep(0.01)


def stored(folder: Path) -> dict[str, Any]:
    try:
        content: dict[str, Any] = json.loads((folder / "llmperf-report" / "report.json").read_text())
    except (OSError, ValueError):
        return {}
    return content


def engine_started(folder: Path, pid: int) -> bool:
    return any("embedded_server" in " ".join(cmdline(process)) for process in descendants(pid))


def first_test_done(folder: Path, pid: int) -> bool:
    return bool(stored(folder).get("tests"))


def long_load_runs(folder: Path, pid: int) -> bool:
    """The long test has been running for a moment."""
    if first_test_done(folder, pid):
        time.sleep(0.7)
        return True
    return False


def report_begun(folder: Path, pid: int) -> bool:
    return bool(stored(folder))


def cmdline(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


MOMENTS = [report_begun, engine_started, first_test_done, long_load_runs]


@pytest.mark.parametrize("moment", MOMENTS, ids=lambda moment: moment.__name__)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL], ids=lambda number: number.name)
def test_no_server_stays_and_results_are_kept(
    tmp_path: Path, number: signal.Signals, moment: Callable[[Path, int], bool]
) -> None:
    (tmp_path / "test_it.py").write_text(TESTS)
    with (tmp_path / "output.txt").open("w") as output:
        run = subprocess.Popen(
            [sys.executable, "-m", "pytest", "--llmperf", "-p", "no:cacheprovider"],
            cwd=tmp_path, stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        wait_until(lambda: moment(tmp_path, run.pid), moment.__name__)
        tree = descendants(run.pid)
        os.kill(run.pid, number)
        code = run.wait(30)
    wait_until(lambda: not any(alive(process) for process in tree), f"{tree} to be gone")
    # Also what was started between the look and the signal: everything carries the run's folder in its environment.
    wait_until(lambda: not of_folder(tmp_path), f"{of_folder(tmp_path)} to be gone")
    text = (tmp_path / "output.txt").read_text()
    report = stored(tmp_path)
    assert report["partial"] is True
    if number is signal.SIGKILL:
        assert code == -9
    else:
        assert code == 2, text
        assert "KeyboardInterrupt" in text
    if moment in (first_test_done, long_load_runs):
        assert report["tests"][0]["verdict"] == "PASS"
    if moment is long_load_runs and number is not signal.SIGKILL:
        cut_short = report["tests"][1]
        assert (cut_short["verdict"], cut_short["outcome"]) == ("NOT_RUN", "interrupted")
        (trial,) = cut_short["trials"]
        assert trial["complete"] is False
        assert trial["ok"] > 0
        assert (tmp_path / "llmperf-report" / trial["records"]).is_file()


def alive(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


def of_folder(folder: Path) -> list[psutil.Process]:
    """Processes whose working directory is the run's folder."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.cwd() == str(folder) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            continue
    return found
