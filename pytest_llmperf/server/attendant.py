"""Stands for a server that a command starts: runs ``start``, follows ``logs``. Its output is the server's log.

Run alone, with ``{"start": [...], "logs": [...], "detached": bool}`` as its argument. Where ``start`` stays, we end
with it and as it did; where it leaves a server running elsewhere (``detached``), we stay until we are ended.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Final

from pytest_llmperf.server.tree import die_with

__all__ = ["main"]

_POLL_SECONDS: Final = 0.02
_AGAIN_SECONDS: Final = 2.0
"""Between two tries of ``logs``: ``kubectl logs -f`` fails until there is a container."""
_LAST_LINES_SECONDS: Final = 0.5


def main() -> int:
    job = json.loads(sys.argv[1])
    ends: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _frame: ends.append(number))
    start = _spawn(job["start"])
    if start is None:
        return 127
    logs: subprocess.Popen[bytes] | None = None
    next_try, told = 0.0, False
    while True:
        code = start.poll()
        if code is not None and (code or not job["detached"]):
            time.sleep(_LAST_LINES_SECONDS if logs is not None else 0.0)
            return _as_it_did(code)
        if ends and not told:
            if code is not None:
                return 0
            start.send_signal(signal.SIGTERM)
            told = True
        begun = code is not None or not job["detached"]
        if job["logs"] and begun and time.monotonic() >= next_try and (logs is None or logs.poll()):
            next_try = time.monotonic() + _AGAIN_SECONDS
            logs = _spawn(job["logs"]) or logs
        time.sleep(_POLL_SECONDS)


def _spawn(words: Sequence[str]) -> subprocess.Popen[bytes] | None:
    """None, and a line in the log, where it can't be executed."""
    own = os.getpid()
    try:
        return subprocess.Popen(words, stdin=subprocess.DEVNULL, preexec_fn=lambda: die_with(own))
    except OSError as error:
        os.write(2, f"{words[0]} can't be executed: {error}\n".encode())
        return None


def _as_it_did(code: int) -> int:
    """``code`` as our own exit status; a signal we die of too."""
    if code < 0:
        signal.signal(-code, signal.SIG_DFL) if -code not in (signal.SIGKILL, signal.SIGSTOP) else None
        os.kill(os.getpid(), -code)
    return code
