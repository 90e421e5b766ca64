"""The connections of one run: opening, keeping, reusing; every read goes through one function here."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from pytest_llmperf.errors import InfraError
from pytest_llmperf.load.client import Exchange
from pytest_llmperf.load.clock import ANCILLARY, ClockMap, StampError, unpack_stamp
from pytest_llmperf.load.connection import Address, Connection, ConnectionFailedError, error_text
from pytest_llmperf.load.meter import Meter
from pytest_llmperf.load.polling import READ, WRITE, make_poller
from pytest_llmperf.records import Outcome

if TYPE_CHECKING:
    import ssl

__all__ = ["Transport"]

_READ_SIZE: Final = 8192  # a larger buffer is allocated anew for each read and costs more than it saves
_monotonic_ns: Final = time.monotonic_ns
_AT_ONCE_NS: Final = 1_000_000_000
_RACE_NS: Final = 5_000_000


def _nothing(_exchange: Exchange) -> None:
    pass


class Transport:
    """Carries exchanges over pooled connections; ``begin`` names who is told that one was sent and has ended.

    ``attach`` gives an exchange a connection; it is sent as soon as that is open and ``held`` is false.
    """

    def __init__(
        self,
        address: Address,
        tls: ssl.SSLContext | None,
        tls_name: str,
        *,
        stamps: bool,
    ) -> None:
        self.meter = Meter()
        self.clock = ClockMap()
        self.stamps = stamps
        """Reads are expected to carry kernel stamps."""
        self._address, self._tls, self._tls_name = address, tls, tls_name
        self._poller = make_poller()
        self._on_sent: Callable[[Exchange], None] = _nothing
        self._on_end: Callable[[Exchange], None] = _nothing
        self._connections: dict[int, Connection] = {}  # by descriptor
        self._numbered: dict[int, Connection] = {}
        self._idle: list[Connection] = []  # the one used last is reused first, so that few stay warm
        self._numbers = 0
        self._stale = 0
        self.retried = 0
        """Requests that were sent again."""

    def begin(self, wake_fd: int, on_sent: Callable[[Exchange], None], on_end: Callable[[Exchange], None]) -> None:
        """``wait`` also returns when ``wake_fd`` becomes readable."""
        self._on_sent, self._on_end = on_sent, on_end
        self._poller.register(wake_fd, READ)

    def wait(self, timeout_s: float) -> bool:
        """React to what is ready, after ``timeout_s`` at the latest; whether there was anything."""
        events = self._poller.wait(timeout_s)
        connections = self._connections
        for fd, mask in events:
            connection = connections.get(fd)
            if connection is None:  # the wake-up, or closed by an earlier event of the same batch
                continue
            if mask == READ and connection.connected_ns is not None:
                self._read(connection)
            else:
                self._handle(connection, mask)
        return bool(events)

    # --- giving exchanges their connections

    def attach(self, exchange: Exchange) -> None:
        """Give ``exchange`` an idle connection or open one for it."""
        if self._idle:
            connection = self._idle.pop()
            connection.exchange = exchange
            exchange.connection = connection.number
            if not exchange.held:
                self._send(connection, exchange)
        else:
            self._open(exchange)

    def release(self, exchange: Exchange) -> None:
        """Send a held exchange now, or once its connection is open."""
        exchange.held = False
        connection = self._of(exchange)
        if connection is not None and connection.connected_ns is not None:
            self._send(connection, exchange)

    def ready(self, exchange: Exchange) -> bool:
        """Whether its connection is open."""
        connection = self._of(exchange)
        return connection is not None and connection.connected_ns is not None

    def abort(self, exchange: Exchange, outcome: Outcome, detail: str) -> None:
        """End an exchange from our side, its connection with it."""
        exchange.fail(outcome, detail)
        self._finish(exchange, self._of(exchange), time.monotonic_ns(), reuse=False)

    def close(self) -> None:
        for connection in list(self._connections.values()):
            self._drop(connection)
        self._idle.clear()
        self._poller.close()

    def _of(self, exchange: Exchange) -> Connection | None:
        connection = self._numbered.get(exchange.connection)
        return connection if connection is not None and connection.exchange is exchange else None

    def _open(self, exchange: Exchange) -> None:
        number, self._numbers = self._numbers, self._numbers + 1
        exchange.connection = number
        exchange.connect_start_ns, exchange.connected_ns = time.monotonic_ns(), None
        try:
            connection = Connection(self._address, number, self._tls, self._tls_name, self.stamps)
        except ConnectionFailedError as error:
            exchange.fail(error.outcome, error.detail)
            self._finish(exchange, None, None, reuse=False)
            return
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                raise InfraError(
                    f"no file descriptor left for connection {number} ({len(self._connections)} open); "
                    "raise the limit (ulimit -n) or lower the load"
                ) from None
            exchange.fail(Outcome.CONNECT_FAILED, error_text(error))
            self._finish(exchange, None, None, reuse=False)
            return
        exchange.connect_start_ns = connection.start_ns
        connection.exchange = exchange
        connection.mask = READ | WRITE
        self._connections[connection.fd] = self._numbered[number] = connection
        self._poller.register(connection.fd, connection.mask)

    def _advance(self, connection: Connection) -> None:
        exchange = connection.exchange
        assert exchange is not None
        try:
            opened = connection.advance()
        except ConnectionFailedError as error:
            exchange.fail(error.outcome, error.detail)
            self._finish(exchange, connection, None, reuse=False)
            return
        if opened:
            exchange.connected_ns = connection.connected_ns
            if not exchange.held:
                self._send(connection, exchange)
        self._arm(connection)

    def _send(self, connection: Connection, exchange: Exchange) -> None:
        try:
            wire = connection.seal(exchange.request.wire)
            exchange.sent_ns = exchange.progress_ns = time.monotonic_ns()
            connection.send(wire)
        except OSError as error:
            self._lost(connection, error)
            return
        self._arm(connection)
        self._on_sent(exchange)

    def _arm(self, connection: Connection) -> None:
        """Ask for writability only while there is something to write."""
        mask = READ | WRITE if connection.pending else READ
        if mask != connection.mask and self._connections.get(connection.fd) is connection:
            connection.mask = mask
            self._poller.modify(connection.fd, mask)

    # --- hot path

    def _handle(self, connection: Connection, mask: int) -> None:
        """React to an event that is more than something to read."""
        if connection.connected_ns is None:
            self._advance(connection)
            return
        if mask & WRITE and connection.pending:
            try:
                connection.send(b"")
            except OSError as error:
                self._lost(connection, error)
                return
            self._arm(connection)
        if mask & ~WRITE:
            self._read(connection)

    def _read(self, connection: Connection) -> None:
        try:
            data, ancillary, _, _ = connection.receive(_READ_SIZE, ANCILLARY)
        except BlockingIOError:
            return
        except OSError as error:
            self._lost(connection, error)
            return
        at = now = _monotonic_ns()
        if data:
            meter = self.meter
            meter.reads += 1
            if self.stamps:
                try:
                    ((_, _, stamp),) = ancillary  # nothing else was asked for
                    seconds, ns = unpack_stamp(stamp)
                    lag = now - seconds * 1_000_000_000 - ns + self.clock.offset
                    if lag > 0:
                        at = now - lag
                        meter.lags[lag // 1000] += 1
                except (ValueError, StampError):
                    meter.unstamped += 1
                except IndexError:
                    meter.lags[-1] += 1
        exchange = connection.exchange
        if connection.tls or not data:
            try:
                data, ended = connection.plain(data)
            except OSError as error:
                self._lost(connection, error)
                return
        else:
            ended = False
        if data:
            if exchange is None or exchange.sent_ns is None:
                self._lost(connection, None)  # a server that talks unasked, or says why it closes
                return
            if exchange.take(at, data):
                head = exchange.head
                reuse = not ended and exchange.outcome is None and head is not None and head.keep_alive
                self._finish(exchange, connection, at, reuse=reuse and not connection.pending)
                return
        if ended:
            self._lost(connection, None, at)

    # --- ends

    def _lost(self, connection: Connection, error: OSError | None, at: int | None = None) -> None:
        """The connection is gone: by an error, or closed by the server in order (``error`` None)."""
        exchange = connection.exchange
        at = time.monotonic_ns() if at is None else at
        idle = exchange is None or self._was_stale(connection, exchange, at)
        if idle and connection.carried and at - connection.idle_since_ns < _AT_ONCE_NS:
            self._stale += 1  # it promised to stay open and did not
        if exchange is None:
            self._idle.remove(connection)
            self._drop(connection)
        elif idle:
            self._drop(connection)
            self.retried += exchange.sent_ns is not None
            exchange.retried = True
            exchange.sent_ns = None
            exchange.restart()
            self._open(exchange)
        else:
            if error is not None:
                exchange.fail(Outcome.CONNECTION_LOST, error_text(error))
            exchange.eof = error is None
            self._finish(exchange, connection, at, reuse=False)

    @staticmethod
    def _was_stale(connection: Connection, exchange: Exchange, at: int) -> bool:
        """Whether the server closed between two requests: no fault, and no work of this one was begun.

        Only what shows as the request leaves is that, and once; a request dropped later is a failure.
        """
        if exchange.retried or exchange.size:
            return False
        if exchange.sent_ns is None:
            return True
        return connection.carried > 0 and at - exchange.sent_ns < _RACE_NS

    def _finish(self, exchange: Exchange, connection: Connection | None, at: int | None, *, reuse: bool) -> None:
        exchange.ended_ns = time.monotonic_ns()
        exchange.closed_ns = at if exchange.sent_ns is not None else None
        if connection is not None:
            connection.exchange = None
            # Two connections that closed right after a response say that this server does not keep them.
            if reuse and self._stale < 2:
                connection.carried += 1
                connection.idle_since_ns = time.monotonic_ns()
                self._idle.append(connection)
            else:
                self._drop(connection)
        self._on_end(exchange)

    def _drop(self, connection: Connection) -> None:
        if self._numbered.pop(connection.number, None) is not None:
            del self._connections[connection.fd]
            self._poller.unregister(connection.fd)
        connection.close()
