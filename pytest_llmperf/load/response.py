"""One response on its way from reads to what its record says: framing, events, output, and how it went."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pytest_llmperf.load.dialects import DIALECTS
from pytest_llmperf.load.http1 import Head, ResponseParser
from pytest_llmperf.load.reader import error_detail, no_stream
from pytest_llmperf.load.repeat import Template, learn
from pytest_llmperf.load.request import PreparedRequest
from pytest_llmperf.records import Outcome

__all__ = ["Response"]

_MAX_ERROR_BODY: Final = 65536
_SHOWN: Final = 120


class Response:
    """Fed the reads of one response with their times, in order."""

    __slots__ = ("_decoder", "_learns", "_opening", "_parts", "_request", "_streams", "_template", "http", "reader",
                 "shared_reads", "whole_ns")  # fmt: skip

    def __init__(self, request: PreparedRequest) -> None:
        dialect = DIALECTS[request.api]
        self.http, self._decoder = ResponseParser(), dialect.decoder()
        self.reader = dialect.reader(keep_text=request.keep_text)
        self.shared_reads = 0
        """Output chunks beyond the first of their read that came as HTTP chunks of their own."""
        self.whole_ns = 0
        """When the last of a reply came that was not streamed."""
        self._request = request
        self._learns = dialect.openai and not request.keep_text  # what is repeated leaves no text
        self._template: Template | None = None
        self._streams: bool | None = None  # None until the head is there
        self._parts: list[bytes] = []  # of a body that is no stream
        self._opening = b""  # of one that is

    def repeat(self, stamps: Sequence[int], reads: Sequence[bytes], latest: int) -> tuple[int, int]:
        """Take what repeats the learned event at the start of ``reads``: how many, and the time of the last."""
        if self._template is None:
            return 0, latest
        found = self._template.take(stamps, reads, latest)
        if not found.times:
            return 0, latest
        self.reader.repeat(found)
        return len(found.times), found.times[-1]

    @property
    def repeats(self) -> bool:
        """There is an event that the next read may repeat."""
        return self._template is not None

    def parse(self, at: int, data: bytes) -> None:
        """Take one read. Raises ProtocolError."""
        http, decoder = self.http, self._decoder
        if self._streams and (start := http.sole(data)) > 0:
            text = decoder.sole(data, start, len(data) - 2)
            if text is not None:
                self._take_alone(at, data, start, text)
                return
        fresh = self._learns and http.between and decoder.between
        self._template = None
        pieces = http.feed(data)
        head = http.head
        if head is None:
            return
        if self._streams is None:
            self._streams = self._is_stream(head)
        if not pieces:
            return
        if not self._streams:
            if (head.status == 200 and not self._request.stream) or sum(map(len, self._parts)) < _MAX_ERROR_BODY:
                self._parts += pieces
                self.whole_ns = at
            return
        if len(self._opening) < _SHOWN:
            self._opening += b"".join(pieces)[:_SHOWN]
        bearing = events = 0
        reader, take = self.reader, self.reader.take
        for piece in pieces:  # one for each HTTP chunk
            output = False
            for event in decoder.feed(piece):
                events += 1
                output = (reader.take_error(event.data) if event.name == "error" else take(event.data, at)) or output
            bearing += output
        if bearing > 1 and head.chunked:
            self.shared_reads += bearing - 1
        alone = fresh and bearing == events == len(pieces) == 1 and decoder.between
        if alone and (http.between or not head.chunked) and head.content_length is None:
            self._template = learn(data, head.chunked, reader.counted)

    def _take_alone(self, at: int, data: bytes, start: int, text: str) -> None:
        """Take a read whose only chunk, from ``start`` on, is one event."""
        if len(self._opening) < _SHOWN:
            self._opening += data[start : start + _SHOWN]
        bore = self.reader.take(text, at)
        self._template = learn(data, True, self.reader.counted) if bore and self._learns else None

    def _is_stream(self, head: Head) -> bool:
        """Whether the body is to be read as events; a stream under a name of no format is given a try."""
        kind = head.headers.get("content-type", "")
        wanted = head.status == 200 and self._request.stream
        return wanted and not head.coding and ("json" not in kind or "x-ndjson" in kind)

    def judge(self, head: Head, latest: int) -> tuple[Outcome, str | None]:
        """Outcome by what the server sent, after the last read. Raises ProtocolError."""
        reader, body = self.reader, b"".join(self._parts)
        if head.status != 200:
            shown = f"({head.coding} body)".encode() if head.coding else body
            return Outcome.HTTP_STATUS, error_detail(head.status, head.reason, shown, head.headers.get("retry-after"))
        if reader.error is None and not self.http.complete and not reader.done:
            return Outcome.CONNECTION_LOST, "the server closed the connection in the middle of the response"
        if head.coding:
            return Outcome.PROTOCOL_ERROR, f"the response is {head.coding}, though no encoding was accepted"
        if not self._request.stream:
            reader.take_whole(body.decode("utf-8", "replace"))
        elif body:
            if b'"error"' in body:
                return Outcome.STREAM_ERROR, error_detail(head.status, head.reason, body)
            return Outcome.PROTOCOL_ERROR, no_stream(head, body)
        for event in self._decoder.end():
            reader.take(event.data, latest)
        kind = head.headers.get("content-type", "")
        if self._request.stream and not reader.seen and "event-stream" not in kind and "ndjson" not in kind:
            return Outcome.PROTOCOL_ERROR, no_stream(head, self._opening)
        return reader.verdict()
