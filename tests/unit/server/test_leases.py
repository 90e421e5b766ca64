"""What a launch leaves where pytest and guard are killed together is found by its lease, and ended; nothing else is."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from pytest_llmperf.cli.__main__ import main
from pytest_llmperf.errors import InfraError
from pytest_llmperf.plan import LAUNCH_VARIABLE, ServerSpec
from pytest_llmperf.server.caches import cache_folders
from pytest_llmperf.server.leases import Found, end, lease_folder, leases, new_lease, noted
from pytest_llmperf.server.process import ServerProcess
from pytest_llmperf.server.tree import started

WICKED = Path(__file__).parents[2] / "wicked.py"
ROLES = {"leader", "child", "daemon", "bare"}
OWNER = textwrap.dedent("""
    import json, os, sys, time
    from pathlib import Path
    from pytest_llmperf.server.leases import new_lease
    from pytest_llmperf.server.process import ServerProcess
    command, log, ended = json.loads(sys.argv[1])
    lease = new_lease([*command, "--api-key", "sk-1234567"], server="my server", ended=ended, env={"KEEP": "1"},
                      report=Path(log).parent)
    process = ServerProcess.start(command, dict(os.environ), Path(log), lease=lease)
    sys.stdin.readline()
    process.remember()
    print("noted", flush=True)
    time.sleep(60)
""")


@pytest.fixture(autouse=True)
def _state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@dataclass
class Left:
    """What stayed of a launch: its processes by role."""

    processes: dict[str, psutil.Process]
    bystander: subprocess.Popen[bytes]

    def running(self) -> set[str]:
        return {role for role, process in self.processes.items() if runs(process)}


def runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def wait_until(condition: Callable[[], object], what: str, seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited {seconds} s in vain until {what}"
        time.sleep(0.02)


def lease_is(standing: str) -> Found:
    (found,) = leases()
    assert found.standing == standing
    return found


@pytest.fixture
def left(tmp_path: Path) -> Iterator[Left]:
    """Pytest and guard are killed at once, while a server runs that nothing but SIGKILL ends."""
    pids = tmp_path / "pids"
    pids.mkdir()
    argument = json.dumps(
        [[sys.executable, str(WICKED), str(pids)], str(tmp_path / "log"), ["touch", str(tmp_path / "ended")]]
    )
    with ExitStack() as ends:  # whatever fails below, nothing of this stays
        ends.callback(kill_noted, pids)
        owner = ends.enter_context(
            killed_after(
                subprocess.Popen(
                    [sys.executable, "-c", OWNER, argument], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
                )
            )
        )
        bystander = ends.enter_context(killed_after(subprocess.Popen(["sleep", "60"])))
        wait_until(lambda: {path.name for path in pids.glob("[a-z]*") if path.read_text()} == ROLES, "it is up")
        found = {path.name: psutil.Process(int(path.read_text())) for path in pids.glob("[a-z]*")}
        end_both(owner, ends)
        yield Left(found, bystander)


@contextmanager
def killed_after(process: subprocess.Popen[Any]) -> Iterator[subprocess.Popen[Any]]:
    with process:
        try:
            yield process
        finally:
            process.kill()


def kill_noted(pids: Path) -> None:
    """All that the server has noted of itself; a pid that is gone, or another's by now, is let be."""
    for path in pids.glob("[a-z]*"):
        with suppress(psutil.Error, ValueError):
            process = psutil.Process(int(path.read_text()))
            if str(WICKED) in process.cmdline():
                process.kill()


def end_both(owner: subprocess.Popen[str], ends: ExitStack) -> None:
    """Pytest and its guard, once they have noted what belongs to them."""
    assert owner.stdin is not None
    assert owner.stdout is not None
    owner.stdin.write("\n")
    owner.stdin.flush()
    assert owner.stdout.readline() == "noted\n"
    held = lease_is("held")
    wait_until(lambda: lease_is("held").lease.processes and len(lease_is("held").lease.processes) >= 4, "it is noted")
    assert held.lease is not None
    assert held.lease.guard is not None
    guard = psutil.Process(held.lease.guard[0])
    ends.callback(lambda: guard.kill() if runs(guard) else None)
    guard.suspend()  # else it may see that pytest has gone before it goes itself
    owner.kill()
    guard.kill()
    owner.wait()
    wait_until(lambda: not runs(guard), "the guard has gone")


def reap(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    status = main(["doctor", "reap", *words])
    return status, capsys.readouterr().out


def test_what_was_left_is_found_and_ended_and_nothing_else(
    left: Left, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wait_until(lambda: "leader" not in left.running(), "the leader goes with its guard")
    assert left.running() == {"child", "daemon", "bare"}
    status, shown = reap(capsys, "--dry-run")
    assert status == 1
    assert "my server (process), since " in shown
    assert "stale: its pytest and its guard have gone" in shown
    assert "--api-key ***" in shown
    assert "would be ended" in shown
    assert all(f"pid {left.processes[role].pid}" in shown for role in left.running())
    assert left.running() == {"child", "daemon", "bare"}
    assert not (tmp_path / "ended").exists()
    status, shown = reap(capsys, "--json")
    (row,) = json.loads(shown)
    assert (status, row["standing"], row["outcome"]) == (0, "stale", "ended")
    assert sorted(row["running"]) == sorted(left.processes[role].pid for role in ("child", "daemon", "bare"))
    assert row["lease"]["report"] == str(tmp_path)
    assert left.running() == set()
    assert left.bystander.poll() is None
    assert (tmp_path / "ended").exists()
    assert reap(capsys) == (0, f"No launch holds anything ({lease_folder()}).\n")


def test_a_lease_holds_no_secret_and_is_its_owner_s_alone(left: Left) -> None:
    found = lease_is("stale")
    assert "sk-1234567" not in found.path.read_text()
    assert found.path.parent.stat().st_mode & 0o077 == 0
    assert found.lease is not None
    assert found.lease.env == {"KEEP": "1"}


def change(path: Path, **fields: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


def test_a_pid_that_went_to_another_is_left_alone(left: Left) -> None:
    """The same number with another start time, or of a process that says it is of another launch."""
    found = lease_is("stale")
    with killed_after(subprocess.Popen(["sleep", "60"], env={LAUNCH_VARIABLE: "another"})) as other:
        recycled = [left.bystander.pid, "1"]
        change(found.path, leader=recycled, processes=[recycled, [other.pid, started(other.pid)]])
        found = lease_is("stale")
        assert end(found) is None
        assert (left.bystander.poll(), other.poll()) == (None, None)
        assert "bare" in left.running()  # nothing says any more that it is ours
        assert "daemon" not in left.running()  # it carries the name of the launch


@pytest.mark.parametrize(
    ("fields", "standing"),
    [
        ({"host": "another"}, "elsewhere"),
        ({"user": os.getuid() + 1}, "elsewhere"),
        ({"namespace": "pid:[1]"}, "elsewhere"),
        ({"owner": [os.getpid(), started(os.getpid())]}, "held"),
        ({"owner": [os.getpid(), "1"]}, "stale"),
        ({"guard": [os.getpid(), started(os.getpid())]}, "ending"),
        ({"owner": "nobody"}, "unreadable"),
    ],
)
def test_only_what_is_surely_ours_is_ended(
    left: Left, capsys: pytest.CaptureFixture[str], fields: dict[str, Any], standing: str
) -> None:
    change(lease_is("stale").path, **fields)
    found = lease_is(standing)
    status, _ = reap(capsys)
    assert status == 0
    assert found.path.exists() == (standing != "stale")
    assert left.running() == (set() if standing == "stale" else {"child", "daemon", "bare"})
    if standing != "stale":
        with pytest.raises(ValueError, match="is not stale"):
            end(found)


def test_after_a_restart_of_the_machine_only_what_runs_elsewhere_is_ended(left: Left, tmp_path: Path) -> None:
    change(lease_is("stale").path, boot="earlier")
    assert end(lease_is("stale")) is None
    assert left.running() == {"child", "daemon", "bare"}  # these pids and times are of another count
    assert (tmp_path / "ended").exists()
    assert leases() == ()


def test_what_can_not_be_ended_keeps_its_lease(left: Left, capsys: pytest.CaptureFixture[str]) -> None:
    change(lease_is("stale").path, ended=["sh", "-c", "exit 3"])
    status, shown = reap(capsys)
    assert status == 1
    assert "not ended: sh -c 'exit 3': exit status 3" in shown
    assert left.running() == set()
    change(lease_is("stale").path, ended=["/no/such/program"])
    status, shown = reap(capsys)
    assert status == 1
    assert "/no/such/program: " in shown
    change(lease_is("stale").path, ended=[])
    assert reap(capsys)[0] == 0


def test_a_launch_that_ends_in_order_leaves_no_lease(tmp_path: Path) -> None:
    process = ServerProcess.start(["sleep", "60"], dict(os.environ), tmp_path / "log")
    found = lease_is("held")
    assert found.lease is not None
    assert found.lease.leader == (process.pid, started(process.pid or 0))
    process.stop(1)
    assert list(lease_folder().iterdir()) == []


def test_a_guard_killed_alone_is_noticed_and_its_lease_goes_with_what_it_guarded(tmp_path: Path) -> None:
    ended = tmp_path / "ended"
    from pytest_llmperf.server.leases import new_lease

    lease = new_lease(["x"], ended=["touch", str(ended)])
    process = ServerProcess.start(["sleep", "60"], dict(os.environ), tmp_path / "log", lease=lease)
    found = lease_is("held")
    assert found.lease is not None
    assert found.lease.guard is not None
    os.kill(found.lease.guard[0], signal.SIGKILL)
    wait_until(lambda: not process.poll(), "its end is noticed")
    assert process.stop(1) == ()
    assert ended.exists()
    assert list(lease_folder().iterdir()) == []


def test_a_folder_that_can_not_be_made_is_infra(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("")
    with pytest.raises(InfraError, match=r"the folder of the leases .* can't be made: .*XDG_STATE_HOME says where"):
        ServerProcess.start(["sleep", "60"], dict(os.environ), tmp_path / "log")


def written(tmp_path: Path, **fields: Any) -> Path:
    """A lease of a launch whose pytest and guard have gone."""
    lease = new_lease(["serve"], launch="abc", ended=["true"])
    path = lease.path
    gone = (2**22 + 1, "1")  # above what Linux gives
    path.write_text(json.dumps({**lease.model_dump(mode="json"), "owner": gone, "guard": gone, **fields}))
    return path


@pytest.mark.parametrize(
    "fields",
    [
        {"owner": (10**30, "")}, {"owner": (-1, "")}, {"leader": (10**18, "5")}, {"processes": [(0, "5")]},
        {"ended": ["a\0b"]}, {"env": {"A=B": "x"}}, {"env": {"A": "\0"}}, {"cwd": "a\0b"},
    ],
)  # fmt: skip
def test_a_lease_of_nonsense_hides_no_other(
    tmp_path: Path, fields: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    bad = written(tmp_path, **fields)
    bad = bad.rename(bad.with_name("aaa.json"))
    good = written(tmp_path)
    assert main(["doctor", "reap"]) == 0
    assert "no lease that this version can read" in capsys.readouterr().out
    assert (bad.exists(), good.exists()) == (True, False)


def test_a_lease_whose_stop_can_not_work_is_forgotten_on_demand(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path, ended=["sh", "-c", "echo no such job; exit 4"], launcher="command")
    assert main(["doctor", "reap"]) == 1
    assert "not ended: sh -c 'echo no such job; exit 4': exit status 4: no such job" in capsys.readouterr().out
    assert main(["doctor", "reap", "--forget", "other"]) == 1
    assert path.exists()
    assert main(["doctor", "reap", "--forget", "abc"]) == 0
    assert "forgotten: what its stop would end may still run" in capsys.readouterr().out
    assert not path.exists()
    held = written(tmp_path, owner=(os.getpid(), started(os.getpid())))
    assert main(["doctor", "reap", "--forget", str(held)]) == 1
    assert "not forgotten: it is in use" in capsys.readouterr().out
    assert held.exists()


def test_a_failed_stop_is_no_matter_where_nothing_answers_any_more(tmp_path: Path) -> None:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        url = f"http://127.0.0.1:{listening.getsockname()[1]}/health"
        path = written(tmp_path, ended=["false"], launcher="command", ready=url)
        assert main(["doctor", "reap"]) == 1  # somebody takes connections, and does not answer
        assert path.exists()
    assert main(["doctor", "reap"]) == 0
    assert not path.exists()


def test_without_a_home_it_is_said_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(_uid: int) -> None:
        raise KeyError

    monkeypatch.setattr("pwd.getpwuid", unknown)
    for name in ("XDG_STATE_HOME", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(InfraError, match=r"no home folder .*; set HOME, or XDG_STATE_HOME"):
        lease_folder()
    with pytest.raises(InfraError, match="set HOME, or XDG_CACHE_HOME"):
        cache_folders(ServerSpec(name="s", engine="vllm", model="m"))


def test_what_the_guard_noted_is_ended_where_the_guard_is_killed(tmp_path: Path) -> None:
    """A worker that was forked late, in a session of its own and without an environment."""
    go, pid = tmp_path / "go", tmp_path / "pid"
    code = textwrap.dedent(f"""
        import subprocess, time
        from pathlib import Path
        while not Path({str(go)!r}).exists():
            time.sleep(0.02)
        worker = subprocess.Popen(["sleep", "60"], env={{}}, start_new_session=True)
        Path({str(pid)!r}).write_text(str(worker.pid))
        time.sleep(60)
    """)
    process = ServerProcess.start([sys.executable, "-c", code], dict(os.environ), tmp_path / "log")
    go.touch()
    wait_until(lambda: pid.exists() and pid.read_text(), "the worker is there")
    worker = psutil.Process(int(pid.read_text()))
    try:
        lease = lease_is("held").lease
        assert lease is not None
        assert lease.guard is not None
        wait_until(lambda: worker.pid in [each for each, _ in noted(lease.path)], "it is noted, unasked")
        os.kill(lease.guard[0], signal.SIGKILL)
        wait_until(lambda: not process.poll(), "the end of the guard is seen")
        assert process.stop(0) == ()
        wait_until(lambda: not runs(worker), "the worker is gone")
        assert leases() == ()
    finally:
        with suppress(psutil.Error):
            worker.kill()
