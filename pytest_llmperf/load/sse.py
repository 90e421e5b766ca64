"""Server-sent events out of bytes that may be cut anywhere (WHATWG HTML, "9.2.6 Interpreting an event stream")."""

from __future__ import annotations

from typing import Final, NamedTuple

from pytest_llmperf.load.lines import LineBuffer

__all__ = ["SseDecoder", "SseEvent"]

_BOM: Final = b"\xef\xbb\xbf"


class SseEvent(NamedTuple):
    """One dispatched event. ``name`` is empty where the stream gave none."""

    name: str
    data: str


class SseDecoder:
    """Fed body bytes, returns the events they complete. Lines end in LF, CRLF or CR; text is decoded after framing.

    An event is complete with its blank line; what is unfinished at the end of the stream is dropped, as the standard
    says. Bytes that are no UTF-8 become U+FFFD.
    """

    __slots__ = ("_after_cr", "_data", "_lines", "_name", "_opening", "_started")

    def __init__(self) -> None:
        self._lines = LineBuffer()
        self._opening = b""  # of a stream that may begin with a byte order mark
        self._data: list[bytes] = []
        self._name = ""
        self._started = False
        self._after_cr = False

    def feed(self, data: bytes) -> list[SseEvent]:
        """The events whose blank line is in ``data``."""
        if not data:
            return []
        if not self._started:
            data = self._opening + data
            if len(data) < len(_BOM) and _BOM.startswith(data):
                self._opening = data
                return []
            self._started, self._opening = True, b""
            data = data.removeprefix(_BOM)
        if self._after_cr:  # a CR ended the line already; an LF right after it belongs to the same line end
            data = data.removeprefix(b"\n") if data else data
            self._after_cr = False
        if b"\r" in data:
            self._after_cr = data.endswith(b"\r")
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        return self._dispatch(self._lines.feed(data))

    @property
    def between(self) -> bool:
        """The next byte begins an event."""
        return self._lines.between and not (self._opening or self._data or self._name or self._after_cr)

    def sole(self, data: bytes, start: int, end: int) -> str | None:
        """The data of the event that ``data[start:end]`` is, of one line, where it comes between events: then it need
        not be fed; else None."""
        if not (self.between and data.startswith(b"data:", start, end) and data.endswith(b"\n\n", start, end)):
            return None
        if data.find(b"\n", start, end) != end - 2 or data.find(b"\r", start, end) >= 0:
            return None
        self._started = True
        return data[start + (6 if data[start + 5 : start + 6] == b" " else 5) : end - 2].decode("utf-8", "replace")

    def end(self) -> list[SseEvent]:
        """Nothing: an event that the end of the body cuts is dropped."""
        return []

    def _dispatch(self, lines: list[bytes]) -> list[SseEvent]:
        events: list[SseEvent] = []
        for line in lines:
            if line.startswith(b"data:"):
                self._data.append(line[6:] if line[5:6] == b" " else line[5:])
            elif not line:
                if self._data:
                    text = b"\n".join(self._data).decode("utf-8", "replace")
                    events.append(SseEvent(self._name, text))
                    self._data.clear()
                self._name = ""
            else:
                field, _, value = line.partition(b":")  # a comment has the empty field name
                if field == b"event":
                    self._name = value.removeprefix(b" ").decode("utf-8", "replace")
                elif field == b"data":
                    self._data.append(b"")
        return events
