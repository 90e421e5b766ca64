"""When bytes arrived: the kernel's receive stamps, placed on the run's monotonic clock."""

from __future__ import annotations

import socket
import struct
import sys
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Final, Self

__all__ = [
    "ANCILLARY",
    "SO_TIMESTAMPNS",
    "ClockMap",
    "KernelStamps",
    "StampError",
    "realtime_offset",
    "stamp_ns",
    "unpack_stamp",
]

SO_TIMESTAMPNS: Final = 35
"""``asm-generic/socket.h``; Python's socket module has no name for it. A read then tells, by CLOCK_REALTIME, when the
last segment that it returns entered the network stack: how late we read does not matter."""
ANCILLARY: Final = socket.CMSG_SPACE(16)
"""Room for one ``struct timespec``."""

_REFRESH_NS: Final = 100_000_000
_READINGS: Final = 7
_PROBE_READS: Final = 20
unpack_stamp: Final[Callable[[bytes], tuple[int, int]]] = struct.Struct("qq").unpack
"""Seconds and ns of a ``struct timespec``. Raises StampError for what is none."""
StampError: Final = struct.error


def realtime_offset() -> int:
    """CLOCK_REALTIME - CLOCK_MONOTONIC in ns, from the tightest of several readings: the one least interrupted."""
    best_width = best = -1
    for _ in range(_READINGS):
        before = time.monotonic_ns()
        real = time.time_ns()
        width = time.monotonic_ns() - before
        if best_width < 0 or width < best_width:
            best_width, best = width, real - before - width // 2
    return best


def stamp_ns(ancillary: Sequence[tuple[int, int, bytes]], offset: int) -> int | None:
    """The kernel's receive time in monotonic ns, None where a read brought none."""
    for level, kind, data in ancillary:
        if kind == SO_TIMESTAMPNS and level == socket.SOL_SOCKET and len(data) == 16:
            seconds, ns = unpack_stamp(data)
            return seconds * 1_000_000_000 + ns - offset
    return None


class ClockMap:
    """The offset between the two clocks, read again every 100 ms, since NTP slews and steps the real-time clock."""

    __slots__ = ("_due_ns", "offset")

    def __init__(self) -> None:
        self.offset = realtime_offset()
        self._due_ns = time.monotonic_ns() + _REFRESH_NS

    def refresh(self, now_ns: int) -> None:
        if now_ns >= self._due_ns:
            self.offset = realtime_offset()
            self._due_ns = now_ns + _REFRESH_NS


class KernelStamps:
    """Whether this kernel stamps TCP reads (sandboxes and other systems may not).

    The kernel switches stamping on a little after the first socket asks for it, so the probe asks several times, and
    its socket stays open until ``close`` to keep stamping on.
    """

    def __init__(self) -> None:
        self._sockets: list[socket.socket] = []
        self.available = False
        try:
            # Elsewhere the option's number means something else.
            self.available = sys.platform == "linux" and self._probe()
        except OSError:
            self.close()

    def _probe(self) -> bool:
        listener = socket.create_server(("127.0.0.1", 0))
        self._sockets.append(listener)
        reader = socket.create_connection(listener.getsockname(), timeout=1)
        self._sockets.append(reader)
        reader.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        writer, _ = listener.accept()
        self._sockets.append(writer)
        for _ in range(_PROBE_READS):
            writer.sendall(b".")
            _, ancillary, _, _ = reader.recvmsg(1, ANCILLARY)
            if stamp_ns(ancillary, 0) is not None:
                return True
            time.sleep(0.005)
        return False

    def close(self) -> None:
        for held in self._sockets:
            held.close()
        self._sockets.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
