"""What crosses from the test's process to a client process and back: plain values in length-prefixed frames.

A client process must start in a tenth of a second, so it imports none of the validated models: ``Load`` and ``Limits``
are what its loop needs of ``plan.LoadProfile`` and ``plan.TimeLimits``. Frames travel over pipes only; a request's
bytes and the secrets of an endpoint are never in an argument or a file.
"""

from __future__ import annotations

import marshal
from collections.abc import Mapping
from dataclasses import dataclass, fields
from operator import attrgetter
from struct import Struct
from typing import Any, Final, Self

from pytest_llmperf.load.request import PreparedRequest
from pytest_llmperf.records import Arrival, Ints, Outcome, Phase, RequestRecord, TokenSource

__all__ = ["HEADER", "Frames", "Job", "Limits", "Load", "frame", "pack_record", "pack_request", "unpack_record",
           "unpack_request"]  # fmt: skip

HEADER: Final = Struct("<cQ")
"""Kind and length of what follows."""


@dataclass(frozen=True, slots=True)
class Load:
    """The part of ``plan.LoadProfile`` that the loop needs; concurrency, levels and cap are those of one process."""

    peak_concurrency: int | None
    """None in open loop."""
    requests: int | None
    duration: float | None
    max_concurrency: int | None = None
    levels: tuple[tuple[int, int], ...] = ()
    """Closed loop: (ns after the start, in flight from then on)."""
    stagger_ns: int = 0
    """Time over which the first requests of all processes together begin."""
    part: int = 0
    parts: int = 1

    @classmethod
    def of(cls, profile: Any) -> Self:
        """From anything with the same attributes."""
        names = [field.name for field in fields(cls) if field.name not in ("part", "parts")]
        return cls(**{name: getattr(profile, name) for name in names})

    @property
    def open_loop(self) -> bool:
        return self.peak_concurrency is None

    @property
    def most_parts(self) -> int | None:
        """How many processes may share it; None: any number. Each needs a slot at the end, for what it was given."""
        return self.levels[-1][1] if self.levels else self.max_concurrency

    @property
    def endless(self) -> bool:
        """Only the clock ends the plan of requests."""
        return self.requests is None and not self.open_loop

    def share(self, part: int, parts: int) -> dict[str, Any]:
        """What process ``part`` of ``parts`` takes on, as arguments of this class."""

        def of(level: int) -> int:
            """Of slots that are dealt out in turn."""
            return level // parts + (part < level % parts)

        given = {field.name: getattr(self, field.name) for field in fields(self)}
        for name in ("peak_concurrency", "max_concurrency"):
            given[name] = None if given[name] is None else of(given[name])
        levels = tuple((at_ns, of(level)) for at_ns, level in self.levels)
        return given | {"levels": levels, "part": part, "parts": parts}


@dataclass(frozen=True, slots=True)
class Limits:
    """``plan.TimeLimits`` in plain form, in seconds."""

    connect: float
    first_token: float
    no_progress: float
    request: float
    run: float

    @classmethod
    def of(cls, limits: Any) -> Self:
        """From anything with the same attributes."""
        return cls(**{field.name: getattr(limits, field.name) for field in fields(cls)})

    def plain(self) -> dict[str, float]:
        return {field.name: getattr(self, field.name) for field in fields(self)}


@dataclass(frozen=True, slots=True)
class Job:
    """One process's part of a load. Every value is one that ``marshal`` knows."""

    family: int
    sockaddr: Any
    tls: bool
    tls_name: str
    ca_file: str | None
    load: Mapping[str, Any]
    limits: Mapping[str, float]
    secrets: tuple[str, ...]
    """Values that no record may quote."""

    def plain(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in fields(self)}


def frame(kind: bytes, content: Any) -> bytes:
    """One frame; ``content`` is made of plain values."""
    packed = marshal.dumps(content)
    return HEADER.pack(kind, len(packed)) + packed


class Frames:
    """Fed bytes that may be cut anywhere, gives whole frames."""

    __slots__ = ("_at", "_buffer")

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._at = 0

    def feed(self, data: bytes) -> None:
        if self._at:
            del self._buffer[: self._at]
            self._at = 0
        self._buffer += data

    def next(self) -> tuple[bytes, Any] | None:
        """The next frame's kind and content, None until it is complete."""
        begin = self._at + HEADER.size
        if len(self._buffer) < begin:
            return None
        kind, size = HEADER.unpack_from(self._buffer, self._at)
        if len(self._buffer) < begin + size:
            return None
        self._at = begin + size
        return kind, marshal.loads(memoryview(self._buffer)[begin : begin + size])  # noqa: S302 - our own process


def pack_request(request: PreparedRequest) -> tuple[Any, ...]:
    """Plain values of a request."""
    arrival = request.arrival
    return (
        arrival.index, arrival.phase.value, arrival.offset_ns, arrival.input_tokens, arrival.output_tokens,
        arrival.conversation, arrival.turn, arrival.follows, arrival.think_ns, request.stream, request.wire,
        request.api, request.keep_text,
    )  # fmt: skip


def unpack_request(packed: tuple[Any, ...]) -> PreparedRequest:
    """The request again, as far as a client needs it (what its text was made from is gone)."""
    (index, phase, offset_ns, input_tokens, output_tokens, conversation, turn, follows, think_ns, stream, wire, api,
     keep_text) = packed  # fmt: skip
    arrival = Arrival(
        index, Phase(phase), offset_ns, input_tokens, output_tokens,
        conversation=conversation, turn=turn, follows=follows, think_ns=think_ns, stream=stream,
    )  # fmt: skip
    return PreparedRequest(arrival, wire, api, stream=stream, keep_text=keep_text)


def pack_record(record: RequestRecord) -> tuple[Any, ...]:
    """Plain values of a record, in the order of its fields."""
    values = list(_values(record))
    values[_PHASE], values[_OUTCOME] = record.phase.value, record.outcome.value
    values[_SOURCE] = record.token_source.value
    values[_STAMPS] = Ints("q", record.chunk_ns).tobytes()
    values[_TOKENS] = None if record.chunk_tokens is None else Ints("i", record.chunk_tokens).tobytes()
    return tuple(values)


def unpack_record(packed: tuple[Any, ...]) -> RequestRecord:
    """The record again."""
    values = list(packed)
    values[_PHASE], values[_OUTCOME] = Phase(packed[_PHASE]), Outcome(packed[_OUTCOME])
    values[_SOURCE] = TokenSource(packed[_SOURCE])
    values[_STAMPS] = Ints("q", packed[_STAMPS])
    values[_TOKENS] = None if packed[_TOKENS] is None else Ints("i", packed[_TOKENS])
    return RequestRecord(*values)


_FIELDS: Final = tuple(field.name for field in fields(RequestRecord))
_PHASE, _OUTCOME, _SOURCE, _STAMPS, _TOKENS = map(
    _FIELDS.index, ("phase", "outcome", "token_source", "chunk_ns", "chunk_tokens")
)
_values: Final = attrgetter(*_FIELDS)
