"""Hand-made records and trials with round numbers, for tests of what is computed from them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pytest_llmperf.records import ClientStats, Outcome, Phase, RequestRecord, TokenSource, Trial, Window
from pytest_llmperf.samples import Telemetry

MS = 1_000_000
SECOND = 1_000_000_000


def record(
    index: int = 0, *, sent_ms: float = 0, chunks_ms: Sequence[float] = (100, 110, 120), **changes: Any
) -> RequestRecord:
    """A request sent at ``sent_ms`` with chunks ``chunks_ms`` after that; as many tokens as chunks unless told."""
    sent = round(sent_ms * MS)
    chunks = tuple(sent + round(ms * MS) for ms in chunks_ms)
    first, last = (chunks[0], chunks[-1]) if chunks else (None, None)
    values: dict[str, Any] = {
        "index": index,
        "phase": Phase.MEASURED,
        "scheduled_ns": None,
        "connect_start_ns": None,
        "connected_ns": None,
        "sent_ns": sent,
        "first_byte_ns": first,
        "first_output_ns": first,
        "first_answer_ns": first,
        "last_output_ns": last,
        "closed_ns": last,
        "chunk_ns": chunks,
        "chunk_tokens": None,
        "prompt_tokens": 10,
        "output_tokens": len(chunks),
        "cached_tokens": None,
        "token_source": TokenSource.USAGE,
        "outcome": Outcome.OK,
        "detail": None,
        "finish_reason": "length",
        "http_status": 200,
        "connection": 0,
        "requested_input_tokens": 10,
        "requested_output_tokens": len(chunks),
    }
    return RequestRecord(**(values | changes))


def failure(
    index: int = 0, outcome: Outcome = Outcome.CONNECTION_LOST, *, sent_ms: float = 0, **changes: Any
) -> RequestRecord:
    """A request that failed before any output."""
    changes = {"output_tokens": None, "prompt_tokens": None, "token_source": TokenSource.UNKNOWN} | changes
    changes = {"finish_reason": None, "http_status": None, "detail": "reset by peer"} | changes
    changes.setdefault("closed_ns", round((sent_ms + 50) * MS))
    return record(index, sent_ms=sent_ms, chunks_ms=changes.pop("chunks_ms", ()), outcome=outcome, **changes)


def client(**changes: Any) -> ClientStats:
    values: dict[str, Any] = {
        "stamps": "kernel",
        "reads": 1000,
        "unstamped_reads": 0,
        "shared_reads": 0,
        "output_chunks": 1000,
        "cpu_seconds": 0.1,
        "wall_seconds": 1.0,
        "slip_p99_ns": None,
        "slip_max_ns": None,
        "wake_lag_p99_ns": 100_000,
    }
    return ClientStats(**(values | changes))


def trial(records: Sequence[RequestRecord], *, start_ms: float = 0, end_ms: float = 1000, **changes: Any) -> Trial:
    values: dict[str, Any] = {
        "launch": 0,
        "replay": 0,
        "records": tuple(records),
        "planned": sum(r.phase is Phase.MEASURED for r in records),
        "window": Window(round(start_ms * MS), round(end_ms * MS)),
        "client": client(),
        "telemetry": Telemetry(),
        "wall_start": 1_700_000_000.0,
        "monotonic_start_ns": 0,
    }
    return Trial(**(values | changes))
