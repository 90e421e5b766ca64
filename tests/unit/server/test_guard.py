"""Nothing of a launch outlives it, however pytest or the guard ends. Real processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from pytest_llmperf.errors import ServerStartError
from pytest_llmperf.plan import LAUNCH_VARIABLE
from pytest_llmperf.server.process import ServerProcess

WICKED = Path(__file__).parents[2] / "wicked.py"
ROLES = {"leader", "child", "daemon", "bare"}


@pytest.fixture
def pids(tmp_path: Path) -> Iterator[Path]:
    """The folder that the wicked server writes its pids into. Whatever a failed test leaves is killed by identity."""
    folder = tmp_path / "pids"
    folder.mkdir()
    yield folder
    for process in processes(folder).values():
        if running(process):
            process.kill()


def processes(folder: Path) -> dict[str, psutil.Process]:
    found = {}
    for role in ROLES:
        with suppress(OSError, ValueError, psutil.Error):  # it has not written it yet, or has ended
            found[role] = psutil.Process(int((folder / role).read_text()))
    return found


def running(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def await_all(folder: Path) -> dict[str, psutil.Process]:
    wait_until(lambda: set(processes(folder)) == ROLES, "the server's processes are up")
    return processes(folder)


def wait_until(condition: object, what: str, seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline, f"waited {seconds} s in vain until {what}"
        time.sleep(0.02)


def await_none(found: dict[str, psutil.Process]) -> None:
    wait_until(lambda: not any(map(running, found.values())), "all processes are gone")


@pytest.fixture(autouse=True)
def _state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def start(pids: Path, tmp_path: Path) -> ServerProcess:
    return ServerProcess.start([sys.executable, str(WICKED), str(pids)], dict(os.environ), tmp_path / "server.log")


def test_stop_ends_children_daemons_and_those_that_ignore_sigterm(pids: Path, tmp_path: Path) -> None:
    process = start(pids, tmp_path)
    found = await_all(pids)
    assert process.poll()
    assert process.pid == found["leader"].pid
    assert process.stop(0.3) == ()
    assert not any(map(running, found.values()))
    assert (process.exit_code, process.poll()) == (-signal.SIGKILL, False)
    assert process.stop(0.3) == ()  # again: nothing to do


def test_stop_waits_for_a_server_that_goes_in_order(tmp_path: Path) -> None:
    code = "import signal, sys, time; signal.signal(15, lambda *_: (time.sleep(0.4), print('bye'), sys.exit(7)));"
    code += "print('up', flush=True); time.sleep(99)"
    process = ServerProcess.start([sys.executable, "-u", "-c", code], dict(os.environ), tmp_path / "log")
    wait_until(lambda: process.log_tail() == ("up",), "it runs")
    begun = time.monotonic()
    process.stop(20)
    assert time.monotonic() - begun < 5
    assert process.exit_code == 7
    assert process.log_tail() == ("up", "bye")


def test_helpers_of_a_leader_that_died_are_ended(pids: Path, tmp_path: Path) -> None:
    process = start(pids, tmp_path)
    found = await_all(pids)
    found["leader"].kill()
    wait_until(lambda: not process.poll(), "its end is noticed")
    assert process.exit_code == -signal.SIGKILL
    process.stop(0.3)
    assert not any(map(running, found.values()))


def test_killed_guard_leaves_nothing_either(pids: Path, tmp_path: Path) -> None:
    process = start(pids, tmp_path)
    found = await_all(pids)
    process.remember()
    found["leader"].parent().kill()  # type: ignore[union-attr]
    wait_until(lambda: not process.poll(), "its end is noticed")
    assert process.stop(0.3) == ()
    assert not any(map(running, found.values()))


@pytest.mark.parametrize("end", ["SIGKILL", "SIGTERM", "exit", "exception", "os._exit"])
def test_nothing_outlives_pytest_however_it_ends(pids: Path, tmp_path: Path, end: str) -> None:
    owner_code = textwrap.dedent("""
        import json, os, sys, time
        from pathlib import Path
        from pytest_llmperf.server import process as module
        module._ORPHAN_GRACE = 0.3
        command, log, end = json.loads(sys.argv[1])
        process = module.ServerProcess.start(command, dict(os.environ), Path(log))
        print("started", flush=True)
        sys.stdin.readline()
        if end == "exit": sys.exit(0)
        if end == "exception": raise RuntimeError
        if end == "os._exit": os._exit(3)
        time.sleep(60)
    """)
    argument = json.dumps([[sys.executable, str(WICKED), str(pids)], str(tmp_path / "log"), end])
    owner = subprocess.Popen(
        [sys.executable, "-c", owner_code, argument], stdin=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    found = await_all(pids)
    guard = found["leader"].parent()
    assert guard is not None
    assert owner.stdin is not None
    if end.startswith("SIG"):
        owner.send_signal(getattr(signal, end))
    else:
        owner.stdin.write("\n")
        owner.stdin.flush()
    owner.wait(10)
    owner.stdin.close()
    await_none({**found, "guard": guard})


def test_input_held_open_by_another_process_does_not_save_the_server(pids: Path, tmp_path: Path) -> None:
    """A forked child of pytest keeps the pipe to the guard open; the guard sees that its parent has gone."""
    owner_code = textwrap.dedent("""
        import json, os, sys, time
        from pathlib import Path
        from pytest_llmperf.server import process as module
        module._ORPHAN_GRACE = 0.3
        command, log, note = json.loads(sys.argv[1])
        module.ServerProcess.start(command, dict(os.environ), Path(log))
        child = os.fork()
        if child == 0:
            time.sleep(20)
            os._exit(0)
        Path(note).write_text(str(child))
        time.sleep(20)
    """)
    note = tmp_path / "child"
    argument = json.dumps([[sys.executable, str(WICKED), str(pids)], str(tmp_path / "log"), str(note)])
    owner = subprocess.Popen([sys.executable, "-c", owner_code, argument])
    found = await_all(pids)
    wait_until(note.exists, "the child has forked")
    owner.kill()
    owner.wait(10)
    await_none(found)
    os.kill(int(note.read_text()), signal.SIGKILL)


def test_command_that_can_not_be_executed_is_a_start_error(tmp_path: Path) -> None:
    with pytest.raises(ServerStartError, match=r"can't be executed: .*No such file") as caught:
        ServerProcess.start(["/no/such/server", "--api-key", "sk-1"], dict(os.environ), tmp_path / "log")
    assert caught.value.command == ("/no/such/server", "--api-key", "***")


def test_log_tail_is_plain_text_without_secrets(tmp_path: Path) -> None:
    code = r"print('a\n\x1b[31mred\x1b[0m\n\n 10%\r 50%\r100%\nkey sk-secret-1\nb')"
    command = [sys.executable, "-c", code, "--api-key", "sk-secret-1"]
    process = ServerProcess.start(command, dict(os.environ), tmp_path / "log")
    wait_until(lambda: not process.poll(), "it has ended")
    assert process.log_tail(4) == ("red", "100%", "key ***", "b")
    assert process.exit_code == 0
    process.stop()


def test_environment_is_exactly_what_was_given_and_the_name_of_the_launch(tmp_path: Path) -> None:
    code = "import os; print(*sorted(set(os.environ) - {'LC_CTYPE'}))"
    process = ServerProcess.start([sys.executable, "-c", code], {"A": "1"}, tmp_path / "log")
    wait_until(lambda: not process.poll(), "it has ended")
    assert process.log_tail() == (f"A {LAUNCH_VARIABLE}",)
    process.stop()


def test_ctrl_c_is_not_ignored_by_the_server(tmp_path: Path) -> None:
    """The guard shrugs SIGINT off; an engine that inherited that could never be interrupted."""
    code = (
        "import signal as s; print(s.getsignal(1) == 0, s.getsignal(15) == 0, s.getsignal(2) is s.default_int_handler)"
    )
    process = ServerProcess.start([sys.executable, "-c", code], dict(os.environ), tmp_path / "log")
    wait_until(lambda: not process.poll(), "it has ended")
    assert process.log_tail() == ("True True True",)
    process.stop()
