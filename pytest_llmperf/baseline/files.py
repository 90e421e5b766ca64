"""The files of a store: read whole, replaced in one step, and never over the head of another writer.

``LocalFiles`` is a directory. A writer holds ``_state/lock`` (flock) for as long as it reads and replaces, so that
two of them work one after the other; each file is written beside its place, synced and renamed, so that a reader, a
crash or a full disk sees the old one or the new one.
"""

from __future__ import annotations

import fcntl
import os
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Final, Protocol, final

from pytest_llmperf.errors import BaselineError, InfraError

__all__ = ["STATE", "Changed", "Content", "Files", "LocalFiles"]

STATE: Final = "_state"
"""Folder of what the gate remembers; no baseline lies below it."""
LOCK_WAIT_S: Final = 60.0
_POLL_S: Final = 0.01


class Changed(Exception):  # noqa: N818 - no error: the caller reads again
    """Another writer came first."""


@dataclass(frozen=True, slots=True)
class Content:
    """What a file held, and a tag that it has for as long as that does not change."""

    data: bytes
    tag: str


class Files(Protocol):
    """Paths are relative to the store, with ``/``. Unreadable files raise BaselineError, other trouble InfraError."""

    @property
    def location(self) -> str:
        """For messages; without credentials."""

    @property
    def locked(self) -> bool:
        """Whether ``exclusive`` keeps every other writer out. Else a write finds out that it came second."""

    @property
    def writable(self) -> bool: ...

    def exclusive(self) -> AbstractContextManager[None]: ...

    def read(self, path: str, limit: int) -> Content | None:
        """None where there is no such file; more than ``limit`` bytes are refused."""

    def write(self, path: str, data: bytes, tag: str | None) -> None:
        """Replace a file whose tag was ``tag`` (None: there was none). Raises Changed where that is not so any more."""

    def remove(self, path: str) -> None:
        """Gone afterwards, also where it was not there."""

    def set_aside(self, path: str) -> None:
        """Rename to ``….refused``, so that it is neither used nor lost."""

    def exists(self, path: str) -> bool: ...

    def folders(self, path: str) -> list[str]:
        """Names of the folders in a folder, sorted; none where it does not exist."""

    def walk(self, path: str = "") -> Iterator[str]:
        """Paths of all files below a folder, sorted; ours that are under way left out."""


@final
class LocalFiles:
    """A directory, which need not exist yet."""

    locked: Final = True

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()

    @property
    def location(self) -> str:
        return str(self.root)

    @property
    def writable(self) -> bool:
        nearest = next(folder for folder in (self.root, *self.root.parents) if folder.exists())
        return nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK)

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        path = self._inside(f"{STATE}/lock")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise self._unwritable(path, error) from None
        try:
            self._lock(handle, path)
            yield
        finally:
            os.close(handle)

    def _lock(self, handle: int, path: Path) -> None:
        deadline = time.monotonic() + LOCK_WAIT_S
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    waited = f"another process has held it for {LOCK_WAIT_S:.0f} s"
                    raise InfraError(f"{path}: {waited}; end that one, then try again") from None
                time.sleep(_POLL_S)
            except OSError as error:
                raise InfraError(f"{path}: this file system has no locks ({error.strerror}); use another") from None
            else:
                return

    def read(self, path: str, limit: int) -> Content | None:
        full = self._inside(path)
        remedy = "make it a readable file, or delete it"
        try:  # O_NONBLOCK: a pipe without a writer is to be refused, not waited for
            handle = os.open(full, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise BaselineError(str(full), f"cannot be read: {error.strerror}", remedy) from None
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            os.close(handle)
            raise BaselineError(str(full), "not a regular file", remedy)
        with os.fdopen(handle, "rb") as file:
            try:
                data = file.read(limit + 1)
            except OSError as error:
                raise BaselineError(str(full), f"cannot be read: {error.strerror}", remedy) from None
        if len(data) > limit:
            raise BaselineError(str(full), f"larger than {limit >> 20} MiB", "delete it: it is no file of ours")
        return Content(data, _tag(data))

    def write(self, path: str, data: bytes, tag: str | None) -> None:
        full = self._inside(path)
        temporary: Path | None = None
        try:
            if (_tag(full.read_bytes()) if full.exists() else None) != tag:
                raise Changed
            full.parent.mkdir(parents=True, exist_ok=True)
            for left in full.parent.glob(f".{full.name}.*.tmp"):  # of a writer that was killed: the lock is ours
                left.unlink(missing_ok=True)
            handle, name = tempfile.mkstemp(dir=full.parent, prefix=f".{full.name}.", suffix=".tmp")
            temporary = Path(name)
            with os.fdopen(handle, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            temporary.chmod(0o644)  # mkstemp makes it private; a baseline is for others to read
            temporary.replace(full)
            _sync_folder(full.parent)
        except BaseException as error:
            if temporary is not None:
                temporary.unlink(missing_ok=True)
            if isinstance(error, OSError):
                raise self._unwritable(full, error) from None
            raise

    def remove(self, path: str) -> None:
        full = self._inside(path)
        try:
            full.unlink(missing_ok=True)
            for folder in full.parents:
                if folder == self.root or (folder.exists() and any(folder.iterdir())):
                    break
                if folder.exists():
                    folder.rmdir()
        except OSError as error:
            raise self._unwritable(full, error) from None

    def set_aside(self, path: str) -> None:
        full = self._inside(path.rpartition("/")[0]) / path.rpartition("/")[2]
        try:
            full.replace(full.with_name(f"{full.name}.refused"))
        except OSError as error:
            raise self._unwritable(full, error) from None

    def exists(self, path: str) -> bool:
        return self._inside(path).exists()

    def folders(self, path: str) -> list[str]:
        folder = self._inside(path)
        return sorted(each.name for each in folder.iterdir() if each.is_dir()) if folder.is_dir() else []

    def walk(self, path: str = "") -> Iterator[str]:
        found = [
            Path(folder, name).relative_to(self.root).as_posix()
            for folder, _, names in os.walk(self._inside(path))
            for name in names
            if not name.startswith(".")
        ]
        yield from sorted(found)

    def _inside(self, path: str) -> Path:
        """The path in the file system. Raises BaselineError where a link leads out of the store."""
        full = self.root / path
        try:
            real = full.resolve()
        except (OSError, RuntimeError):
            raise BaselineError(str(full), "a link that leads to itself", "delete it") from None
        if not real.is_relative_to(self.root.resolve()):
            raise BaselineError(str(full), f"leads out of the store, to {real}", "replace the link by what it is for")
        return full

    def _unwritable(self, path: Path, error: OSError) -> InfraError:
        return InfraError(
            f"{path}: cannot be written: {error.strerror}; what was stored before is unchanged: "
            f"free space or give access, then try again"
        )


def _tag(data: bytes) -> str:
    return sha256(data).hexdigest()


def _sync_folder(folder: Path) -> None:
    """Make a rename last through a power cut."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
