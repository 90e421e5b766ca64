"""Writes a server's log, so that no secret ever reaches the file, however pytest and the server end.

A thread of the guard: the server's output comes through a pipe and goes on at once, but for what may be the beginning
of a secret. Stands alone, as the guard does that needs it. What the disk has no room for is dropped: the server must
never wait for us.
"""

from __future__ import annotations

import array
import fcntl
import os
import re
import select
import termios
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from typing import Final, final

__all__ = ["Blotter", "Scribe"]

_HIDDEN: Final = b"***"
_PIECE: Final = 1 << 20
_GIVE_AWAY: Final = 6
"""So many characters of a secret whose end never came are hidden too."""
_F_SETPIPE_SZ: Final = 1031


@final
class Blotter:
    """Takes ``secrets`` out of a stream of bytes, wherever they are cut by its pieces."""

    def __init__(self, secrets: Iterable[bytes]) -> None:
        self._secrets = sorted({secret for secret in secrets if secret}, key=len, reverse=True)
        self._any = re.compile(b"|".join(re.escape(secret) for secret in self._secrets)) if self._secrets else None
        self._rest = b""

    def feed(self, piece: bytes) -> bytes:
        """What can be written now: all but the end that may begin a secret."""
        data = self._rest + piece if self._rest else piece
        begin = self._open(data)
        shown: list[bytes] = []
        at = 0
        if self._any is not None and any(secret in data for secret in self._secrets):
            for match in self._any.finditer(data):
                if match.start() >= begin:  # it may be the beginning of a longer one
                    break
                shown += (data[at : match.start()], _HIDDEN)
                at = match.end()
                if at > begin:
                    begin = at + self._open(data[at:])
        self._rest = data[begin:]
        return b"".join((*shown, data[at:begin]))

    def end(self) -> bytes:
        """What was held back; hidden where it is enough of a secret to matter."""
        rest, self._rest = self._rest, b""
        rest = self._any.sub(_HIDDEN, rest) if self._any is not None else rest
        begin = self._open(rest)
        return rest[:begin] + _HIDDEN if len(rest) - begin >= _GIVE_AWAY else rest

    def _open(self, data: bytes) -> int:
        """Where the longest end of ``data`` begins that a secret may go on from; its length where there is none."""
        longest = 0
        for secret in self._secrets:
            if len(secret) - 1 <= longest:
                break
            tail = data[-(len(secret) - 1) :]
            at = tail.find(secret[:1])
            while at != -1 and len(tail) - at > longest:
                if secret.startswith(tail[at:]):
                    longest = len(tail) - at
                    break
                at = tail.find(secret[:1], at + 1)
        return len(data) - longest


@final
class Scribe:
    """The pipe ``inlet``, and the thread that writes what comes out of it to the file ``log``, which it closes."""

    def __init__(self, log: int, secrets: Iterable[bytes]) -> None:
        self._log, self._blotter = log, Blotter(secrets)
        self._outlet, self.inlet = os.pipe()
        os.set_blocking(self._outlet, False)
        with suppress(OSError):  # Linux has it; a server that logs much waits less
            fcntl.fcntl(self.inlet, _F_SETPIPE_SZ, _PIECE)
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._write_all, name="scribe", daemon=True)

    def begin(self) -> None:
        """Start to write. Whatever is to be forked safely is forked before."""
        self._thread.start()

    def settle(self, seconds: float) -> None:
        """Write what is in the pipe now; at most ``seconds``."""
        deadline, left = time.monotonic() + seconds, _waiting(self._outlet)
        while time.monotonic() < deadline and self._lock.acquire(timeout=seconds):
            try:
                moved = self._move() if left > 0 else None
            finally:
                self._lock.release()
            if not moved:
                return
            left -= len(moved)

    def end(self, seconds: float) -> None:
        """Close our end and wait until all is written, at most ``seconds``: what outlasts SIGKILL may hold the pipe."""
        os.close(self.inlet)
        if self._thread.is_alive():
            self._thread.join(seconds)
        else:
            self.settle(seconds)
        if self._lock.acquire(timeout=seconds):
            self._put(self._blotter.end())

    def _write_all(self) -> None:
        poll = select.poll()
        poll.register(self._outlet, select.POLLIN)
        while True:
            poll.poll()
            with self._lock:
                if self._move() == b"":
                    return

    def _move(self) -> bytes | None:
        """Write one piece and return it; empty at the end of the stream, None where there is nothing now."""
        try:
            piece = os.read(self._outlet, _PIECE)
        except BlockingIOError:
            return None
        self._put(self._blotter.feed(piece))
        return piece

    def _put(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            try:
                rest = rest[os.write(self._log, rest) :]
            except OSError:  # a full disk
                return


def _waiting(pipe: int) -> int:
    """Bytes in ``pipe``."""
    found = array.array("i", [0])
    fcntl.ioctl(pipe, termios.FIONREAD, found)
    return found[0]
