"""Processes by pid and start time, straight from /proc. Stands alone, as the guard does that needs it."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from typing import Final

__all__ = [
    "LINUX", "Kin", "Process", "adopt_orphans", "descendants", "die_with", "failure", "kill", "runs", "send", "started",
]  # fmt: skip

LINUX: Final = sys.platform.startswith("linux")
_PR_SET_PDEATHSIG: Final = 1
_PR_SET_CHILD_SUBREAPER: Final = 36
_LIBC: Final = ctypes.CDLL(None, use_errno=True) if LINUX else None

Process = tuple[int, str]
"""Pid and start time (clock ticks after boot, as text): unique until the machine restarts. No time but on Linux."""


def adopt_orphans() -> None:
    """Become the parent of every process below us whose own parent ends (Linux)."""
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def die_with(parent: int) -> None:
    """In a new child of ``parent``: be killed when it ends, and end now if it has (Linux)."""
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)


def descendants(root: int) -> list[Process]:
    """All processes below ``root`` except zombies, by one pass over /proc."""
    children: dict[int, list[tuple[int, str, str]]] = {}
    for entry in os.listdir("/proc"):  # noqa: PTH208 - this is polled, and paths cost
        if entry.isdigit() and (fields := _stat(int(entry))) is not None:
            state, parent, begun = fields
            children.setdefault(parent, []).append((int(entry), state, begun))
    found: list[Process] = []
    queue = [root]
    while queue:
        for pid, state, begun in children.get(queue.pop(), ()):
            queue.append(pid)
            if state not in "ZX":
                found.append((pid, begun))
    return found


class Kin:
    """The processes below ``root``, which adopts orphans, for looking at again and again.

    Whose parent is one of them is one of them for life, so that each look reads of those only that were not there at
    the last one: a small part of what a pass over all of /proc costs.
    """

    def __init__(self, root: int) -> None:
        self._root = root
        self._seen: set[str] = set()
        self._own: set[int] = set()

    def grown(self) -> bool:
        """Whether some have come since the last look."""
        there = {entry for entry in os.listdir("/proc") if entry.isdigit()}  # noqa: PTH208 - as above
        fresh = {int(entry): fields[1] for entry in there - self._seen if (fields := _stat(int(entry))) is not None}
        self._seen = there
        self._own = {pid for pid in self._own if str(pid) in there} | {self._root}
        before = len(self._own)
        while found := {pid for pid, parent in fresh.items() if parent in self._own and pid not in self._own}:
            self._own |= found
        return len(self._own) > before


def failure(code: int | None, seconds: float, output: str) -> str | None:
    """How a command that ends a server failed, with its last line; None where it did not. No ``code``: hung."""
    if code == 0:
        return None
    ended = f"did not end within {seconds:g} s and was killed" if code is None else f"exit status {code}"
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return f"{ended}: {lines[-1][:300]}" if lines else ended


def started(pid: int) -> str:
    """The start time of ``pid``; empty where it has gone, or where the system doesn't tell."""
    fields = _stat(pid)
    return "" if fields is None else fields[2]


def runs(process: Process) -> bool:
    """Whether that very process is there, and no zombie. Where no start time is known: whether its pid is."""
    pid, begun = process
    if not begun:
        return _exists(pid)
    fields = _stat(pid)
    return fields is not None and fields[2] == begun and fields[0] not in "ZX"


def kill(process: Process, number: int) -> None:
    """Signal ``process`` unless its pid has meanwhile gone to another."""
    pid, begun = process
    if not begun:
        send(pid, number)
        return
    try:
        handle = os.pidfd_open(pid)
    except OSError:  # gone, or a kernel before 5.3
        handle = -1
    try:
        if started(pid) != begun:
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


def send(pid: int, number: int) -> None:
    """Signal ``pid``, if there is one that we may."""
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        return


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _stat(pid: int) -> tuple[str, int, str] | None:
    """State, parent and start time of ``pid``; None if it has gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123 - as above
            # The name, second field, may hold anything, spaces and parentheses too.
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    return fields[0].decode(), int(fields[1]), fields[19].decode()
