"""Room on the disks that a campaign writes to, before its first launch and at the end of a server; the log there."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from pytest_llmperf.errors import InfraError
from pytest_llmperf.plan import ServerSpec
from pytest_llmperf.server.caches import cache_folders

__all__ = ["end_of", "no_room", "require_disk"]

_MIB: Final = 2**20
_TAIL_BYTES: Final = 65536
_LINE: Final = 4096
"""What a server that prints a line needs free."""
_FULL: Final = ("No space left on device", "Disk quota exceeded")
"""Of ENOSPC and EDQUOT, as the C library, Python and Rust print them."""
REPORT: Final = 100 * _MIB
"""Records and logs of a long run; most are a few MiB."""
COMPILED: Final = 1024 * _MIB
"""What an engine compiles for one configuration, and a little more."""


def require_disk(report_dir: Path, spec: ServerSpec) -> None:
    """Raise InfraError where the report or the compile caches of ``spec`` have no room.

    Environments of versions are made by a tool that says so itself; images are the container engine's.
    """
    folders: Mapping[str, Path] = {name: Path(folder) for name, folder in cache_folders(spec).items()}
    _require(report_dir, REPORT, "the report")
    for name, folder in folders.items():
        _require(folder, COMPILED, f"the compile cache {name}")


def end_of(log: Path) -> str:
    """The last 64 KiB of a log; empty where it can't be read."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - _TAIL_BYTES))
            return file.read().decode(errors="replace")
    except OSError:
        return ""


def no_room(folder: Path, log: Sequence[str]) -> str | None:
    """Why a server that writes into ``folder`` may have ended for want of room on a disk; None where it did not."""
    said = next((line for line in reversed(log) if any(sign in line for sign in _FULL)), None)
    if said is not None:
        return f"a disk is full ({said.strip()[:300]})"
    try:
        full = shutil.disk_usage(folder).free < _LINE
    except OSError:
        return None
    return f"the disk of its log is full ({folder})" if full else None


def _require(folder: Path, needed: int, what: str) -> None:
    there = next((path for path in (folder.absolute(), *folder.absolute().parents) if path.is_dir()), None)
    try:
        free = needed if there is None else shutil.disk_usage(there).free
    except OSError:  # whoever writes there will say what it is
        return
    if free < needed:
        room = f"{free / _MIB:.0f} MiB free, and {needed / _MIB:.0f} MiB are needed"
        raise InfraError(f"the disk of {what}, {folder}, has {room}: make room there, or name another folder")
