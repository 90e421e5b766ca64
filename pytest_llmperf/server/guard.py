"""The parent of one server process, and its end: it outlives pytest just long enough to leave nothing behind.

Run as ``python -I -S guard.py``; stands alone, imports nothing of the package. Talks in JSON lines:

- in, first line: the job ``{"argv", "env", "cwd", "log", "owner", "grace"}`` (secrets stay out of our own argv;
  ``owner`` is the pid whose death ends us, ``grace`` the seconds between SIGTERM and SIGKILL in that case)
- in, later: ``{"do": "stop", "grace": seconds}``
- out: ``{"event": "started", "pid"}`` or ``{"event": "failed", "error"}``, later ``{"event": "exited", "code"}``
  (as subprocess counts: negative for a signal) and ``{"event": "stopped", "left": [pids]}``

End of input, a new parent or SIGTERM mean that pytest is gone, however it went: then the whole tree is ended.

On Linux we are the *subreaper* of everything below us: a process whose parent ends, in whatever session, becomes our
child instead of init's, so the tree below us is complete at any time. Elsewhere only the process group is ended.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import subprocess
import sys
import time
from typing import Any, Final

_LINUX: Final = sys.platform.startswith("linux")
_PR_SET_PDEATHSIG: Final = 1
_PR_SET_CHILD_SUBREAPER: Final = 36
_OWNER_CHECK_SECONDS: Final = 1.0
_ORPHAN_SECONDS: Final = 1.0
"""What is left when the leader has obeyed SIGTERM gets this long to obey it too."""
_KILL_SECONDS: Final = 10.0
"""How long to go on killing; only a process stuck in the kernel outlasts SIGKILL."""

Process = tuple[int, str]
"""Pid and start time (clock ticks after boot, as text): unique until the machine restarts."""


class Guard:
    """One engine process and everything that comes of it."""

    def __init__(self, job: dict[str, Any]) -> None:
        self.job = job
        self.code: int | None = None
        self.leader = 0
        self.childless = False

    def start(self) -> None:
        """Start the engine in a session of its own, its output in the log. OSError if it can't be executed."""
        guard = os.getpid()
        libc = ctypes.CDLL(None, use_errno=True) if _LINUX else None
        if libc is not None:
            libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)

        def in_child() -> None:
            signal.pthread_sigmask(signal.SIG_SETMASK, ())
            if libc is not None:
                # If we are killed, the leader dies at once; its children then become visible to pytest's sweep.
                libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
                if os.getppid() != guard:
                    os._exit(1)

        log = os.open(self.job["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            child = subprocess.Popen(
                self.job["argv"],
                env=self.job["env"],
                cwd=self.job["cwd"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=in_child,  # safe: we have one thread
            )
        finally:
            os.close(log)
        self.leader = child.pid
        child.returncode = 0  # we reap; keeps Popen from trying it too

    def reap(self) -> bool:
        """Collect every ended child, ours and those we inherited. True if the leader was among them."""
        seen = False
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                self.childless = True
                return seen
            if pid == 0:
                return seen
            if pid == self.leader and self.code is None:
                self.code = os.waitstatus_to_exitcode(status)
                seen = True

    def stop(self, grace: float) -> list[int]:
        """End the tree: SIGTERM to the leader, ``grace`` seconds, SIGKILL to all. Pids that outlasted even that."""
        if self.code is None:
            _send(self.leader, signal.SIGTERM)
        self._wait(grace, until_leader_only=True)
        for process in self.tree():  # the leader may have left helpers that know nothing yet
            if process[0] != self.leader:
                _kill(process, signal.SIGTERM)
        self._wait(min(grace, _ORPHAN_SECONDS) if self.code is not None else 0.0)
        deadline = time.monotonic() + _KILL_SECONDS
        pause = 0.001
        while not self.gone() and time.monotonic() < deadline:
            for process in self.tree():
                _kill(process, signal.SIGKILL)
            self._kill_group()
            time.sleep(pause)  # then look again: something may have forked while it was being killed
            pause = min(2 * pause, 0.05)
        self._kill_group()
        return [] if self.gone() else [pid for pid, _ in self.tree()]

    def gone(self) -> bool:
        """Whether nothing at all is left below us.

        No child left proves it on Linux: whatever still ran would have an ancestor that is our child, or be it. A
        pass over /proc proves nothing, as parents may end, and their children move, while it goes on.
        """
        self.reap()
        return self.childless if _LINUX else self.code is not None

    def tree(self) -> list[Process]:
        """The processes below us that still run, as one look shows them."""
        if not _LINUX:
            return [(self.leader, "")] if self.code is None else []
        return _descendants(os.getpid())

    def _wait(self, seconds: float, *, until_leader_only: bool = False) -> None:
        """Wait until nothing is left (or, if asked, until the leader has gone), at most ``seconds``.

        If pytest goes meanwhile, its patience goes with it.
        """
        begun, pause = time.monotonic(), 0.005
        while not self.gone() and not (until_leader_only and self.code is not None):
            limit = min(seconds, self.job["grace"]) if os.getppid() != self.job["owner"] else seconds
            if time.monotonic() - begun >= limit:
                return
            time.sleep(pause)
            pause = min(1.5 * pause, 0.05)

    def _kill_group(self) -> None:
        # Where the tree is known, killing it is enough, and the group's number may already belong to others.
        if not _LINUX:
            try:
                os.killpg(self.leader, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                return


def _descendants(root: int) -> list[Process]:
    """All processes below ``root`` except zombies, by one pass over /proc."""
    children: dict[int, list[tuple[int, str, str]]] = {}
    for entry in os.listdir("/proc"):  # noqa: PTH208 - this is polled, and paths cost
        if entry.isdigit() and (fields := _stat(int(entry))) is not None:
            state, parent, started = fields
            children.setdefault(parent, []).append((int(entry), state, started))
    found: list[Process] = []
    queue = [root]
    while queue:
        for pid, state, started in children.get(queue.pop(), ()):
            queue.append(pid)
            if state not in "ZX":
                found.append((pid, started))
    return found


def _stat(pid: int) -> tuple[str, int, str] | None:
    """State, parent and start time of ``pid``; None if it has gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123 - as above
            # The name, second field, may hold anything, spaces and parentheses too.
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    return fields[0].decode(), int(fields[1]), fields[19].decode()


def _kill(process: Process, number: int) -> None:
    """Signal ``process`` unless its pid has meanwhile gone to another."""
    pid, started = process
    if not started:
        _send(pid, number)
        return
    try:
        handle = os.pidfd_open(pid)
    except OSError:  # gone, or a kernel before 5.3
        handle = -1
    try:
        now = _stat(pid)
        if now is None or now[2] != started:
            return
        if handle >= 0:
            signal.pidfd_send_signal(handle, number)
        else:
            os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        return
    finally:
        if handle >= 0:
            os.close(handle)


def _send(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        return


def _say(event: str, **fields: Any) -> None:
    try:
        os.write(1, (json.dumps({"event": event, **fields}) + "\n").encode())
    except OSError:  # nobody listens any more
        return


class _Input:
    """Commands from stdin, without blocking."""

    def __init__(self) -> None:
        self._rest = b""
        self.ended = False

    def lines(self) -> list[dict[str, Any]]:
        data = os.read(0, 1 << 16)
        self.ended = not data
        *whole, self._rest = (self._rest + data).split(b"\n")
        return [json.loads(line) for line in whole if line.strip()]


def main() -> int:
    wake, waker = os.pipe()
    os.set_blocking(wake, False)
    os.set_blocking(waker, False)
    signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
    ended: list[int] = []
    # Handlers, not SIG_IGN: the engine would inherit that.
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGPIPE, signal.SIGCHLD):
        signal.signal(number, lambda _number, _frame: None)
    signal.signal(signal.SIGTERM, lambda number, _frame: ended.append(number))

    commands = _Input()
    received: list[dict[str, Any]] = []
    while not received:
        received = commands.lines()
        if commands.ended:
            return 1
    job = received.pop(0)
    guard = Guard(job)
    try:
        guard.start()
    except OSError as error:
        _say("failed", error=str(error))
        return 1
    _say("started", pid=guard.leader)

    while True:
        if guard.reap():
            _say("exited", code=guard.code)
        if commands.ended or ended or os.getppid() != job["owner"]:
            guard.stop(job["grace"])
            return 0
        for command in received:
            if command.get("do") == "stop":
                left = guard.stop(command["grace"])
                _say("exited", code=guard.code)
                _say("stopped", left=left)
                return 0
        ready, _, _ = select.select([0, wake], [], [], _OWNER_CHECK_SECONDS)
        received = commands.lines() if 0 in ready else []
        if wake in ready:
            os.read(wake, 1 << 10)


if __name__ == "__main__":
    sys.exit(main())
