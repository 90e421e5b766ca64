"""Signals while a server is being stopped: the run ends in order, its report holds what was measured."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest
from test_killed import CONFTEST, TESTS, engine, leases, run, wait_until


def report(folder: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / "llmperf-report" / "report.json").read_text())
    return content


def is_whole(folder: Path) -> None:
    """Partial, with the one test and the trial that was cut short."""
    found = report(folder)
    assert found["partial"] is True
    (test,) = found["tests"]
    assert (test["verdict"], test["outcome"]) == ("NOT_RUN", "interrupted")
    (trial,) = test["trials"]
    assert trial["complete"] is False
    assert trial["ok"] > 0
    assert len(found["campaigns"][0]["launches"]) == 1


@pytest.mark.parametrize(
    "numbers",
    [[signal.SIGINT, signal.SIGTERM], [signal.SIGTERM, signal.SIGINT], [signal.SIGHUP, signal.SIGHUP]],
    ids=lambda numbers: "+".join(number.name for number in numbers),
)
def test_a_second_signal_does_not_break_off_the_stopping_of_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, numbers: list[signal.Signals]
) -> None:
    """The engine ignores SIGTERM: stopping it takes all of its grace, and the second signal falls into that."""
    with run(tmp_path, "load", monkeypatch) as pytest_run:
        wait_until((tmp_path / "reached").exists, "load is reached")
        time.sleep(1.5)  # some requests end
        os.kill(pytest_run.pid, numbers[0])
        wait_until(lambda: report(tmp_path)["tests"], "the interrupted test is in the report")
        time.sleep(0.3)
        os.kill(pytest_run.pid, numbers[1])
        assert pytest_run.wait(40) == 2
        text = (tmp_path / "output.txt").read_text()
        assert "Traceback" not in text
        assert "INTERNALERROR" not in text
        assert f"KeyboardInterrupt: {numbers[0].name}" in text
        assert "still stopping the server" in text
        is_whole(tmp_path)
        assert engine(tmp_path) == []
        assert leases(tmp_path) == []


def test_a_third_signal_ends_pytest_at_once_and_its_guard_ends_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with run(tmp_path, "load", monkeypatch) as pytest_run:
        wait_until((tmp_path / "reached").exists, "load is reached")
        os.kill(pytest_run.pid, signal.SIGTERM)
        wait_until(lambda: report(tmp_path)["tests"], "the interrupted test is in the report")
        for _ in range(2):
            time.sleep(0.3)
            os.kill(pytest_run.pid, signal.SIGTERM)
        assert pytest_run.wait(5) == -signal.SIGTERM
        wait_until(lambda: not engine(tmp_path), "the engine is gone", 15)
        assert report(tmp_path)["partial"] is True


def test_the_report_is_whole_where_the_terminal_has_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A closed connection: SIGHUP, and whatever is written to the terminal fails from then on."""
    monkeypatch.setenv("PHASE", "load")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "test_it.py").write_text(TESTS.replace("LOAD", 'duration="120 s"'))
    (tmp_path / "conftest.py").write_text(CONFTEST)
    command = [sys.executable, "-m", "pytest", "--llmperf", "-p", "no:cacheprovider"]
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(tmp_path)
        os.execv(command[0], command)
    try:
        wait_until((tmp_path / "reached").exists, "load is reached")
        time.sleep(1.5)
        os.close(terminal)
        deadline = time.monotonic() + 40
        while os.waitpid(pid, os.WNOHANG)[0] == 0:
            assert time.monotonic() < deadline, "pytest does not end"
            time.sleep(0.05)
        is_whole(tmp_path)
        wait_until(lambda: not engine(tmp_path), "the engine is gone", 15)
    finally:
        for left in engine(tmp_path):
            left.kill()


def test_signals_that_are_ignored_stay_ignored() -> None:
    """As under ``nohup``, and in the background of a script."""
    code = """
        import os, signal
        from pytest_llmperf.signals import InOrder
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        before = signal.getsignal(signal.SIGTERM)
        handlers = InOrder()
        handlers.begin()
        os.kill(os.getpid(), signal.SIGHUP)
        os.kill(os.getpid(), signal.SIGINT)
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        except KeyboardInterrupt as error:
            print(error)
        handlers.restore()
        assert signal.getsignal(signal.SIGTERM) is before
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=True)
    assert done.stdout == "SIGTERM\n"


def test_the_first_signal_is_only_noted_where_the_run_ends_anyway() -> None:
    code = """
        import os, signal
        from pytest_llmperf.signals import InOrder
        handlers = InOrder()
        handlers.begin()
        handlers.ending()
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGTERM)
        print("went on", flush=True)
        os.kill(os.getpid(), signal.SIGTERM)
        print("not reached")
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("went on\n", -signal.SIGTERM)
