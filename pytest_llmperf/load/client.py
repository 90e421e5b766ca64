"""One streamed request: what is kept of it while it runs, and the record that it becomes."""

from __future__ import annotations

from typing import Final

from pytest_llmperf.load.dialects import DIALECTS
from pytest_llmperf.load.http1 import Head, ProtocolError, ResponseParser, parse_head
from pytest_llmperf.load.reader import error_detail, no_stream, shorten
from pytest_llmperf.load.request import PreparedRequest
from pytest_llmperf.records import Outcome, RequestRecord

__all__ = ["MAX_RESPONSE", "Exchange"]

MAX_RESPONSE: Final = 64 * 1024 * 1024
"""Bytes of a response; more is no answer but a fault, and must not eat the memory."""

_LAST_CHUNK: Final = b"\r\n0\r\n"
_END: Final = b"\r\n0\r\n\r\n"
_ODD: Final = (b"0\r\n", b"\r\n", b"\n")  # how a read begins that may hold the rest of a last chunk's mark
_DONE: Final = (b"data: [DONE]\n\n", b"data:[DONE]\n\n", b"data: [DONE]\r\n\r\n")
_MARK: Final = max(map(len, _DONE))
_MAX_ERROR_BODY: Final = 65536


class Exchange:
    """A request on its way and the raw reads of its response.

    ``take`` is the hot path: it stores a read and looks for the end, nothing else. ``digest`` parses what is stored,
    when there is time; ``record`` parses the rest and tells how it went.
    """

    __slots__ = (
        "_body",
        "_closing",
        "_data",
        "_decoder",
        "_http",
        "_latest_ns",
        "_next",
        "_outcome",
        "_reader",
        "_stamps",
        "_whole_ns",
        "closed_ns",
        "connect_start_ns",
        "connected_ns",
        "connection",
        "detail",
        "ended_ns",
        "eof",
        "first_byte_ns",
        "head",
        "held",
        "progress_ns",
        "request",
        "retried",
        "scheduled_ns",
        "sent_ns",
        "shared_reads",
        "size",
    )

    def __init__(self, request: PreparedRequest, scheduled_ns: int | None, held: bool) -> None:
        self.request = request
        self.scheduled_ns = scheduled_ns
        self.held = held
        """Not to be sent yet, although the connection may be open."""
        self.retried = False
        self.connect_start_ns: int | None = None
        self.connected_ns: int | None = None
        self.sent_ns: int | None = None
        self.closed_ns: int | None = None
        self.ended_ns = 0
        """When it was over for us, whatever the reason."""
        self.connection = -1
        self.detail: str | None = None
        self.shared_reads = 0
        """Output chunks beyond the first of their read that came as HTTP chunks of their own; after ``digest``."""
        self.progress_ns = 0
        """Last output known so far, the send before any; moved on by ``digest``."""
        self._outcome: Outcome | None = None
        self.restart()

    def restart(self) -> None:
        """Forget the response: the request goes out anew."""
        self.head: Head | None = None
        self.eof = False
        self.size = 0
        self.first_byte_ns: int | None = None
        self._latest_ns = 0
        self._closing = False  # the last chunk was seen; trailers may follow
        self._stamps: list[int] = []
        self._data: list[bytes] = []
        self._next = 0  # first read that is not parsed
        dialect = DIALECTS[self.request.api]
        self._http, self._decoder = ResponseParser(), dialect.decoder()
        self._reader = dialect.reader(keep_text=self.request.keep_text)
        self._body: list[bytes] = []  # of a response that is no stream
        self._whole_ns = 0  # when the last of it came

    # --- hot path

    def take(self, stamp_ns: int, data: bytes) -> bool:
        """Store one read; True where it ends the response, in order or by a fault."""
        self._stamps.append(stamp_ns)
        self._data.append(data)
        self.size += len(data)
        head = self.head
        if head is None:
            return self._begin()
        if head.chunked:
            if data.endswith(_END):
                return True
            if self._closing or len(data) < len(_END) or _LAST_CHUNK in data or data.startswith(_ODD):
                return self._closes()
        elif head.content_length is None:
            # The connection may stay open for long after the last event.
            if data.endswith(_DONE) or (len(data) < _MARK and self._tail().endswith(_DONE)):
                return True
        elif self.size - head.body_start >= head.content_length:
            return True
        if self.size > MAX_RESPONSE:
            self.fail(Outcome.PROTOCOL_ERROR, f"the response exceeds {MAX_RESPONSE} bytes")
            return True
        return False

    def _begin(self) -> bool:
        """Look for the end of the header in what came so far."""
        joined = b"".join(self._data)
        try:
            self.head = head = parse_head(joined)
        except ProtocolError as error:
            self.fail(Outcome.PROTOCOL_ERROR, str(error))
            return True
        if head is None:
            return False
        body = joined[head.body_start :]
        if head.chunked:
            return (_LAST_CHUNK in body or body.startswith(_ODD)) and self._closes()
        if head.content_length is None:
            return body.endswith(_DONE)
        return len(body) >= head.content_length

    def _closes(self) -> bool:
        """Whether a chunked body has ended, where the mark of its end is cut, or followed by trailers."""
        self._closing = self._closing or _LAST_CHUNK in self._tail()
        if not self._closing:
            return False
        self.digest()
        return self._http.complete

    def _tail(self) -> bytes:
        """The last reads, with every mark of an end in them, if it is at the end."""
        return b"".join(self._data[-_MARK:])

    # --- when there is time

    def fail(self, outcome: Outcome, detail: str) -> None:
        """Settle how it ends, whatever the bytes say; the first call counts."""
        if self._outcome is None:
            self._outcome, self.detail = outcome, shorten(detail)

    @property
    def outcome(self) -> Outcome | None:
        """What ``fail`` settled, else None."""
        return self._outcome

    @property
    def has_output(self) -> bool:
        """Of the part that is parsed."""
        return bool(self._reader.chunk_ns)

    def digest(self, reads: int | None = None) -> bool:
        """Parse up to ``reads`` stored reads (None: all); True when none is left."""
        end = len(self._data) if reads is None else min(len(self._data), self._next + reads)
        try:
            while self._next < end:
                # Kernel stamps meet the user's clock here: a slip of the offset between them must not turn time back.
                at = self._latest_ns = max(self._stamps[self._next], self._latest_ns, self.sent_ns or 0)
                if self._next == 0:
                    self.first_byte_ns = at
                self._next += 1
                self._parse(at, self._data[self._next - 1])
        except ProtocolError as error:
            self.fail(Outcome.PROTOCOL_ERROR, str(error))
            self._next = len(self._data)
        if self._reader.chunk_ns:
            self.progress_ns = self._reader.chunk_ns[-1]
        return self._next >= len(self._data)

    def _parse(self, at: int, data: bytes) -> None:
        pieces = self._http.feed(data)
        head = self._http.head
        if head is None or not pieces:
            return
        if head.status != 200 or not self._streams(head):
            if (head.status == 200 and not self.request.stream) or sum(map(len, self._body)) < _MAX_ERROR_BODY:
                self._body += pieces
                self._whole_ns = at
            return
        bearing = 0
        take = self._reader.take
        for piece in pieces:  # one for each HTTP chunk
            output = False
            for event in self._decoder.feed(piece):
                output = take(event.data, at) or output
            bearing += output
        if bearing > 1 and head.chunked:
            self.shared_reads += bearing - 1

    def _streams(self, head: Head) -> bool:
        """Whether the body is to be read as events; a stream under a name of no format is given a try."""
        kind = head.headers.get("content-type", "")
        return self.request.stream and not head.coding and ("json" not in kind or "x-ndjson" in kind)

    def record(self) -> RequestRecord:
        """The record of a request that has ended. Parses what is left; the raw reads are dropped."""
        self.digest()
        if self.eof:
            self._http.end()
        try:
            outcome, detail = (self._outcome, self.detail) if self._outcome else self._judge()
        except ProtocolError as error:
            outcome, detail = Outcome.PROTOCOL_ERROR, shorten(str(error))
        reader, arrival, head = self._reader, self.request.arrival, self.head
        chunks = tuple(reader.chunk_ns)
        whole_ns = self._whole_ns if reader.whole and outcome is Outcome.OK else None
        record = RequestRecord(
            index=arrival.index,
            phase=arrival.phase,
            scheduled_ns=self.scheduled_ns,
            connect_start_ns=self.connect_start_ns,
            connected_ns=self.connected_ns,
            sent_ns=self.sent_ns,
            first_byte_ns=self.first_byte_ns,
            first_output_ns=chunks[0] if chunks else None,
            first_answer_ns=reader.first_answer_ns,
            last_output_ns=chunks[-1] if chunks else whole_ns,
            closed_ns=None if self.closed_ns is None else max(self.closed_ns, self._latest_ns),
            chunk_ns=chunks,
            chunk_tokens=reader.chunk_tokens,
            prompt_tokens=reader.prompt_tokens,
            output_tokens=reader.output_tokens,
            cached_tokens=reader.cached_tokens,
            token_source=reader.token_source,
            outcome=outcome,
            detail=detail,
            finish_reason=reader.finish_reason,
            http_status=head.status if head else None,
            connection=self.connection,
            requested_input_tokens=arrival.input_tokens,
            requested_output_tokens=arrival.output_tokens,
            streamed=self.request.stream,
            first_event_ns=reader.first_event_ns,
            last_event_ns=reader.last_event_ns,
            texts=reader.texts,
        )
        self.restart()
        return record

    def _judge(self) -> tuple[Outcome, str | None]:
        """Outcome by what the server sent, of an exchange that nothing else ended."""
        head, reader = self.head, self._reader
        if head is None:
            what = "in the middle of the response header" if self.size else "before the first byte of a response"
            return Outcome.CONNECTION_LOST, f"the server closed the connection {what}"
        body = b"".join(self._body)
        if head.status != 200:
            shown = f"({head.coding} body)".encode() if head.coding else body
            return Outcome.HTTP_STATUS, error_detail(head.status, head.reason, shown, head.headers.get("retry-after"))
        if reader.error is None and not self._http.complete and not reader.done:
            return Outcome.CONNECTION_LOST, "the server closed the connection in the middle of the response"
        if head.coding:
            return Outcome.PROTOCOL_ERROR, f"the response is {head.coding}, though no encoding was accepted"
        if not self.request.stream:
            reader.take_whole(body.decode("utf-8", "replace"))
        elif body:
            if b'"error"' in body:
                return Outcome.STREAM_ERROR, error_detail(head.status, head.reason, body)
            return Outcome.PROTOCOL_ERROR, no_stream(head, body)
        for event in self._decoder.end():
            reader.take(event.data, self._latest_ns)
        kind = head.headers.get("content-type", "")
        if self.request.stream and not reader.seen and "event-stream" not in kind and "ndjson" not in kind:
            return Outcome.PROTOCOL_ERROR, no_stream(head, self._beginning())
        return reader.verdict()

    def _beginning(self) -> bytes:
        """How the body begins."""
        http = ResponseParser()
        return b"".join(piece for data in self._data[:8] for piece in http.feed(data))
