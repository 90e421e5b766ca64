"""A server process as pytest sees it: started, watched and ended through ``guard.py``, its parent."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Self

import psutil

from pytest_llmperf.engines.redact import HIDDEN, redact, secrets
from pytest_llmperf.errors import InfraError, ServerStartError

__all__ = ["LAUNCH_VARIABLE", "ServerProcess", "redact"]

LAUNCH_VARIABLE: Final = "PYTEST_LLMPERF_LAUNCH"
"""Set in the server's environment to a name of this launch; every process that comes of it inherits it."""

_GUARD: Final = Path(__file__).with_name("guard.py")
_ORPHAN_GRACE: Final = 3.0
"""Seconds between SIGTERM and SIGKILL when pytest itself has gone."""
_GUARD_SECONDS: Final = 15.0
"""What the guard may take beyond the grace before we do its work."""
_TAIL_BYTES: Final = 65536
_ANSI: Final = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")


class ServerProcess:
    """One started server. Not to be shared between threads, except ``poll``."""

    def __init__(self, guard: subprocess.Popen[bytes], command: Sequence[str], env: Mapping[str, str], log: Path):
        self._guard, self.log_path, self._name = guard, log, env[LAUNCH_VARIABLE]
        self._secrets = secrets(command, env)
        self._changed = threading.Condition()
        self._pid: int | None = None
        self._exit_code: int | None = None
        self._failure: str | None = None
        self._stopped = self._silent = False
        self._left: tuple[int, ...] = ()
        self._known: set[psutil.Process] = set()
        self.command: tuple[str, ...] = redact(command)
        """What was started, with secrets replaced."""
        self._reader = threading.Thread(target=self._listen, name="llmperf-guard", daemon=True)
        self._reader.start()

    @classmethod
    def start(cls, command: Sequence[str], env: Mapping[str, str], log_path: Path, *, cwd: Path | None = None) -> Self:
        """Start ``command`` with exactly ``env`` (plus ``LAUNCH_VARIABLE``), its output appended to ``log_path``.

        Raises ServerStartError if it can't be executed, InfraError if the guard can't be started.
        """
        env = {**env, LAUNCH_VARIABLE: uuid.uuid4().hex}
        job = {
            "argv": list(command),
            "env": env,
            "cwd": str(cwd or Path.cwd()),
            "log": str(log_path.absolute()),
            "owner": os.getpid(),
            "grace": _ORPHAN_GRACE,
        }
        try:
            with log_path.open("ab") as log:
                guard = subprocess.Popen(
                    [sys.executable, "-I", "-S", str(_GUARD)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    start_new_session=True,  # Ctrl-C at the terminal is for pytest, which then stops us in order
                )
            process = cls(guard, command, env, log_path)
            process._tell(job)
        except OSError as error:
            raise InfraError(f"can't start the guard of {redact(command)[0]}: {error}") from error
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
    def pid(self) -> int:
        """Process id of the server itself (the leader of its tree)."""
        assert self._pid is not None
        return self._pid

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

    def remember(self) -> None:
        """Note which processes make up the tree now: what is ended, should the guard itself be killed."""
        try:
            tree = psutil.Process(self._guard.pid).children(recursive=True)
        except psutil.Error:
            return
        self._known.update(tree)

    def listens(self, port: int) -> bool | None:
        """Whether a process of the tree listens on TCP ``port``; None where the system doesn't tell."""
        self.remember()
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
        try:
            with self.log_path.open("rb") as file:
                file.seek(max(0, self.log_path.stat().st_size - _TAIL_BYTES))
                text = file.read().decode(errors="replace")
        except OSError:
            return ()
        for secret in self._secrets:
            text = text.replace(secret, HIDDEN)
        # A progress bar rewrites its line with carriage returns: only the last state counts.
        shown = (line.rstrip("\r").rpartition("\r")[2].rstrip() for line in _ANSI.sub("", text).split("\n"))
        return tuple([line for line in shown if line][-lines:])

    def stop(self, grace: float = 30.0) -> tuple[int, ...]:
        """End the server and all that came of it: SIGTERM, up to ``grace`` seconds, SIGKILL. May be called twice.

        Returns the pids that even SIGKILL did not end (stuck in the kernel): normally none.
        """
        if not self._stopped:
            self.remember()
            self._tell({"do": "stop", "grace": grace})
            if not self._wait_for(lambda: self._stopped, grace + _GUARD_SECONDS):
                self._guard.kill()
                self._sweep()
            self._stopped = True
            self._redact_log()
        self._close()
        return self._left

    def _redact_log(self) -> None:
        """Take the secrets that we passed on out of the log: some servers print their own command line."""
        hidden = [secret.encode() for secret in self._secrets]
        try:
            before = self.log_path.read_bytes() if hidden else b""
            after = before
            for secret in hidden:
                after = after.replace(secret, HIDDEN.encode())
            if after != before:
                self.log_path.write_bytes(after)
        except OSError:
            return

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
                        self._left = tuple(message["left"])
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
        """The guard is gone: end what we remember of the tree and whatever carries this launch's name."""
        deadline = time.monotonic() + _GUARD_SECONDS
        while (left := self._survivors()) and time.monotonic() < deadline:
            for process in left:
                try:
                    process.kill()  # psutil compares the start time first: never a stranger with the same pid
                except psutil.Error:
                    continue
            psutil.wait_procs(left, timeout=0.05)
        self._left = tuple(process.pid for process in left)

    def _survivors(self) -> list[psutil.Process]:
        found = {process for process in self._known if _runs(process)}
        for process in psutil.process_iter():
            try:
                if process.environ().get(LAUNCH_VARIABLE) == self._name and _runs(process):
                    found.add(process)
            except (psutil.Error, OSError):  # another user's, or gone
                continue
        return [process for process in found if process.pid != self._guard.pid]

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


def _runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False
