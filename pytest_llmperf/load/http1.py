"""HTTP/1.1 responses out of bytes that may be cut anywhere (RFC 9112). No I/O."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Literal

__all__ = ["MAX_HEAD", "QUOTED", "Head", "ProtocolError", "ResponseParser", "content_start", "parse_head"]

MAX_HEAD: Final = 256 * 1024
"""Bytes that a status line with its headers, or a trailer section, may have."""
QUOTED: Final = 2000
"""Characters of bad input in an error: enough to show, before secrets in it are blotted out and it is cut."""
_MAX_LINE: Final = 16 * 1024
_STATUS: Final = re.compile(rb"HTTP/(1\.[01]) ([1-9]\d\d)(?: ([^\r\n]*))?\Z")
_SIZE: Final = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;.*)?\Z", re.DOTALL)
_HEX: Final = re.compile(rb"[0-9A-Fa-f]{1,15}\Z")
_END_OF_HEAD: Final = re.compile(rb"\r?\n\r?\n")


class ProtocolError(ValueError):
    """The bytes are no HTTP/1.1 response."""


@dataclass(frozen=True, slots=True)
class Head:
    """Status line and headers of a final (not 1xx) response."""

    status: int
    reason: str
    headers: Mapping[str, str]
    """Lower-case names; repeated fields joined by ``", "``."""
    body_start: int
    """Where the body begins in the bytes that were parsed."""
    chunked: bool
    content_length: int | None
    """None where the body is chunked or ends with the connection."""
    keep_alive: bool
    """The connection may carry another request after this response."""

    @property
    def coding(self) -> str:
        """How the body is compressed, e.g. ``gzip``; empty where it is not."""
        coding = self.headers.get("content-encoding", "").strip().lower()
        return "" if coding == "identity" else coding


def parse_head(data: bytes) -> Head | None:
    """The head at the start of ``data``, or None where it is not complete yet. Interim (1xx) heads are skipped.

    Raises ProtocolError as soon as the bytes cannot become an HTTP/1.1 response, or the head exceeds ``MAX_HEAD``.
    """
    start = 0
    while True:
        opening = data[start : start + 7]
        if not b"HTTP/1.".startswith(opening):
            raise ProtocolError(f"not an HTTP/1.1 response: it begins with {data[start : start + QUOTED]!r}")
        end = _END_OF_HEAD.search(data, start)
        if end is None:
            if len(data) - start > MAX_HEAD:
                raise ProtocolError(f"the response header exceeds {MAX_HEAD} bytes")
            return None
        head = _head(data[start : end.start()], end.end())
        if head.status >= 200:
            return head
        start = end.end()


@lru_cache(maxsize=8)  # a server repeats itself, but for the date once a second
def _head(raw: bytes, body_start: int) -> Head:
    status_line, *lines = raw.split(b"\n")
    match = _STATUS.match(status_line.removesuffix(b"\r"))
    if match is None:
        raise ProtocolError(f"bad status line {status_line[:QUOTED]!r}")
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.decode("latin-1").partition(":")
        if not colon or not name or name != name.strip():
            raise ProtocolError(f"bad header line {line[:QUOTED]!r}")
        key = name.lower()
        headers[key] = f"{headers[key]}, {value.strip()}" if key in headers else value.strip()
    status = int(match[2])
    codings = [coding.strip().lower() for coding in headers.get("transfer-encoding", "").split(",") if coding.strip()]
    chunked = codings[-1:] == ["chunked"]
    if codings and codings != ["chunked"]:
        raise ProtocolError(f"unsupported transfer coding {headers['transfer-encoding']!r}")
    length = _content_length(headers.get("content-length")) if not chunked else None
    if status in (204, 304):
        chunked, length = False, 0
    options = {option.strip().lower() for option in headers.get("connection", "").split(",")}
    persistent = "close" not in options and (match[1] == b"1.1" or "keep-alive" in options)
    keep_alive = persistent and (chunked or length is not None)
    reason = (match[3] or b"").decode("latin-1")
    return Head(status, reason, headers, body_start, chunked, length, keep_alive)


def _content_length(value: str | None) -> int | None:
    if value is None:
        return None
    lengths = {part.strip() for part in value.split(",")}
    length = lengths.pop()
    if lengths or not (length.isascii() and length.isdigit()) or len(length) > 15:
        raise ProtocolError(f"bad Content-Length {value!r}")
    return int(length)


def content_start(data: bytes) -> int:
    """Where the content begins of the one chunk that ``data`` is, whole and without extensions; -1 where it is none."""
    end = data.find(b"\r\n", 1, 18)
    if end < 0 or not _HEX.match(data, 0, end) or not data.endswith(b"\r\n"):
        return -1
    return end + 2 if int(data[:end], 16) == len(data) - end - 4 > 0 else -1


class ResponseParser:
    """Fed the bytes of one response, returns its body without the framing.

    The pieces that one call returns belong to different HTTP chunks. Raises ProtocolError.
    """

    __slots__ = ("_buffer", "_left", "_parts", "_size", "_state", "complete", "head")

    def __init__(self) -> None:
        self.head: Head | None = None
        self.complete = False
        """The framing says that the body has ended. Bytes after that are ignored."""
        self._parts: list[bytes] = []
        self._size = 0
        self._buffer = b""
        self._left = 0  # bytes to come of the chunk, or of the body with a content length
        self._state: Literal["size", "data", "data_end", "trailer"] = "size"

    def feed(self, data: bytes) -> list[bytes]:
        """Body pieces in ``data``, none of them empty."""
        if self.complete or not data:
            return []
        if self.head is None:
            self._parts.append(data)
            joined = b"".join(self._parts)
            self.head = parse_head(joined)
            if self.head is None:
                self._parts = [joined]
                return []
            self._parts.clear()
            data = joined[self.head.body_start :]
            self._left = self.head.content_length or 0
            self.complete = self.head.content_length == 0
        if self.head.chunked:
            return self._chunks(data)
        if self.head.content_length is None:
            return [data] if data else []
        piece = data[: self._left]
        self._left -= len(piece)
        self.complete = not self._left
        return [piece] if piece else []

    @property
    def between(self) -> bool:
        """The next byte begins a chunk."""
        return self._state == "size" and not self._buffer and self.head is not None

    def sole(self, data: bytes) -> int:
        """``content_start`` of ``data`` where it comes between chunks: then it need not be fed; else -1."""
        return content_start(data) if self.head is not None and self.head.chunked and self.between else -1

    def ends(self, head: Head, reads: Sequence[bytes]) -> bool:
        """Whether ``reads``, which are to be fed, complete a chunked body without trailers; nothing is fed by this."""
        if self._state == "trailer":
            return False
        data = b"".join((*self._parts, self._buffer, *reads))
        at = {"size": 0, "data": self._left + 2, "data_end": 2}[self._state] if self.head else head.body_start
        while (end := data.find(b"\r\n", at)) >= 0:
            match = _SIZE.match(data[at:end])
            if match is None:
                return False
            size = int(match[1], 16)
            if not size:
                return data[end:] == b"\r\n\r\n"
            at = end + size + 4
        return False

    def end(self) -> None:
        """The connection was closed in order: that ends a body without a length."""
        if self.head is not None and not self.head.chunked and self.head.content_length is None:
            self.complete = True

    def _chunks(self, data: bytes) -> list[bytes]:
        pieces: list[bytes] = []
        buffer, at = self._buffer + data if self._buffer else data, 0
        while not self.complete:
            if self._state == "data":
                piece = buffer[at : at + self._left]
                if not piece:
                    break
                pieces.append(piece)
                at += len(piece)
                self._left -= len(piece)
                if self._left:
                    break
                self._state = "data_end"
            elif self._state == "data_end":
                mark = buffer[at : at + 2]
                if len(mark) < 2 and b"\r\n".startswith(mark):
                    break
                if mark != b"\r\n":
                    raise ProtocolError(f"a chunk is not followed by CRLF but by {mark!r}")
                at += 2
                self._state = "size"
            else:
                end = buffer.find(b"\r\n", at)
                if end < 0:
                    if len(buffer) - at > _MAX_LINE:
                        raise ProtocolError(f"a chunk size or trailer line exceeds {_MAX_LINE} bytes")
                    break
                self._line(buffer[at:end])
                at = end + 2
        self._buffer = buffer[at:]
        return pieces

    def _line(self, line: bytes) -> None:
        if self._state == "trailer":
            self._size += len(line)
            if self._size > MAX_HEAD:
                raise ProtocolError(f"the trailer section exceeds {MAX_HEAD} bytes")
            self.complete = not line
            return
        match = _SIZE.match(line)
        if match is None:
            raise ProtocolError(f"bad chunk size {line[:QUOTED]!r}")
        self._left = int(match[1], 16)
        self._state = "data" if self._left else "trailer"
