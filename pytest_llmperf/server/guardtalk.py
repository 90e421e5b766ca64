"""What a guard hears and says: JSON lines on its pipes, and output for the log. Stands alone, as the guard does."""

from __future__ import annotations

import json
import os
from typing import Any, Final

__all__ = ["Input", "keep_end", "say"]

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


def keep_end(file: int, log: str) -> str:
    """Append the last 64 KiB of the open ``file`` to ``log``, where that can be written; and return them."""
    text = os.pread(file, _KEPT, max(0, os.fstat(file).st_size - _KEPT))
    try:
        target = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            os.write(target, text)
        finally:
            os.close(target)
    except OSError:  # a full disk
        return text.decode(errors="replace")
    return text.decode(errors="replace")
