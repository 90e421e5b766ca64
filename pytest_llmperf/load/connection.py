"""One TCP connection to the server, plain or TLS, without blocking."""

from __future__ import annotations

import errno
import os
import socket
import time
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pytest_llmperf.errors import TargetError
from pytest_llmperf.load.clock import SO_TIMESTAMPNS
from pytest_llmperf.records import Endpoint, Outcome

if TYPE_CHECKING:
    import ssl

    from pytest_llmperf.load.client import Exchange
    from pytest_llmperf.load.tls import Tls

__all__ = ["Address", "Connection", "ConnectionFailedError", "error_text", "resolve"]

UNIX: Final = int(getattr(socket, "AF_UNIX", -1))
_CIPHERTEXT: Final = 65536


class Address(NamedTuple):
    """One resolved address, as ``socket.getaddrinfo`` gives it."""

    family: int
    sockaddr: Any


class ConnectionFailedError(Exception):
    """The connection did not open; ``outcome`` is ``CONNECT_FAILED`` or ``TLS_FAILED``."""

    def __init__(self, outcome: Outcome, detail: str) -> None:
        self.outcome, self.detail = outcome, detail
        super().__init__(detail)


def error_text(error: OSError) -> str:
    """``ECONNREFUSED: Connection refused``."""
    if error.errno is None:
        return str(error)
    return f"{errno.errorcode.get(error.errno, error.errno)}: {os.strerror(error.errno)}"


def resolve(endpoint: Endpoint, timeout_s: float) -> Address:
    """The address that the whole run uses, so that no request waits for a name.

    Where a name has several (``localhost`` often has two), the first that accepts a connection; whether a server
    accepts any is left to the requests to find out. Raises TargetError where the name is unknown.
    """
    if endpoint.socket is not None:
        return Address(UNIX, endpoint.socket)
    host = endpoint.host.strip("[]")
    try:
        found = socket.getaddrinfo(host, endpoint.port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise TargetError(endpoint.base_url, f"cannot resolve {host!r}: {error.strerror or error}") from None
    addresses = list(dict.fromkeys(Address(int(entry[0]), entry[4]) for entry in found))
    for address in addresses[:8] if len(addresses) > 1 else ():
        try:
            with socket.socket(address.family, socket.SOCK_STREAM) as probe:
                probe.settimeout(timeout_s)
                probe.connect(address.sockaddr)
                return address
        except OSError:
            continue
    return addresses[0]


class Connection:
    """A non-blocking connection. ``advance`` until it is true, then ``send`` and ``plain``.

    ``exchange`` is the request that it carries; None while idle.
    """

    __slots__ = (
        "_context",
        "_tls",
        "_tls_name",
        "carried",
        "connected_ns",
        "exchange",
        "fd",
        "idle_since_ns",
        "mask",
        "number",
        "pending",
        "receive",
        "sock",
        "start_ns",
        "tls",
    )

    def __init__(self, address: Address, number: int, tls: ssl.SSLContext | None, tls_name: str, stamps: bool) -> None:
        """Begin to connect. Raises ConnectionFailedError where that fails at once."""
        self.number = number
        self.exchange: Exchange | None = None
        self.connected_ns: int | None = None
        """When it became ready for a request, TLS included."""
        self.carried = 0
        """Responses that it brought in full."""
        self.idle_since_ns = 0
        self.pending = b""
        """Bytes that the socket did not take yet."""
        self.mask = 0
        self._context, self._tls_name = tls, tls_name
        self._tls: Tls | None = None
        self.sock = socket.socket(address.family, socket.SOCK_STREAM)
        self.fd = self.sock.fileno()
        self.receive = self.sock.recvmsg
        self.tls = tls is not None
        self.sock.setblocking(False)
        if address.family != UNIX:
            self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if stamps:
            self.sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        self.start_ns = time.monotonic_ns()
        code = self.sock.connect_ex(address.sockaddr)
        if code not in (0, errno.EINPROGRESS, errno.EWOULDBLOCK, errno.EINTR):
            self.close()
            raise ConnectionFailedError(Outcome.CONNECT_FAILED, error_text(OSError(code, "")))

    def advance(self) -> bool:
        """Go on opening after the socket became ready; True once a request may be sent.

        Raises ConnectionFailedError.
        """
        if self._tls is None:
            code = self.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if code:
                raise ConnectionFailedError(Outcome.CONNECT_FAILED, error_text(OSError(code, "")))
            try:
                self.sock.getpeername()
            except OSError:  # the event was one of an earlier connection that had the same descriptor
                return False
            if self._context is not None:
                from pytest_llmperf.load.tls import Tls  # costs the start of a plain run nothing

                self._tls = Tls(self._context, self._tls_name)
        if self._tls is not None and not self._handshake(self._tls):
            return False
        self.connected_ns = time.monotonic_ns()
        return True

    def _handshake(self, tls: Tls) -> bool:
        try:
            data = self._arrived()
            if data:
                tls.feed(data)
            try:
                return tls.handshake()
            finally:
                self.send(b"")  # our half, or the alert that says why not
        except OSError as error:
            raise ConnectionFailedError(Outcome.TLS_FAILED, f"TLS handshake failed: {error_text(error)}") from None

    def _arrived(self) -> bytes:
        try:
            data = self.sock.recv(_CIPHERTEXT)
        except BlockingIOError:
            return b""
        if not data:
            raise ConnectionResetError(errno.ECONNRESET, "closed by the server")
        return data

    def seal(self, data: bytes) -> bytes:
        """``data`` as it goes on the wire: encrypted where the connection is TLS."""
        return data if self._tls is None else self._tls.seal(data)

    def send(self, data: bytes) -> None:
        """Write sealed bytes, or the rest of earlier ones; what does not fit stays ``pending``. Raises OSError."""
        if self._tls is not None and not data and not self.pending:
            data = self._tls.outgoing()
        data = self.pending + data if self.pending else data
        while data:
            try:
                count = self.sock.send(data)
            except BlockingIOError:
                break
            data = data[count:]
        self.pending = data

    def plain(self, data: bytes) -> tuple[bytes, bool]:
        """The text in ``data`` as read from the socket, and whether the server ended the connection.

        Raises OSError where TLS finds the bytes damaged.
        """
        return (data, not data) if self._tls is None else self._tls.open(data)

    def close(self) -> None:
        self.sock.close()
