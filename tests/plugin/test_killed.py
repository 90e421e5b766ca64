"""``kill -9`` of pytest, or of the guard of its server, in every phase of a run: nothing of the engine stays.

The engine ignores SIGTERM, forks, forks twice into a session of its own and forgets its environment (``wicked``).
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

WICKED = Path(__file__).parents[1] / "wicked.py"
ROLES = {"leader", "child", "daemon", "bare"}
TESTS = """
import pytest

@pytest.mark.llmperf(server="embedded", workload={"input": 24, "output": 8}, concurrency=2, LOAD)
def test_it(llmperf):
    llmperf.run()
"""
CONFTEST = f"""
import os, sys, time
from dataclasses import replace
from pathlib import Path
from pytest_llmperf import runner
from pytest_llmperf.engines import ENGINES
from pytest_llmperf.engines.embedded import EMBEDDED
from pytest_llmperf.server.launch import Launch

PHASE, HERE = os.environ["PHASE"], Path(__file__).parent
launches = []

def reached(phase, seconds=60):
    if phase == PHASE:
        (HERE / "reached").touch()
        time.sleep(seconds)

def command(spec, port, model):
    launches.append(port)
    if len(launches) == 2:
        reached("between launches")
    words = [] if PHASE == "start-up" else EMBEDDED.command(spec, port, model)
    pids = HERE / f"pids{{len(launches)}}"
    pids.mkdir(exist_ok=True)
    return [sys.executable, {str(WICKED)!r}, str(pids), *words]

def find_model(spec):
    reached("provision")
    return EMBEDDED.find_model(spec)

ENGINES["embedded"] = replace(EMBEDDED, command=command, find_model=find_model)
calibrate, begin, stop = runner._calibrate, runner.begin, Launch.stop

def slow_calibrate(*given):
    reached("calibration")
    return calibrate(*given)

def noted_begin(*given, **named):
    load = begin(*given, **named)
    reached("load", 0.5)
    return load

def noted_stop(self):
    reached("stop", 0)
    stop(self)

runner._calibrate, runner.begin, Launch.stop = slow_calibrate, noted_begin, noted_stop
"""


def wait_until(condition: Callable[[], object], what: str, seconds: float = 40.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited {seconds} s in vain until {what}"
        time.sleep(0.02)


@contextmanager
def run(folder: Path, phase: str, monkeypatch: pytest.MonkeyPatch, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    """A pytest of its own; whatever fails meanwhile, neither it nor its guard nor the engine stays."""
    monkeypatch.setenv("PHASE", phase)
    monkeypatch.setenv("XDG_STATE_HOME", str(folder / "state"))
    load = "requests=6" if phase in ("stop", "between launches") else 'duration="120 s"'
    (folder / "test_it.py").write_text(TESTS.replace("LOAD", load))
    (folder / "conftest.py").write_text(CONFTEST)
    with (
        (folder / "output.txt").open("w") as output,
        subprocess.Popen(
            [sys.executable, "-m", "pytest", "--llmperf", "-p", "no:cacheprovider", *options],
            cwd=folder, stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
        ) as process,
    ):  # fmt: skip
        try:
            yield process
        finally:
            guards = [lease["guard"][0] for lease in leases(folder) if lease.get("guard")]
            process.kill()
            for pid in guards:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            for left in engine(folder):
                left.kill()


def engine(folder: Path) -> list[psutil.Process]:
    """All processes that the engine has ever noted and that still run."""
    found = []
    for file in folder.glob("pids*/[a-z]*"):
        try:
            process = psutil.Process(int(file.read_text() or 0))
            if process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (psutil.Error, ValueError):
            continue
    return found


def leases(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in (folder / "state").rglob("*.json")]


def is_up(folder: Path, number: int) -> bool:
    noted = {file.name for file in folder.glob(f"pids{number}/[a-z]*") if file.read_text()}
    return noted >= ROLES


@pytest.mark.parametrize("phase", ["provision", "start-up", "calibration", "load", "between launches", "stop"])
def test_nothing_of_the_engine_outlives_a_killed_pytest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, phase: str
) -> None:
    options = ("--llmperf-ab", "max_num_seqs=1") if phase == "between launches" else ()
    with run(tmp_path, phase, monkeypatch, *options) as pytest_run:
        if phase == "start-up":
            wait_until(lambda: is_up(tmp_path, 1), "the engine is up")
        else:
            wait_until((tmp_path / "reached").exists, f"{phase} is reached")
        tree = psutil.Process(pytest_run.pid).children(recursive=True)
        assert bool(engine(tmp_path)) == (phase not in ("provision", "between launches"))
        os.kill(pytest_run.pid, signal.SIGKILL)
        pytest_run.wait()
        wait_until(lambda: not engine(tmp_path), f"{engine(tmp_path)} are gone", 10)
        wait_until(lambda: not any(process.is_running() for process in tree), "all that pytest had started is gone", 10)
        assert leases(tmp_path) == []


def test_nothing_of_the_engine_outlives_its_killed_guard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pytest itself then ends what there is, and says that the server has died."""
    with run(tmp_path, "load", monkeypatch) as pytest_run:
        wait_until((tmp_path / "reached").exists, "load is reached")
        (lease,) = leases(tmp_path)
        os.kill(lease["guard"][0], signal.SIGKILL)
        wait_until(lambda: not engine(tmp_path), f"{engine(tmp_path)} are gone", 10)
        assert pytest_run.wait(40) == 1
        assert "the server ended while it was still needed" in (tmp_path / "output.txt").read_text()
        assert leases(tmp_path) == []


def test_what_outlives_both_is_ended_by_reap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with run(tmp_path, "load", monkeypatch) as pytest_run:
        wait_until((tmp_path / "reached").exists, "load is reached")
        (lease,) = leases(tmp_path)
        guard = psutil.Process(lease["guard"][0])
        guard.suspend()  # else it may see that pytest has gone before it goes itself
        pytest_run.kill()
        guard.kill()
        pytest_run.wait()
        left = engine(tmp_path)
        assert left
        reap = [sys.executable, "-m", "pytest_llmperf.cli", "doctor", "reap"]
        assert subprocess.run([*reap, "--dry-run"], capture_output=True, check=False).returncode == 1
        assert engine(tmp_path)
        assert subprocess.run(reap, capture_output=True, check=False).returncode == 0
        assert engine(tmp_path) == []
        assert leases(tmp_path) == []
