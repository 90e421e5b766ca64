"""Helpers: drive a truth server and compare the records with what it logged."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from truth_server import OVERHEAD_TOKENS, TOKENS_PER_WORD, Served, TruthServer

from pytest_llmperf.load.arrivals import schedule
from pytest_llmperf.load.driver import Drive, Progress, Stop, drive
from pytest_llmperf.load.prompts import Calibration, write_prompt
from pytest_llmperf.load.request import PreparedRequest, body, encode
from pytest_llmperf.plan import Fixed, LoadProfile, TimeLimits, Workload
from pytest_llmperf.records import Endpoint, Outcome, RequestRecord

CALIBRATION = Calibration(TOKENS_PER_WORD, OVERHEAD_TOKENS)
CHAT = Workload(name="w", input=Fixed(tokens=40), output=Fixed(tokens=16))
COMPLETIONS = Workload(name="w", api="completions", input=Fixed(tokens=40), output=Fixed(tokens=16))
MS = 1_000_000


def endpoint(server: TruthServer, **changes: Any) -> Endpoint:
    facts: dict[str, Any] = {
        "base_url": server.url,
        "host": server.host,
        "port": server.port,
        "tls": server.url.startswith("https"),
        "model": server.model,
        "engine": "openai",
    }
    return Endpoint(**{**facts, **changes})


def requests(
    target: Endpoint,
    load: LoadProfile,
    workload: Workload = CHAT,
    directive: str | Callable[[int], str] = "",
    seed: int = 0,
    stream: bool = True,
    keep_text: bool = False,
) -> Iterator[PreparedRequest]:
    """The plan as bytes; every request tells the server its index, and how to answer."""
    for arrival in schedule(workload, load, seed):
        how = directive(arrival.index) if callable(directive) else directive
        prompt = f"[[truth id={arrival.index} {how}]] {write_prompt(arrival, CALIBRATION, seed, 's')}"
        fields = body(target.model, workload, prompt, arrival.output_tokens, stream=stream)
        wire = encode(target, workload.api, fields, stream=stream)
        yield PreparedRequest(arrival, wire, workload.api, stream, keep_text=keep_text)


def run(
    server: TruthServer,
    load: LoadProfile,
    workload: Workload = CHAT,
    directive: str | Callable[[int], str] = "",
    *,
    limits: TimeLimits | None = None,
    target: Endpoint | None = None,
    stop: Stop | None = None,
    tls: ssl.SSLContext | None = None,
    progress: Progress | None = None,
    stream: bool = True,
    keep_text: bool = False,
) -> Drive:
    """Drive ``server`` and check what must hold of every run."""
    target = target or endpoint(server)
    wires = requests(target, load, workload, directive, stream=stream, keep_text=keep_text)
    result = drive(target, wires, load, limits or TimeLimits(), stop=stop, tls=tls, progress=progress)
    check(result)
    return result


def check(result: Drive) -> None:
    """The invariants of records."""
    indices = [record.index for record in result.records]
    assert indices == sorted(set(indices))
    assert result.window.end_ns >= result.window.start_ns
    for record in result.records:
        check_record(record)
    chunks = sum(len(record.chunk_ns) for record in result.records)
    assert result.client.output_chunks == chunks
    assert 0 <= result.client.unstamped_reads <= result.client.reads


def check_record(record: RequestRecord) -> None:
    times = [
        record.connect_start_ns,
        record.connected_ns,
        record.sent_ns,
        record.first_byte_ns,
        record.first_output_ns,
        *record.chunk_ns,
        record.last_output_ns,
        record.closed_ns,
    ]
    known = [ns for ns in times if ns is not None]
    assert known == sorted(known), record
    assert list(record.chunk_ns) == sorted(record.chunk_ns)
    if record.chunk_ns:
        assert (record.first_output_ns, record.last_output_ns) == (record.chunk_ns[0], record.chunk_ns[-1])
        gaps = [b - a for a, b in zip(record.chunk_ns, record.chunk_ns[1:], strict=False)]
        assert sum(gaps) == record.chunk_ns[-1] - record.chunk_ns[0]
    else:
        assert record.first_output_ns is None
        assert (record.last_output_ns is None) == (record.streamed or record.outcome is not Outcome.OK)
    if record.chunk_tokens is not None:
        assert len(record.chunk_tokens) == len(record.chunk_ns)
        assert record.output_tokens is not None
        assert sum(record.chunk_tokens) <= record.output_tokens
    if record.outcome is Outcome.OK:
        assert bool(record.chunk_ns) == record.streamed
        assert record.closed_ns is not None
        assert record.detail is None
    else:
        assert record.detail
    assert record.failed == (record.outcome not in (Outcome.OK, Outcome.CUT))


def by_id(server: TruthServer, count: int) -> dict[int, Served]:
    return {served.id: served for served in server.wait_log(count)}


def median(values: Sequence[float]) -> float:
    return sorted(values)[len(values) // 2]
