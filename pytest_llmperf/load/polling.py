"""Waiting for sockets: epoll where the system has it, with time-outs finer than its milliseconds."""

from __future__ import annotations

import select
import selectors
import socket
import sys
from typing import Final, Protocol

__all__ = ["READ", "WRITE", "Poller", "SelectorPoller", "Stop", "make_poller"]

READ: Final = 1
"""EPOLLIN; EPOLLERR and EPOLLHUP come unasked and set neither bit: a read then tells what happened."""
WRITE: Final = 4
"""EPOLLOUT."""

_MAX_EVENTS: Final = 256
_FINE_S: Final = 0.008
_SELECT_LIMIT: Final = 1024  # FD_SETSIZE


class Poller(Protocol):
    """What the transport needs of epoll; masks are made of ``READ`` and ``WRITE``."""

    def register(self, fd: int, mask: int, /) -> None: ...
    def modify(self, fd: int, mask: int, /) -> None: ...
    def unregister(self, fd: int, /) -> None: ...
    def wait(self, timeout_s: float, /) -> list[tuple[int, int]]:
        """``(fd, mask)`` of what is ready, after ``timeout_s`` at the latest; a time-out may end early."""

    def close(self) -> None: ...


class _Epoll:
    """``epoll_wait`` of Python rounds its time-out up to a whole millisecond, which is too late for a timetable.

    The descriptor of an epoll set is itself selectable, and ``select`` takes microseconds: short waits go there.
    """

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._fine = self._epoll.fileno() < _SELECT_LIMIT
        self.register, self.modify = self._epoll.register, self._epoll.modify
        self.unregister, self.close = self._epoll.unregister, self._epoll.close

    def wait(self, timeout_s: float) -> list[tuple[int, int]]:
        if 0 < timeout_s < _FINE_S and self._fine:
            select.select((self._epoll,), (), (), timeout_s)
            timeout_s = 0
        elif timeout_s > 0:
            # Early by more than it rounds up: the caller asks again for the short rest.
            timeout_s = max(0.0, timeout_s - _FINE_S / 2) if self._fine else timeout_s
        return self._epoll.poll(timeout_s, _MAX_EVENTS)


class SelectorPoller:
    """The same on the best selector of other systems."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self.close = self._selector.close

    def register(self, fd: int, mask: int) -> None:
        self._selector.register(fd, self._events(mask))

    def modify(self, fd: int, mask: int) -> None:
        self._selector.modify(fd, self._events(mask))

    def unregister(self, fd: int) -> None:
        self._selector.unregister(fd)

    def wait(self, timeout_s: float) -> list[tuple[int, int]]:
        ready = self._selector.select(timeout_s)
        return [
            (
                key.fd,
                (READ if events & selectors.EVENT_READ else 0) | (WRITE if events & selectors.EVENT_WRITE else 0),
            )
            for key, events in ready
        ]

    @staticmethod
    def _events(mask: int) -> int:
        return (selectors.EVENT_READ if mask & READ else 0) | (selectors.EVENT_WRITE if mask & WRITE else 0)


def make_poller() -> Poller:
    """A new poller; the caller closes it."""
    return _Epoll() if sys.platform == "linux" else SelectorPoller()


class Stop:
    """A flag that wakes the load's loop. ``set`` may be called from any thread and from a signal handler."""

    def __init__(self) -> None:
        self._flag = False
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)

    def set(self) -> None:
        if not self._flag:
            self._flag = True
            self._writer.send(b".")

    def is_set(self) -> bool:
        return self._flag

    def fileno(self) -> int:
        """Readable for ever once the flag is set."""
        return self._reader.fileno()

    def close(self) -> None:
        """Free both sockets; ``set`` after that does nothing."""
        self._flag = True
        self._reader.close()
        self._writer.close()
