"""A server process as pytest sees it: started, watched and ended through ``guard.py``, its parent."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Self

import psutil

from pytest_llmperf.engines.loglines import plain_lines
from pytest_llmperf.engines.redact import forms, hide, redact, secrets
from pytest_llmperf.errors import InfraError, ServerStartError
from pytest_llmperf.plan import LAUNCH_VARIABLE
from pytest_llmperf.server.disk import end_of, no_room
from pytest_llmperf.server.leases import Lease, end_all, new_lease, noted
from pytest_llmperf.server.sweep import ENDED_SECONDS
from pytest_llmperf.server.tree import started

__all__ = ["PACKAGES", "ServerProcess"]

PACKAGES: Final = Path(__file__).absolute().parents[2]
"""The folder that a Python which stands alone finds us in."""
_GUARD: Final = (
    "import sys; sys.path.append(sys.argv[1]); from pytest_llmperf.server.guard import main; sys.exit(main())"
)
_ORPHAN_GRACE: Final = 3.0
"""Seconds between SIGTERM and SIGKILL when pytest itself has gone."""
_GUARD_SECONDS: Final = 15.0
"""What the guard may take beyond the grace before we do its work."""


class ServerProcess:
    """One started server. Not to be shared between threads, except ``poll``."""

    def __init__(
        self,
        guard: subprocess.Popen[bytes],
        env: Mapping[str, str],
        log: Path,
        lease: Lease,
        hidden: frozenset[str],
        find_pid: Callable[[int], int | None] | None,
        find_trouble: Callable[[int | None], str | None] | None,
    ):
        self._guard, self._env, self.log_path, self._lease, self._secrets = guard, env, log, lease, hidden
        self._find_pid, self._find_trouble = find_pid, find_trouble
        self._changed = threading.Condition()
        self._pid: int | None = None
        self._exit_code: int | None = None
        self._failure: str | None = None
        self._stopped = self._silent = self._swept = False
        self._left: tuple[str, ...] = ()
        self.stop_failed: str | None = None
        self._known: set[psutil.Process] = set()
        self.command: tuple[str, ...] = lease.command  # with secrets replaced
        self._reader = threading.Thread(target=self._listen, name="llmperf-guard", daemon=True)
        self._reader.start()

    @classmethod
    def start(
        cls,
        command: Sequence[str],
        env: Mapping[str, str],
        log_path: Path,
        *,
        lease: Lease | None = None,
        cwd: Path | None = None,
        hidden: frozenset[str] = frozenset(),
        find_pid: Callable[[int], int | None] | None = None,
        find_trouble: Callable[[int | None], str | None] | None = None,
    ) -> Self:
        """Start ``command`` with exactly ``env`` (plus ``LAUNCH_VARIABLE``), its output appended to ``log_path``.

        ``lease`` says what it is called, and what to run at its end for what it does not hold itself; ``hidden`` are
        secrets to keep out of the log besides those of ``command`` and ``env``. ``find_pid``
        leads from the pid of ``command`` to that of the server, where these are not the same; None while that is not
        known; ``find_trouble`` from an exit code (None: it runs) to what else than the server failed. Raises
        ServerStartError if it can't be executed, InfraError if the guard can't be started.
        """
        lease = lease or new_lease(command)
        hidden |= secrets(command, env)
        env = {**env, LAUNCH_VARIABLE: lease.launch}
        job = {
            "argv": list(command),
            "env": env,
            "cwd": str(cwd or Path.cwd()),
            "log": str(log_path.absolute()),
            "secrets": sorted({form for secret in hidden for form in forms(secret)}),
            "owner": os.getpid(),
            "grace": _ORPHAN_GRACE,
            "ended": lease.ended,
            "patience": ENDED_SECONDS,
            "first": lease.launcher == "command",
            "lease": str(lease.path),
            "facts": lease.model_dump(mode="json", exclude={"guard", "leader", "processes"}),
        }
        try:
            with log_path.open("ab") as log:
                guard = subprocess.Popen(
                    [sys.executable, "-I", "-S", "-c", _GUARD, str(PACKAGES)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    start_new_session=True,  # Ctrl-C at the terminal is for pytest, which then stops us in order
                )
            process = cls(guard, env, log_path, lease, hidden, find_pid, find_trouble)
            process._tell(job)
        except OSError as error:
            raise InfraError(f"can't start the guard of {lease.command[0]}: {error}") from error
        try:
            process._wait_for(lambda: process._pid is not None or process._failure is not None, _GUARD_SECONDS)
        except BaseException:  # Ctrl-C
            process.stop(0)
            raise
        if process._pid is None:
            process.stop(0)
            raise ServerStartError(
                f"the server can't be executed: {process._failure or 'its guard gave no answer'}",
                command=process.command,
                exit_code=process._exit_code,
                log_tail=process.log_tail(),
                log_path=str(log_path),
            )
        return process

    @property
    def pid(self) -> int | None:
        """Process id of the server itself (the leader of its tree); None where that is not known (yet)."""
        assert self._pid is not None
        return self._pid if self._find_pid is None else self._find_pid(self._pid)

    @property
    def exit_code(self) -> int | None:
        """As subprocess counts: negative for a signal. None while it runs, or where it can't be known any more."""
        return self._exit_code

    def poll(self) -> bool:
        """Whether the server still runs."""
        if self._exit_code is not None or self._stopped:
            return False
        if self._silent:  # the guard has gone without a word
            self._sweep()
            return False
        return True

    def trouble(self) -> str | None:
        """What of the machine, not of the server, explains that it has ended or is not ready; None: nothing."""
        found = self._find_trouble(self._exit_code) if self._find_trouble else None
        return found or no_room(self.log_path.parent, self.log_tail())

    def remember(self) -> None:
        """Note which processes make up the tree now: what is ended, should the guard itself be killed."""
        self._tell({"do": "note"})
        try:
            tree = psutil.Process(self._guard.pid).children(recursive=True)
        except psutil.Error:
            return
        self._known.update(tree)

    def listens(self, port: int) -> bool | None:
        """Whether a process of the tree listens on TCP ``port``; None where that can't be told."""
        self.remember()
        if self._find_pid is not None:
            return None
        for process in list(self._known):
            try:
                connections = process.net_connections("tcp")
            except psutil.NoSuchProcess:
                continue
            except psutil.Error:
                return None
            if any(c.laddr.port == port and c.status == psutil.CONN_LISTEN for c in connections):
                return True
        return False

    def log_tail(self, lines: int = 20) -> tuple[str, ...]:
        """The last ``lines`` lines of output, without colours and secrets."""
        return tuple([*plain_lines(hide(end_of(self.log_path), self._secrets))][-lines:])

    def stop(self, grace: float = 30.0) -> tuple[str, ...]:
        """End the server and all that came of it: SIGTERM, up to ``grace`` seconds, SIGKILL. May be called twice.

        Returns what could not be ended, normally nothing: pids that outlasted SIGKILL (stuck in the kernel), the
        command that ends the server elsewhere and has failed.
        """
        if not self._stopped:
            self.remember()
            self._tell({"do": "stop", "grace": grace})
            patience = ENDED_SECONDS if self._lease.ended else 0.0
            if not self._wait_for(lambda: self._stopped, grace + patience + _GUARD_SECONDS):
                self._guard.kill()
                self._sweep()
            self._stopped = True
        self._close()
        return self._left

    def _tell(self, message: Mapping[str, Any]) -> None:
        assert self._guard.stdin is not None
        try:
            self._guard.stdin.write(json.dumps(message).encode() + b"\n")
            self._guard.stdin.flush()
        except (OSError, ValueError):  # the guard has gone, or is closed already
            return

    def _listen(self) -> None:
        """Thread: take in what the guard says until it has no more to say."""
        assert self._guard.stdout is not None
        for line in self._guard.stdout:
            message = json.loads(line)
            with self._changed:
                match message["event"]:
                    case "started":
                        self._pid = message["pid"]
                    case "failed":
                        self._failure = message["error"]
                    case "exited":
                        self._exit_code = message["code"]
                    case "stopped":
                        self._left = self._remaining(message["left"], message["failed"])
                        self._stopped = True
                self._changed.notify_all()
        with self._changed:
            self._silent = True
            self._changed.notify_all()

    def _wait_for(self, condition: Callable[[], bool], seconds: float) -> bool:
        """Wait until ``condition`` holds, at most ``seconds`` and no longer than the guard lives. Whether it does."""
        with self._changed:
            self._changed.wait_for(lambda: condition() or self._silent, seconds)
            return condition()

    def _sweep(self) -> None:
        """The guard is gone: end what we remember of the tree and whatever carries this launch's name, once."""
        if self._swept:
            return
        known = [(each.pid, started(each.pid)) for each in self._known if each.is_running()]
        left, failed, said = end_all(self._lease, [*known, *noted(self._lease.path)], self._env)
        with suppress(OSError), self.log_path.open("a", encoding="utf-8") as log:
            log.write(hide(said, self._secrets))
        self._left, self._swept = self._remaining(left, failed), True
        if not self._left:
            self._lease.path.unlink(missing_ok=True)

    def _remaining(self, pids: Sequence[int], failed: str | None) -> tuple[str, ...]:
        failed = failed and hide(failed, self._secrets)
        self.stop_failed = failed if failed and not pids else None
        command = (f"{shlex.join(redact(self._lease.ended))} ({failed})",) if failed else ()
        lease = (f"the lease {self._lease.path} stays",) if failed or pids else ()
        return (*(f"pid {pid}" for pid in pids), *command, *lease)

    def forgive(self, why: str) -> None:
        """Drop the lease though ``stop`` of the configuration has failed, and say so in the log."""
        self._left = ()
        self._lease.path.unlink(missing_ok=True)
        with suppress(OSError), self.log_path.open("a", encoding="utf-8") as log:
            log.write(f"pytest-llmperf: stop failed ({self.stop_failed}), but {why}\n")

    def _close(self) -> None:
        for pipe in (self._guard.stdin, self._guard.stdout):
            if pipe is self._guard.stdout:
                self._reader.join(timeout=5)
            if pipe is not None:
                try:
                    pipe.close()
                except OSError:
                    continue
        try:
            self._guard.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._guard.kill()
            self._guard.wait()
