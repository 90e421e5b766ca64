"""What a load leaves behind: immutable records in integer nanoseconds of one monotonic clock."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, Literal, final

from pytest_llmperf.samples import Telemetry

__all__ = ["FAILURES", "Api", "Arrival", "ClientStats", "Endpoint", "Ints", "Outcome",
           "Phase", "RequestRecord", "StampSource", "TokenSource", "Trial", "Window"]  # fmt: skip

Api = Literal["chat", "completions", "tgi", "llamacpp", "triton", "ollama-chat", "ollama-generate"]
StampSource = Literal["kernel", "user"]


class Ints(array):  # type: ignore[type-arg]  # subscripting it at run time needs Python 3.12
    """A sequence of whole numbers at 8 (``"q"``) or 4 (``"i"``) bytes each, where a tuple takes 40.

    Equal to a tuple or list of the same numbers. Not to be changed once it is in a record.
    """

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        if isinstance(other, tuple | list):
            return len(self) == len(other) and all(mine == theirs for mine, theirs in zip(self, other, strict=True))
        return bool(array.__eq__(self, other))

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(tuple(self))

    def __getitem__(self, at: Any) -> Any:
        found = array.__getitem__(self, at)
        return tuple(found) if isinstance(at, slice) else found


class Phase(StrEnum):
    """Whether a request belongs to the warm-up or is measured."""

    WARMUP = "warmup"
    MEASURED = "measured"


class Outcome(StrEnum):
    """How a request ended; every failure has a class of its own."""

    OK = "ok"
    CUT = "cut"  # we ended it: neither good nor failed
    CONNECT_FAILED = "connect_failed"
    CONNECT_TIMEOUT = "connect_timeout"
    TLS_FAILED = "tls_failed"
    FIRST_TOKEN_TIMEOUT = "first_token_timeout"  # noqa: S105 - no password
    NO_PROGRESS = "no_progress"
    DEADLINE = "deadline"
    HTTP_STATUS = "http_status"
    STREAM_ERROR = "stream_error"  # an error frame inside a 200 stream
    TRUNCATED = "truncated"  # neither finish reason nor terminator
    NO_OUTPUT = "no_output"
    CONNECTION_LOST = "connection_lost"  # reset or closed in the middle of the response
    PROTOCOL_ERROR = "protocol_error"  # not HTTP, not the promised format


FAILURES: Final = frozenset(Outcome) - {Outcome.OK, Outcome.CUT}


class TokenSource(StrEnum):
    """Where a request's token counts come from; never the number of chunks, never the requested length."""

    USAGE = "usage"
    CONTINUOUS_USAGE = "continuous_usage"
    TOKENIZER = "tokenizer"  # over the whole text, where the server states no count
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A server that answers. Header values are secret: they take no part in ``repr`` and are never stored."""

    base_url: str
    """Without a trailing slash and without ``/v1``, e.g. ``http://127.0.0.1:8000``."""
    host: str
    port: int
    tls: bool
    model: str
    """The name that requests carry."""
    engine: str
    """A key of ``engines.ENGINES``."""
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Sent with every request, e.g. ``Authorization``."""
    socket: str | None = None
    """Path of the Unix socket that is to be used in place of host and port."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """One planned request: when, how long, which shared prefix. Text is made from it later."""

    index: int
    """Position in the plan, warm-up included, from 0."""
    phase: Phase
    offset_ns: int | None
    """Open loop: ns after the start of the run. Closed loop: None (when a slot is free)."""
    input_tokens: int | None
    """None where the text is a recorded one, whose tokens only the server can count."""
    output_tokens: int
    prefix_group: int | None = None
    prefix_tokens: int = 0
    """Leading part of ``input_tokens`` that all requests of the same ``prefix_group`` share."""
    blocks: tuple[int, ...] = ()
    """Ids of the prompt's leading blocks, of a trace that has them; equal ids are equal texts."""
    conversation: int = -1
    """Requests of one conversation follow each other in the plan; each waits for the answer to the one before."""
    turn: int = 0
    """Position in the conversation."""
    follows: int = 0
    """Turns of the conversation after this one."""
    history: tuple[tuple[int, int], ...] = ()
    """(prompt, output) tokens of the turns before."""
    think_ns: int = 0
    """Wait after the answer before."""
    row: int | None = None
    """Of the data set."""
    part: int = 0
    """Of a mixed workload."""
    stream: bool = True
    """False: the whole reply at once."""


@final
@dataclass(frozen=True, slots=True)
class RequestRecord:
    """One request as it went. Times are ns of the run's monotonic clock; None where it did not come to that."""

    index: int
    phase: Phase
    scheduled_ns: int | None
    """Open loop: the planned time; of a later turn the end of the answer before it and the think time. Closed loop:
    None."""
    connect_start_ns: int | None
    """None where an open connection was used again."""
    connected_ns: int | None
    sent_ns: int | None
    """Just before the first byte of the request was written on the open connection."""
    first_byte_ns: int | None
    first_output_ns: int | None
    """First chunk bearing output: text, reasoning or tool-call arguments."""
    first_answer_ns: int | None
    """First chunk bearing output that is not reasoning."""
    last_output_ns: int | None
    closed_ns: int | None
    """End of the response: terminating chunk, content length reached, or connection closed."""
    chunk_ns: Sequence[int]
    """Time of each output-bearing chunk; the first is ``first_output_ns``, the last ``last_output_ns``."""
    chunk_tokens: Sequence[int] | None
    """Output tokens of each chunk where the server counts them per chunk, else None."""
    prompt_tokens: int | None
    output_tokens: int | None
    cached_tokens: int | None
    """Prompt tokens that the server took from its prefix cache, where it says so."""
    token_source: TokenSource
    outcome: Outcome
    detail: str | None
    """What exactly failed: status and body, error frame, errno. Never a header that we sent."""
    finish_reason: str | None
    http_status: int | None
    connection: int
    """Number of the connection within the run; requests on one connection share it."""
    requested_input_tokens: int | None
    requested_output_tokens: int
    streamed: bool = True
    """False for a reply that was asked for as a whole: it has no chunks; ``last_output_ns`` is when it was there."""
    conversation: int = -1
    """Number of the conversation in the plan; single requests are conversations of one turn."""
    turn: int = 0
    cap_wait_ns: int = 0
    """How long the cap on what is in flight held it back after its scheduled time: part of its latency, not of the
    client's slip."""
    first_event_ns: int | None = None
    """First event of the generation, output-bearing or not (a role event, say); other tools end their TTFT here."""
    last_event_ns: int | None = None
    """Last one (an event of the finish reason, say); usage and terminator are none."""
    tokenizer_tokens: int | None = None
    """Output tokens by the configured tokenizer over the whole text, beside whatever the server counts."""
    texts: tuple[str, ...] | None = field(default=None, repr=False, compare=False)
    """The output of each choice, kept for the tokenizer only and never stored."""

    @property
    def start_ns(self) -> int | None:
        """Where latencies count from: the schedule in open loop, else the send."""
        return self.sent_ns if self.scheduled_ns is None else self.scheduled_ns

    @property
    def failed(self) -> bool:
        return self.outcome in FAILURES


@dataclass(frozen=True, slots=True)
class Window:
    """The interval that rates are taken over."""

    start_ns: int
    end_ns: int

    @property
    def seconds(self) -> float:
        return (self.end_ns - self.start_ns) / 1e9


@dataclass(frozen=True, slots=True)
class ClientStats:
    """How the client itself behaved during a run: what its numbers are worth."""

    stamps: StampSource
    reads: int
    unstamped_reads: int
    """Reads without a kernel stamp where the probe found stamps."""
    shared_reads: int
    """Output chunks that came in a read with an earlier one, although the server sent them apart as far as known."""
    output_chunks: int
    cpu_seconds: float
    """CPU time of the client's loops while the load ran, of all client processes."""
    wall_seconds: float
    slip_p99_ns: int | None
    """Open loop: 99th percentile of sent - scheduled, without waits for the cap. None in closed loop."""
    slip_max_ns: int | None
    wake_lag_p99_ns: int | None
    """99th percentile of user-space read time - kernel stamp. None without kernel stamps."""
    realtime: bool = False
    """They ran ahead of ordinary processes while the load ran, where the system allows that."""
    processes: int = 1
    """Client processes that the load was split over."""
    cpu_total_seconds: float | None = None
    """CPU time of the client processes from start to end: imports, parsing and the way back included."""
    busiest: float | None = None
    """CPU share of the busiest of them while the load ran; None: cpu_seconds / wall_seconds."""
    retried: int = 0
    """Requests sent a second time, unseen in their records: the server closed their reused connection as they left."""


@final
@dataclass(frozen=True, slots=True)
class Trial:
    """The record of one replay of one test's load on one launch."""

    launch: int
    replay: int
    records: tuple[RequestRecord, ...]
    """Warm-up included, ordered by index; requests that were never sent are absent."""
    planned: int
    """Measured requests by a request count or an open loop's timetable; 0 where only the clock ends the load."""
    window: Window
    client: ClientStats
    telemetry: Telemetry
    wall_start: float
    """Unix time at the start of the run, for correlation only."""
    monotonic_start_ns: int
    arm: str = "candidate"
    complete: bool = True
    """False where the run was interrupted."""
    warnings: tuple[str, ...] = ()
