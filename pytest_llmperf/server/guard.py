"""The parent of one server process, and its end: it outlives pytest just long enough to leave nothing behind.

Runs alone (``python -I -S``), in a few MB: imports nothing but ``tree``, ``scribe`` and ``guardtalk``, which says what
it is told and tells.

End of input, a new parent or SIGTERM mean that pytest is gone, however it went: then the whole tree is ended.

On Linux we are the *subreaper* of everything below us: a process whose parent ends, in whatever session, becomes our
child instead of init's, so the tree below us is complete at any time. Elsewhere only the process group is ended.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

from pytest_llmperf.server.guardtalk import Input, append, end_of, nameless, replace_lease, say
from pytest_llmperf.server.scribe import Scribe
from pytest_llmperf.server.tree import (
    LINUX,
    Kin,
    Process,
    adopt_orphans,
    descendants,
    die_with,
    failure,
    kill,
    send,
    started,
)

_LOOK_SECONDS: Final = 1.0
"""Between two looks whether pytest is there, and what has come to the tree."""
_ORPHAN_SECONDS: Final = 1.0
"""What is left when the leader has obeyed SIGTERM gets this long to obey it too."""
_KILL_SECONDS: Final = 10.0
"""How long to go on killing; only a process stuck in the kernel outlasts SIGKILL."""
_LOG_SECONDS: Final = 2.0
"""For the last lines of the log to be written. Only a process that outlasts SIGKILL, or a stuck disk, takes it."""


class Guard:
    """One engine process and everything that comes of it."""

    def __init__(self, job: dict[str, Any]) -> None:
        self.job = job
        self.codes: dict[int, int | None] = {}
        """Of the two that we start ourselves; a pid that was inherited may be a number that one of them had."""
        self.leader = 0
        self.childless = False
        self.scribe: Scribe | None = None
        """Where there are secrets to keep out of the log; else the server writes to the file itself."""
        self.kin = Kin(os.getpid())

    @property
    def code(self) -> int | None:
        """Exit code of the leader."""
        return self.codes.get(self.leader)

    def start(self) -> None:
        """Start the engine in a session of its own, its output in the log. OSError if it can't be executed."""
        adopt_orphans()
        self.record()  # before there is anything to end
        secrets = [each.encode(errors="surrogateescape") for each in self.job["secrets"]]
        self.scribe = Scribe(self._open_log(), secrets) if secrets else None
        self.leader = self._spawn(self.job["argv"], dies=True)
        if self.scribe is not None:
            self.scribe.begin()
        self.record()

    def look(self) -> None:
        """Note what has come to the tree: some engines fork workers long after their start."""
        if LINUX and self.kin.grown():
            self.record()

    def _open_log(self) -> int:
        return os.open(self.job["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def _spawn(self, argv: Sequence[str], *, dies: bool, output: int | None = None) -> int:
        guard = os.getpid()

        def in_child() -> None:
            # If we are killed, the leader dies at once; its children then become visible to pytest's sweep.
            die_with(guard)

        kept = output if output is not None else self.scribe.inlet if self.scribe is not None else None
        log = self._open_log() if kept is None else kept
        try:
            child = subprocess.Popen(
                argv,
                env=self.job["env"],
                cwd=self.job["cwd"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=in_child if dies else None,  # safe: we have one thread until the leader runs
            )
        finally:
            if kept is None:
                os.close(log)
        child.returncode = 0  # we reap; keeps Popen from trying it too
        self.codes[child.pid], self.childless = None, False
        return child.pid

    def record(self) -> None:
        """Write into the lease what is ours now: what may be ended should we be killed."""
        noted = {
            **self.job["facts"],
            "guard": (os.getpid(), started(os.getpid())),
            "leader": (self.leader, started(self.leader)) if self.leader else None,
            "processes": self.tree() if self.leader else [],
        }
        replace_lease(self.job["lease"], noted)

    def end(self, grace: float) -> tuple[list[int], str | None]:
        """End all of it, the lease too where nothing is left: pids that stay, and how ``ended`` failed.

        A ``stop`` of the user's may need the server running (``kill $(cat pidfile)``); what removes a container waits
        for its end.
        """
        if self.scribe is not None and not self.leader:
            self.scribe.begin()  # nothing was started: what is said now is written all the same
        failed = self._run_ended() if self.job["first"] else None
        left = self.stop(grace) if self.leader else []
        if self.job["ended"] and not self.job["first"]:
            failed = self._run_ended()
            left = self.end_tree()
        if self.scribe is not None:
            self.scribe.end(_LOG_SECONDS)
        if not left and not failed:
            with suppress(OSError):
                os.unlink(self.job["lease"])  # noqa: PTH108 - no pathlib in the few MB that we are
        return left, failed

    def _run_ended(self) -> str | None:
        """Run ``ended``, whatever became of the tree. What went wrong, or None; its output goes to the log as well."""
        if not self.job["ended"]:
            return None
        file = nameless(f"{self.job['log']}.stop")
        try:
            pid = self._spawn(self.job["ended"], dies=False, output=file)
        except (OSError, ValueError) as error:
            return f"can't be executed: {error}"
        else:
            deadline = time.monotonic() + self.job["patience"]
            while self.codes[pid] is None and time.monotonic() < deadline:
                self.reap()
                time.sleep(0.01)
            if self.codes[pid] is None:  # not reaped yet, so that the number is its own
                for process in descendants(pid) if LINUX else ():
                    kill(process, signal.SIGKILL)
                with suppress(PermissionError):  # sudo
                    os.killpg(pid, signal.SIGKILL)
            said = end_of(file)
            self._keep(said)
            return failure(self.codes[pid], self.job["patience"], said.decode(errors="replace"))
        finally:
            os.close(file)

    def _keep(self, said: bytes) -> None:
        """Write to the log what is no output of the server's."""
        if self.scribe is not None:
            os.write(self.scribe.inlet, said)
        else:
            append(self.job["log"], said)

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
            if pid in self.codes and self.codes[pid] is None:
                self.codes[pid] = os.waitstatus_to_exitcode(status)
                seen = seen or pid == self.leader

    def stop(self, grace: float) -> list[int]:
        """End the tree: SIGTERM to the leader, ``grace`` seconds, SIGKILL to all. Pids that outlasted even that."""
        if self.code is None:
            send(self.leader, signal.SIGTERM)
        self._wait(grace, until_leader_only=True)
        for process in self.tree():  # the leader may have left helpers that know nothing yet
            if process[0] != self.leader:
                kill(process, signal.SIGTERM)
        self._wait(min(grace, _ORPHAN_SECONDS) if self.code is not None else 0.0)
        return self.end_tree()

    def end_tree(self) -> list[int]:
        """SIGKILL to all, until nothing is left. Pids that outlasted even that."""
        deadline = time.monotonic() + _KILL_SECONDS
        pause = 0.001
        while not self.gone() and time.monotonic() < deadline:
            for process in self.tree():
                kill(process, signal.SIGKILL)
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
        return self.childless if LINUX else self.code is not None

    def tree(self) -> list[Process]:
        """The processes below us that still run, as one look shows them."""
        if not LINUX:
            return [(self.leader, "")] if self.code is None else []
        return descendants(os.getpid())

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
        if not LINUX:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.leader, signal.SIGKILL)


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
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # what pytest blocks, neither we nor the engine do

    commands = Input()
    received: list[dict[str, Any]] = []
    while not received:
        received = commands.lines()
        if commands.ended:
            return 1
    job = received.pop(0)
    guard = Guard(job)
    try:
        guard.start()
    except (OSError, ValueError) as error:
        guard.end(0.0)
        say("failed", error=str(error))
        return 1
    say("started", pid=guard.leader)

    looked = time.monotonic()
    while True:
        if guard.reap():
            if guard.scribe is not None:
                guard.scribe.settle(_LOG_SECONDS)  # who hears of the end reads the last lines
            say("exited", code=guard.code)
        if commands.ended or ended or os.getppid() != job["owner"]:
            guard.end(job["grace"])
            return 0
        for command in received:
            if command.get("do") == "note":
                guard.record()
            if command.get("do") == "stop":
                left, failed = guard.end(command["grace"])
                say("exited", code=guard.code)
                say("stopped", left=left, failed=failed)
                return 0
        if time.monotonic() - looked >= _LOOK_SECONDS:
            looked = time.monotonic()
            guard.look()
        ready, _, _ = select.select([0, wake], [], [], _LOOK_SECONDS)
        received = commands.lines() if 0 in ready else []
        if wake in ready:
            os.read(wake, 1 << 10)
