"""What a guard hears and says: JSON lines on its pipes. Stands alone, as the guard does.

- in, first line: the job ``{"argv", "env", "cwd", "log", "secrets", "owner", "grace", "ended", "patience", "first",
  "lease", "facts"}``: secrets stay out of our own argv, and those named out of the log; ``owner`` is the pid whose
  death ends us, ``grace`` the seconds between SIGTERM and SIGKILL in that case; ``ended`` is a command that ends what
  is no child of ours, or empty, ``patience`` the seconds that it gets, ``first`` whether it runs before the tree is
  ended, or when it has been; ``lease`` the file that says what is ours, ``facts`` what stands in it besides
- in, later: ``{"do": "note"}`` (write the present tree into the lease), ``{"do": "stop", "grace": seconds}``
- out: ``{"event": "started", "pid"}`` or ``{"event": "failed", "error"}``, later ``{"event": "exited", "code"}``
  (as subprocess counts: negative for a signal) and ``{"event": "stopped", "left": [pids], "failed": text or null}``:
  what became of ``ended`` where that failed
"""

from __future__ import annotations

import json
import os
from typing import Any, Final

__all__ = ["Input", "append", "end_of", "nameless", "replace_lease", "say"]

_KEPT: Final = 65536


def say(event: str, **fields: Any) -> None:
    try:
        os.write(1, (json.dumps({"event": event, **fields}) + "\n").encode())
    except OSError:  # nobody listens any more
        return


class Input:
    """Commands from stdin, without blocking."""

    def __init__(self) -> None:
        self._rest = b""
        self.ended = False

    def lines(self) -> list[dict[str, Any]]:
        data = os.read(0, 1 << 16)
        self.ended = not data
        *whole, self._rest = (self._rest + data).split(b"\n")
        return [json.loads(line) for line in whole if line.strip()]


def nameless(path: str) -> int:
    """A new file, made at ``path`` and taken from there at once; where the disk is full one that keeps nothing."""
    try:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
        os.unlink(path)  # noqa: PTH108 - no pathlib in the few MB that the guard is
    except OSError:
        return os.open(os.devnull, os.O_RDWR)
    return file


def end_of(file: int) -> bytes:
    """The last 64 KiB of the open ``file``."""
    return os.pread(file, _KEPT, max(0, os.fstat(file).st_size - _KEPT))


def append(log: str, said: bytes) -> None:
    """Write ``said`` at the end of the file ``log``, where there is room."""
    try:
        with open(log, "ab") as file:  # noqa: PTH123 - no pathlib in the few MB that the guard is
            file.write(said)
    except OSError:  # a full disk
        return


def replace_lease(path: str, noted: dict[str, Any]) -> None:
    """Make ``noted`` the content of the lease at ``path``."""
    part = f"{path}.part"
    try:
        with open(part, "w", encoding="utf-8") as file:  # noqa: PTH123 - as above
            json.dump(noted, file)
        os.replace(part, path)  # noqa: PTH105 - as above
    except OSError:  # a full disk: what is guarded is ended all the same
        return
