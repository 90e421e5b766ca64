"""One streamed request: what is kept of it while it runs, and the record that it becomes."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Final

from pytest_llmperf.load.http1 import Head, ProtocolError, parse_head
from pytest_llmperf.load.reader import presentable
from pytest_llmperf.load.request import PreparedRequest
from pytest_llmperf.load.response import Response
from pytest_llmperf.records import Ints, Outcome, RequestRecord

__all__ = ["MAX_RESPONSE", "Exchange"]

MAX_RESPONSE: Final = 64 * 1024 * 1024
"""Bytes of a response; more is no answer but a fault, and must not eat the memory."""

_LAST_CHUNK: Final = b"\r\n0\r\n"
_END: Final = b"\r\n\r\n"
_EMPTY: Final = b"\n\r\n\r\n"
_LAST: Final = b"\r\n0\r\n\r\n"
_FINISH: Final = b"[DONE]\n\n\r\n0\r\n\r\n"
"""Ends of a read; the last one holds no doubt: the stream's own terminator is right before the last chunk."""
_SHORT: Final = 8
_MIDDLE: Final = b"\n\n\r\n"
"""How a read ends that brought a whole event as a whole chunk, and for certain no end: an empty line of the stream,
then the end of the chunk."""
_DONE: Final = (b"data: [DONE]\n\n", b"data:[DONE]\n\n", b"data: [DONE]\r\n\r\n")
_MARK: Final = max(map(len, (*_DONE, _FINISH)))
_BATCH: Final = 512


class Exchange:
    """A request on its way and the raw reads of its response.

    ``take`` is the hot path: it stores a read and looks for the end, nothing else. ``digest`` parses what is stored,
    when there is time; ``record`` parses the rest and tells how it went.
    """

    __slots__ = (
        "_data", "_kept", "_latest_ns", "_next", "_outcome", "_response", "_stamps", "cap_wait_ns", "closed_ns",
        "connect_start_ns", "connected_ns", "connection", "detail", "ended_ns", "eof", "first_byte_ns", "head", "held",
        "parsed", "progress_ns", "request", "retried", "scheduled_ns", "sent_ns", "settled", "size",
    )  # fmt: skip

    def __init__(self, request: PreparedRequest, scheduled_ns: int | None, held: bool) -> None:
        self.request = request
        self.scheduled_ns = scheduled_ns
        self.held = held
        """Not to be sent yet, although the connection may be open."""
        self.cap_wait_ns = 0
        """How long the cap held it back after its scheduled time."""
        self.retried = False
        self.connect_start_ns: int | None = None
        self.connected_ns: int | None = None
        self.sent_ns: int | None = None
        self.closed_ns: int | None = None
        self.ended_ns = 0
        """When it was over for us, whatever the reason."""
        self.connection = -1
        self.detail: str | None = None
        self.progress_ns = 0
        """Last output known so far, the send before any; moved on by ``digest``."""
        self.parsed = self.settled = 0
        """Reads that are parsed; and of these, those that the run has taken note of."""
        self._outcome: Outcome | None = None
        self.restart()

    def restart(self) -> None:
        """Forget the response: the request goes out anew."""
        self.head: Head | None = None
        self.eof = False
        self.size = 0
        self.first_byte_ns: int | None = None
        self._latest_ns = 0
        self._stamps = array("q")
        self._data: list[bytes] = []
        self._kept = b""  # the end of what is parsed and dropped
        self._next = 0  # first stored read that is not parsed
        self._response = Response(self.request)

    # --- hot path

    def take(self, stamp_ns: int, data: bytes) -> bool:
        """Store one read; True where it ends the response, in order or by a fault."""
        self._stamps.append(stamp_ns)
        self._data.append(data)
        self.size += len(data)
        if data.endswith(_MIDDLE):
            return self.head is None and self._begin()
        head = self.head
        if head is None:
            return self._begin()
        if head.chunked:
            # A body ends with an empty line after one that is not: the last chunk's, or a trailer's.
            doubt = (data.endswith(_END) and not data.endswith(_EMPTY)) or len(data) < _SHORT or _LAST_CHUNK in data
            if doubt and self._closes():
                return True
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
            return (body.endswith(_END) or body.startswith(b"0\r\n") or _LAST_CHUNK in body) and self._closes()
        if head.content_length is None:
            return body.endswith(_DONE)
        return len(body) >= head.content_length

    def _closes(self) -> bool:
        """Whether a chunked body has ended, or is none: the framing says so, as data may look like an end."""
        head, tail = self.head, self._tail()
        if head is None or tail.endswith(_FINISH):
            return True
        if _LAST_CHUNK not in tail and not (tail.endswith(_END) and not tail.endswith(_EMPTY)):
            return False
        if tail.endswith(_LAST) and self._response.http.ends(head, self._data[self._next :]):
            return True  # it is parsed when there is time
        self.digest()
        return self._response.http.complete or self._outcome is not None

    def _tail(self) -> bytes:
        """The last reads, with every mark of an end in them, if it is at the end."""
        return self._kept + b"".join(self._data[-_MARK:])

    # --- when there is time

    def fail(self, outcome: Outcome, detail: str) -> None:
        """Settle how it ends, whatever the bytes say; the first call counts."""
        if self._outcome is None:
            self._outcome, self.detail = outcome, detail

    @property
    def outcome(self) -> Outcome | None:
        """What ``fail`` settled, else None."""
        return self._outcome

    @property
    def has_output(self) -> bool:
        """Of the part that is parsed."""
        return bool(self._response.reader.chunk_ns)

    @property
    def stored(self) -> int:
        """Reads that are not parsed."""
        return len(self._data) - self._next

    def digest(self, reads: int | None = None) -> None:
        """Parse up to ``reads`` stored reads; None: all."""
        begin, total = self._next, len(self._data)
        end = total if reads is None else min(total, begin + reads)
        latest = self._latest_ns or self.sent_ns or 0
        stamps, stored, response = self._stamps, self._data, self._response
        at = begin
        try:
            while at < end:
                if response.repeats:
                    last = min(end, at + _BATCH)
                    found, latest = response.repeat(stamps[at:last], stored[at:last], latest)
                    at += found
                    if at == last:
                        continue
                # Kernel stamps meet the user's clock here: a slip of the offset between them must not turn time back.
                latest = max(latest, stamps[at])
                if self.first_byte_ns is None:
                    self.first_byte_ns = latest
                response.parse(latest, stored[at])
                at += 1
            self._next = end
        except (ProtocolError, RecursionError) as error:
            self.fail(Outcome.PROTOCOL_ERROR, str(error))
            self._next = total
        self.parsed += self._next - begin
        self._latest_ns = latest
        if self.head is not None:  # till then its search needs all that came
            self._kept = _ending([self._kept, *self._data[max(0, self._next - _MARK) : self._next]])
            del self._data[: self._next], self._stamps[: self._next]
            self._next = 0
        if response.reader.chunk_ns:
            self.progress_ns = response.reader.chunk_ns[-1]

    @property
    def shared_reads(self) -> int:
        """Output chunks beyond the first of their read that came as HTTP chunks of their own; after ``digest``."""
        return self._response.shared_reads

    def record(self, secrets: Sequence[str] = ()) -> RequestRecord:
        """The record of a request that has ended, without ``secrets``. Parses what is left; drops the raw reads."""
        self.digest()
        response = self._response
        if self.eof:
            response.http.end()
        try:
            outcome, detail = (self._outcome, self.detail) if self._outcome else self._judge()
        except (ProtocolError, RecursionError) as error:
            outcome, detail = Outcome.PROTOCOL_ERROR, str(error)
        reader, arrival, head = response.reader, self.request.arrival, self.head
        chunks, tokens = reader.chunk_ns, reader.chunk_tokens
        whole_ns = response.whole_ns if reader.whole and outcome is Outcome.OK else None
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
            chunk_tokens=None if tokens is None else Ints("i", tokens),
            prompt_tokens=reader.prompt_tokens,
            output_tokens=reader.output_tokens,
            cached_tokens=reader.cached_tokens,
            token_source=reader.token_source,
            outcome=outcome,
            detail=None if detail is None else presentable(detail, secrets),
            finish_reason=reader.finish_reason,
            http_status=head.status if head else None,
            connection=self.connection,
            requested_input_tokens=arrival.input_tokens,
            requested_output_tokens=arrival.output_tokens,
            streamed=self.request.stream,
            conversation=arrival.conversation,
            turn=arrival.turn,
            cap_wait_ns=self.cap_wait_ns,
            first_event_ns=reader.first_event_ns,
            last_event_ns=reader.last_event_ns,
            texts=reader.texts,
        )
        self._data.clear()
        return record

    def _judge(self) -> tuple[Outcome, str | None]:
        """Outcome by what the server sent, of an exchange that nothing else ended."""
        if self.head is None:
            what = "in the middle of the response header" if self.size else "before the first byte of a response"
            return Outcome.CONNECTION_LOST, f"the server closed the connection {what}"
        return self._response.judge(self.head, self._latest_ns)


def _ending(parts: Sequence[bytes]) -> bytes:
    """The last ``_MARK`` bytes of ``parts`` together."""
    found = b""
    for part in reversed(parts):
        found = part + found
        if len(found) >= _MARK:
            break
    return found[-_MARK:]
