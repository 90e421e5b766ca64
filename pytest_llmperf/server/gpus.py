"""GPUs taken for a campaign: one lock per GPU of this machine.

The lock is ``flock`` on a file named after the GPU's UUID: the kernel drops it with the process that holds it, in
whatever way that ends. Files stay; to delete one would let two processes lock two files of the same name. What a file
holds says who has the lock, for messages only. Containers that share GPUs must share the folder too.
"""

from __future__ import annotations

import fcntl
import getpass
import json
import os
import stat
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Self, final

from pytest_llmperf.cards import Card
from pytest_llmperf.errors import InfraError

__all__ = ["FOLDER_VARIABLE", "GpuLocks", "Wish", "holder_of", "lock_folder", "require_there", "take", "users_of"]

FOLDER_VARIABLE: Final = "PYTEST_LLMPERF_LOCKS"
"""Environment variable with another folder for the locks."""
_FOLDER: Final = "/tmp/pytest-llmperf-locks"  # noqa: S108 - one place for all users; checked before use
_POLL_S: Final = 0.5
_LOOKS: Final = 4
_LOOK_S: Final = 0.01
_MOST: Final = 300
"""Characters of what a lock file says that are read: others may write there."""


@final
@dataclass(frozen=True, slots=True)
class Wish:
    """Which GPUs a server needs."""

    gpus: tuple[int, ...] = ()
    """NVML indices; empty: any ``count`` that are free."""
    count: int = 0
    wait_s: float = 1800.0
    shared: bool = False
    """Others may compute on them beside the server."""
    memory_share: float | None = None
    """Of each GPU's memory, as the server's configuration says it; None where it does not."""

    def __str__(self) -> str:
        return f"GPU {', '.join(map(str, self.gpus))}" if self.gpus else f"any {self.count} GPUs"


@final
class GpuLocks:
    """Locks of this process on GPUs, by UUID. Leaving the ``with`` block, or the end of the process, gives them up."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder or lock_folder()
        self._files: dict[str, int] = {}
        self.cards: tuple[Card, ...] = ()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def release(self) -> None:
        """Safe to call twice."""
        while self._files:
            _, file = self._files.popitem()
            os.close(file)
        self.cards = ()

    def try_one(self, card: Card) -> bool:
        """Lock it now, if nobody has it. Raises InfraError where the lock cannot be asked for."""
        tries = _LOOKS
        while (file := _locked(self.folder, card.uuid)) is None:
            tries -= 1
            if not tries:
                return False
            time.sleep(_LOOK_S)  # it may be but somebody's look at who holds it
        self._files[card.uuid] = file
        self.cards = (*self.cards, card)
        return True


def take(
    wish: Wish,
    look: Callable[[], Sequence[Card]],
    *,
    folder: Path | None = None,
    tell: Callable[[float, str], None] | None = None,
) -> GpuLocks:
    """Wait until the GPUs are ours and nobody else computes on them, at most ``wish.wait_s``; lock them.

    ``look`` gives the GPUs that come into question as they are. ``tell`` is called with the seconds waited so far and
    for whom. Nothing is held while it waits, so two jobs that want the same GPUs never wait for each other. Raises
    InfraError that names who holds them, at once for GPUs that are not there or answer nothing.
    """
    begun = time.monotonic()
    locks = GpuLocks(folder)
    while True:
        why = _attempt(locks, wish, look())
        if why is None:
            return locks
        waited = time.monotonic() - begun
        if waited >= wish.wait_s:
            raise InfraError(f"{wish} not free after {wish.wait_s:.0f} s (gpu_wait): {why}")
        if tell is not None:
            tell(waited, f"waiting for {wish}: {why}")
        time.sleep(min(_POLL_S, max(0.0, wish.wait_s - waited)))


def require_there(wish: Wish, cards: Sequence[Card]) -> None:
    """Raise InfraError where ``cards`` can never be what is wished for: there are too few, or they are lost."""
    known = {card.index for card in cards}
    if missing := [gpu for gpu in wish.gpus if gpu not in known]:
        names = ", ".join(map(str, sorted(known))) or "none"
        raise InfraError(f"there is no GPU {missing[0]} in this machine; the driver knows {names}")
    lost = [card.index for card in cards if card.silent]
    if own := [gpu for gpu in wish.gpus if gpu in lost]:
        raise InfraError(f"{_lost_text(own)}: reset or drain it")
    if not wish.gpus and wish.count > len(known) - len(lost):
        why = f", of which {_lost_text(lost)}" if lost else ""
        raise InfraError(f"{wish} were asked for, and this machine has {len(cards)}{why}")


def _attempt(locks: GpuLocks, wish: Wish, cards: Sequence[Card]) -> str | None:
    """Lock what is wished for; else why not."""
    require_there(wish, cards)
    if wish.gpus:
        by_index = {card.index: card for card in cards}
        ours = [by_index[gpu] for gpu in wish.gpus]
        busy = next(([why] for card in ours if (why := _taken(locks, wish, card)) is not None), [])
    else:
        busy = _any(locks, wish, cards)
    if busy:
        locks.release()
    return "; ".join(busy) or None


def _any(locks: GpuLocks, wish: Wish, cards: Sequence[Card]) -> list[str]:
    """Lock as many as are wished for, those with most room first; else who has the others."""
    able = [card for card in cards if not card.silent]
    busy = []
    for card in sorted(able, key=lambda card: (card.used_bytes is None, card.used_bytes or 0, card.index)):
        if len(locks.cards) == wish.count:
            break
        if (why := _taken(locks, wish, card)) is not None:
            busy.append(why)
    return [] if len(locks.cards) == wish.count else busy


def _taken(locks: GpuLocks, wish: Wish, card: Card) -> str | None:
    """Lock it; else who has it. A GPU that others use without a lock would make the measurement invalid."""
    if card.processes and not wish.shared:
        return f"GPU {card.index} is in use by {users_of(card)}, which holds no lock (gpu_shared = true lets it stay)"
    return None if locks.try_one(card) else _held_text(card, locks)


def _lost_text(gpus: Sequence[int]) -> str:
    names = " and ".join(f"GPU {gpu}" for gpu in gpus)
    return f"{names} {'answer' if len(gpus) > 1 else 'answers'} nothing to the driver (lost?)"


def users_of(card: Card) -> str:
    """The processes that compute on it, in words."""
    return ", ".join(map(str, card.processes or ()))


def _held_text(card: Card, locks: GpuLocks) -> str:
    return f"GPU {card.index} is held by {holder_of(card.uuid, locks.folder) or 'another process'}"


def holder_of(uuid: str, folder: Path | None = None) -> str | None:
    """Who holds the lock of a GPU now, in words; None where nobody does. Takes no lock for longer than a look."""
    path = _path(folder or lock_folder(), uuid)
    try:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return _said(os.read(file, _MOST))
    finally:
        os.close(file)
    return None


def _said(written: bytes) -> str:
    """What a holder has written of itself, made fit to print."""
    try:
        told = json.loads(written)
        text = f"pid {int(told['pid'])} of {told['user']} since {told['since']}: {told['command']}"
    except (ValueError, TypeError, KeyError):
        return "another process"
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def lock_folder() -> Path:
    """Where the locks of this machine lie."""
    return Path(os.environ.get(FOLDER_VARIABLE) or _FOLDER)


def _locked(folder: Path, uuid: str) -> int | None:
    """An open and locked file; None where another has the lock."""
    path = _path(folder, uuid)
    while True:
        try:
            file = _opened(folder, path)
        except OSError as error:
            raise InfraError(
                f"the lock of a GPU, {path}, cannot be opened: {error.strerror}; see to the folder's rights, or name "
                f"another one in {FOLDER_VARIABLE}"
            ) from None
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(file)
            return None
        if _is_at(file, path):
            _sign(file)
            return file
        os.close(file)  # deleted between open and lock: whoever comes now makes a new one


def _opened(folder: Path, path: Path) -> int:
    """In a folder for all users, whose files only their owners can delete; never through a link."""
    try:
        folder.mkdir(mode=0o1777)
        folder.chmod(0o1777)  # whatever the umask
    except FileExistsError:
        kept = folder.lstat()
        if not stat.S_ISDIR(kept.st_mode):
            raise OSError(20, "its folder is no directory") from None
        if kept.st_mode & stat.S_IWOTH and not kept.st_mode & stat.S_ISVTX:
            raise OSError(1, "its folder is open to all and not sticky") from None
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
    while True:
        try:
            # Without O_CREAT: kernels forbid that for files of others in such a folder.
            return os.open(path, flags)
        except FileNotFoundError:
            try:
                file = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o666)
            except FileExistsError:
                continue
            os.fchmod(file, 0o666)
            return file


def _is_at(file: int, path: Path) -> bool:
    try:
        found = path.lstat()
    except FileNotFoundError:
        return False
    own = os.fstat(file)
    return (own.st_ino, own.st_dev) == (found.st_ino, found.st_dev)


def _sign(file: int) -> None:
    """Say who holds it; the command without its arguments, which may hold secrets."""
    try:
        user = getpass.getuser()
    except (OSError, KeyError):
        user = f"uid {os.getuid()}"
    command = Path(sys.argv[0]).name or "python"
    since = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    told = {"pid": os.getpid(), "user": user[:40], "since": since, "command": command[:60]}
    os.ftruncate(file, 0)
    os.pwrite(file, json.dumps(told).encode(), 0)


def _path(folder: Path, uuid: str) -> Path:
    return folder / "".join(letter if letter.isalnum() or letter in "-_" else "_" for letter in uuid)
