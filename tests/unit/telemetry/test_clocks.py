"""Locked clocks come free again whatever ends the run. A stand-in keeps its state in a file; no GPU is touched."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from driver import Driver, Gpu
from waiting import within

from pytest_llmperf.cards import Card
from pytest_llmperf.errors import InfraError
from pytest_llmperf.telemetry.clocks import ClockLock, keep
from pytest_llmperf.telemetry.nvml import Library

STAND_IN = """
import os, pathlib
class NVMLError(Exception): pass
def file(uuid): return pathlib.Path(os.environ["LOCKED"]) / uuid
def nvmlInit():
    if os.environ.get("NO_DRIVER"): raise NVMLError("Driver Not Loaded")
def nvmlShutdown(): pass
def nvmlDeviceGetHandleByUUID(uuid): return uuid
def nvmlDeviceSetGpuLockedClocks(uuid, low, high):
    if os.environ.get("HANGS"): import time; time.sleep(60)
    if uuid == "GPU-refuses": raise NVMLError("Insufficient Permissions")
    file(uuid).write_text(str(low))
def nvmlDeviceResetGpuLockedClocks(uuid):
    if uuid in os.environ.get("STUCK", ""): raise NVMLError("Insufficient Permissions")
    file(uuid).unlink(missing_ok=True)
"""
HOLDER = """
import sys
from pytest_llmperf.telemetry.clocks import ClockLock
lock = ClockLock(["GPU-a"], 1500, lambda: [])
print("held", flush=True)
input()
"""


@pytest.fixture
def locked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[[], dict[str, str]]]:
    """What is locked, for the processes that a test starts."""
    folder, library = tmp_path / "locked", tmp_path / "library"
    folder.mkdir()
    library.mkdir()
    (library / "pynvml.py").write_text(STAND_IN)
    monkeypatch.setenv("LOCKED", str(folder))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(library), *filter(None, [os.environ.get("PYTHONPATH")])]))
    yield lambda: {file.name: file.read_text() for file in folder.iterdir()}
    assert list(folder.iterdir()) == []


def seen(mhz: int) -> list[Card]:
    return [Card(0, "GPU-a", sm_clock_mhz=mhz)]


def test_clocks_are_held_until_they_are_released(locked: Callable[[], dict[str, str]]) -> None:
    lock = ClockLock(["GPU-a", "GPU-b"], 1500, lambda: seen(1515))
    assert locked() == {"GPU-a": "1500", "GPU-b": "1500"}
    lock.release()
    lock.release()
    assert locked() == {}


def test_clocks_come_free_when_the_run_is_killed(locked: Callable[[], dict[str, str]]) -> None:
    run = subprocess.Popen([sys.executable, "-c", HOLDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert run.stdout is not None
    assert run.stdout.readline() == "held\n"
    assert locked() == {"GPU-a": "1500"}
    run.kill()
    run.communicate()
    assert within(20, lambda: locked() == {})


def test_clocks_come_free_when_their_keeper_is_killed(locked: Callable[[], dict[str, str]]) -> None:
    lock = ClockLock(["GPU-a"], 1500, lambda: seen(1500))
    (keeper,) = (each for each in psutil.Process().children() if "pytest_llmperf.telemetry.clocks" in each.cmdline())
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # those are for the run
        keeper.send_signal(number)
    assert locked() == {"GPU-a": "1500"}
    keeper.kill()
    lock.release()
    assert locked() == {}


def test_a_refusal_frees_what_was_locked_before_it(locked: Callable[[], dict[str, str]]) -> None:
    with pytest.raises(InfraError, match="lock_clocks = 1500: refused by the driver: Insufficient Permissions"):
        ClockLock(["GPU-a", "GPU-refuses"], 1500, list)
    assert locked() == {}


def test_a_gpu_that_does_not_hold_it_is_refused(
    locked: Callable[[], dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pytest_llmperf.telemetry.clocks._SETTLE_S", 0.0)
    with pytest.raises(InfraError, match="GPU 0 does not hold it, it runs at 1980 MHz"):
        ClockLock(["GPU-a"], 1500, lambda: seen(1980))
    assert locked() == {}


def test_clocks_that_cannot_be_given_back_are_infra_with_the_remedy(
    locked: Callable[[], dict[str, str]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    left = "the clocks of GPU-a may still be locked: run nvidia-smi -rgc"
    monkeypatch.setenv("STUCK", "GPU-a")
    lock = ClockLock(["GPU-a"], 1500, lambda: seen(1500))
    with pytest.raises(InfraError, match=left):
        lock.release()
    lock.release()
    assert locked() == {"GPU-a": "1500"}
    with pytest.raises(InfraError, match="Insufficient Permissions; the clocks of GPU-a, GPU-refuses may"):
        ClockLock(["GPU-a", "GPU-refuses"], 1500, list)
    (tmp_path / "locked" / "GPU-a").unlink()


def test_a_refusal_of_all_is_no_trouble_of_the_reset(
    locked: Callable[[], dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who may not lock clocks may not free them either; nothing was locked."""
    monkeypatch.setenv("STUCK", "GPU-refuses")
    with pytest.raises(InfraError) as failure:
        ClockLock(["GPU-refuses"], 1500, list)
    assert str(failure.value) == "lock_clocks = 1500: refused by the driver: Insufficient Permissions"


def test_a_driver_that_hangs_is_not_waited_for_without_end(
    locked: Callable[[], dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HANGS", "1")
    monkeypatch.setattr("pytest_llmperf.telemetry.clocks._ANSWER_S", 1.0)
    with pytest.raises(InfraError, match="lock_clocks = 1500: the driver gave no answer"):
        ClockLock(["GPU-a"], 1500, list)


def test_no_driver_is_said(locked: Callable[[], dict[str, str]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_DRIVER", "1")
    with pytest.raises(InfraError, match=r"lock_clocks = 1500: no NVIDIA driver \(Driver Not Loaded\)"):
        ClockLock(["GPU-a"], 1500, list)


def test_keep_locks_says_so_and_gives_back() -> None:
    driver = Driver(Gpu("GPU-a"), Gpu("GPU-b", refuses=True))
    told: list[tuple[str, int | None]] = []

    def wait(text: str) -> None:
        told.append((text, driver.gpus[0].locked))

    assert keep(Library(driver), 1200, ["GPU-a"], wait) == 0
    assert keep(Library(driver), 1200, ["GPU-a", "GPU-b"], wait) == 3
    assert keep(Library(driver), 1200, ["GPU-x"], wait) == 3
    assert told == [
        ("held", 1200),
        ("refused by the driver: Insufficient Permissions", 1200),
        ("refused by the driver: Not Found", None),
    ]
    assert [gpu.locked for gpu in driver.gpus] == [None, None]
