"""TLS of one connection without a socket: ciphertext in and out of memory, so that reads keep their kernel stamps."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Final

__all__ = ["Tls", "TlsError", "tls_context"]

_PIECE: Final = 16384  # a TLS record holds no more; each read allocates as much


class TlsError(OSError):
    """The bytes, or the server's certificate, are not what they should be."""


def tls_context(ca_file: Path | str | None = None) -> ssl.SSLContext:
    """Verifies against the system's certificates and those in ``ca_file``. Raises OSError where that is unusable."""
    context = ssl.create_default_context()
    if ca_file is not None:
        context.load_verify_locations(cafile=ca_file)
    context.set_alpn_protocols(["http/1.1"])
    return context


class Tls:
    """The client's half of one TLS connection."""

    __slots__ = ("_incoming", "_object", "_outgoing")

    def __init__(self, context: ssl.SSLContext, name: str) -> None:
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._object = context.wrap_bio(self._incoming, self._outgoing, server_hostname=name)

    def feed(self, data: bytes) -> None:
        """Ciphertext from the socket."""
        self._incoming.write(data)

    def outgoing(self) -> bytes:
        """Ciphertext for the socket."""
        return self._outgoing.read()

    def handshake(self) -> bool:
        """Go on; True once it is done. Raises TlsError; ``outgoing`` then holds the alert that says why."""
        try:
            self._object.do_handshake()
        except ssl.SSLWantReadError:
            return False
        except ssl.SSLError as error:
            raise TlsError(getattr(error, "verify_message", None) or error.reason or str(error)) from None
        return True

    def seal(self, data: bytes) -> bytes:
        """``data`` as ciphertext."""
        self._object.write(data)
        return self._outgoing.read()

    def open(self, data: bytes) -> tuple[bytes, bool]:
        """The text in ``data`` (empty: the socket has ended), and whether the server ended the connection.

        Raises OSError where the bytes are damaged.
        """
        if data:
            self._incoming.write(data)
        else:
            self._incoming.write_eof()
        pieces: list[bytes] = []
        try:
            while True:
                piece = self._object.read(_PIECE)
                if not piece:
                    return b"".join(pieces), True
                pieces.append(piece)
                if data and not self._object.pending() and not self._incoming.pending:
                    return b"".join(pieces) if len(pieces) > 1 else piece, False
        except ssl.SSLWantReadError:
            return b"".join(pieces), not data
        except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
            return b"".join(pieces), True
