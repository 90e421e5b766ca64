"""Ports of this machine: a free one, or who has the one that was asked for."""

from __future__ import annotations

import errno
import socket
from typing import Final

import psutil

from pytest_llmperf.errors import InfraError

__all__ = ["HOST", "free_port", "require_free"]

HOST: Final = "127.0.0.1"
"""Where launched servers listen: never on an outside interface."""


def free_port() -> int:
    """A port that is free now. Another process may take it before the server does: the caller tries again then."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port


def require_free(port: int) -> None:
    """Raise InfraError that names ``port`` and, where it can be told, who holds it, if it is taken."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do: the last owner may have just left
        try:
            probe.bind((HOST, port))
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise InfraError(f"port {port} can't be used: {error.strerror}") from error
            holder = _holder(port)
            held = f"held by {holder}" if holder else "by whom can't be told"
            raise InfraError(f"port {port} is taken, {held}; leave port out to get a free one") from None


def _holder(port: int) -> str | None:
    """Name and pid of the process that listens on ``port``."""
    try:
        for connection in psutil.net_connections("inet"):
            if connection.laddr and connection.laddr.port == port and connection.status == psutil.CONN_LISTEN:
                return f"{psutil.Process(connection.pid).name()} (pid {connection.pid})" if connection.pid else None
    except psutil.Error:  # macOS wants root for this
        return None
    return None
