"""One response out of reads that are cut anywhere: its end is seen, and each chunk has the time of its last byte."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from loading import check_record

from pytest_llmperf.load.client import Exchange
from pytest_llmperf.load.request import PreparedRequest
from pytest_llmperf.records import Arrival, Outcome, Phase

STREAMS = Path(__file__).parents[2] / "fixtures" / "streams"
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\nX-Zero: 0\r\n\r\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def event(text: str, finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": finish}
    return f"data: {json.dumps({'choices': [choice]}, ensure_ascii=False)}\n\n".encode()


EVENTS = (event("a"), event("é🌍"), event("0\r\n\r\n", "stop"), b"data: [DONE]\n\n")
BODY = b"".join(EVENTS)
RESPONSES = {
    "chunked": CHUNKED + b"".join(map(chunk, EVENTS)) + b"0\r\n\r\n",
    "trailer": CHUNKED + b"".join(map(chunk, EVENTS)) + b"0\r\nX-Sum: 1\r\n\r\n",
    "extension": CHUNKED + b"".join(map(chunk, EVENTS)) + b"0;x=y\r\n\r\n",
    "zeros": CHUNKED + b"".join(map(chunk, EVENTS)) + b"00\r\n\r\n",
    "both": CHUNKED + b"".join(map(chunk, EVENTS)) + b"000 ;x\r\nX-Sum: 1\r\n\r\n",
    "without [DONE]": CHUNKED + b"".join(map(chunk, EVENTS[:-1])) + b"0\r\n\r\n",
    "looks like an end": CHUNKED + chunk(b"x\r\n0\r\n\r\n") + b"".join(map(chunk, EVENTS)) + b"0\r\n\r\n",
    "one chunk": CHUNKED + chunk(BODY) + b"0\r\n\r\n",
    "length": HEAD + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY,
    "until closed": HEAD + b"\r\n" + BODY,
}


def exchange() -> Exchange:
    request = PreparedRequest(Arrival(0, Phase.MEASURED, None, 1, 3), b"")
    made = Exchange(request, None, held=False)
    made.sent_ns = made.progress_ns = 1
    return made


@pytest.mark.parametrize("name", RESPONSES)
def test_the_end_is_seen_wherever_the_reads_are_cut(name: str) -> None:
    response = RESPONSES[name]
    for at in range(1, len(response)):
        made = exchange()
        assert not made.take(10, response[:at])
        assert made.take(20, response[at:])
        made.closed_ns = 20
        record = made.record()
        check_record(record)
        assert record.outcome is Outcome.OK
        assert record.first_byte_ns == 10
        ends = [response.index(data) + len(data) for data in EVENTS[:3]]
        assert record.chunk_ns == tuple(10 if end <= at else 20 for end in ends)


@pytest.mark.parametrize("name", RESPONSES)
def test_byte_by_byte(name: str) -> None:
    made, response = exchange(), RESPONSES[name]
    ended = [made.take(at, response[at - 1 : at]) for at in range(1, len(response) + 1)]
    assert ended.index(True) == len(response) - 1
    record = made.record()
    assert record.chunk_ns == tuple(response.index(data) + len(data) for data in EVENTS[:3])


def test_reads_shared_by_chunks_that_were_sent_apart_are_counted() -> None:
    for name, shared in {"chunked": 2, "one chunk": 0, "until closed": 0}.items():
        made = exchange()
        made.take(5, RESPONSES[name])
        made.digest()
        assert made.shared_reads == shared


def test_a_clock_that_slips_does_not_turn_time_back() -> None:
    made, response = exchange(), RESPONSES["chunked"]
    made.sent_ns = 50
    cut = response.index(EVENTS[1])
    assert not made.take(40, response[:cut])
    assert made.take(30, response[cut:])
    made.closed_ns = 30
    record = made.record()
    check_record(record)
    assert record.chunk_ns == (50, 50, 50)


@pytest.mark.parametrize("path", sorted(STREAMS.glob("*.sse")), ids=lambda path: path.stem)
def test_recorded_streams_read_event_by_event_or_at_once(path: Path) -> None:
    data = path.read_bytes()
    events = [part + b"\n\n" for part in data.split(b"\n\n") if part.strip()]
    status = b"HTTP/1.1 400 Bad\r\n" if "error" in path.stem else HEAD
    head = status + b"Transfer-Encoding: chunked\r\n\r\n"
    apart, together = exchange(), exchange()
    apart.take(1, head)
    for at, part in enumerate(events, 2):
        assert not apart.take(at, chunk(part))
    assert apart.take(99, b"0\r\n\r\n")
    assert together.take(99, head + b"".join(map(chunk, events)) + b"0\r\n\r\n")
    one, other = apart.record(), together.record()
    assert len(one.chunk_ns) == len(other.chunk_ns)
    assert (one.outcome, one.output_tokens, one.detail) == (other.outcome, other.output_tokens, other.detail)
    assert (one.outcome is Outcome.HTTP_STATUS) == ("error" in path.stem)


@pytest.mark.parametrize("data", [b"x\r\n0\r\n\r\n", b": 0\r\n\r\n", b"\r\n0;x\r\n\r\n", b"0\r\n\r\n"])
def test_data_that_looks_like_an_end_is_none(data: bytes) -> None:
    made, whole = exchange(), chunk(data)
    assert not made.take(1, CHUNKED)
    assert not made.take(2, whole[:-2])
    assert not made.take(3, whole[-2:] + chunk(EVENTS[2]))
    assert made.take(4, b"0\r\n\r\n")
    assert made.record().outcome is Outcome.OK


@pytest.mark.parametrize("depth", [500, 990, 5_000, 100_000])
@pytest.mark.parametrize(
    "around", ['{"choices": %s}', '{"error": %s}', '{"choices": [{"delta": {"content": "a", "x": %s}}]}']
)
@pytest.mark.parametrize("stream", [True, False])
def test_json_that_is_nested_too_deeply_fails_its_request_alone(depth: int, around: str, stream: bool) -> None:
    nested = (around % ("[" * depth + "]" * depth)).encode()
    made = Exchange(PreparedRequest(Arrival(0, Phase.MEASURED, None, 1, 3), b"", stream=stream), None, held=False)
    made.sent_ns = made.progress_ns = 1
    kind = b"text/event-stream" if stream else b"application/json"
    body = b"data: %s\n\n" % nested if stream else nested
    made.take(1, b"HTTP/1.1 200 OK\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n" % (kind, len(body)))
    made.take(2, body)
    record = made.record()
    assert record.failed
    if depth > 1000:
        assert record.outcome is Outcome.PROTOCOL_ERROR


def test_bytes_after_the_end_do_no_harm() -> None:
    made = exchange()
    assert made.take(1, RESPONSES["length"] + b"HTTP/1.1 200 OK\r\n")
    made.closed_ns = 1
    assert made.record().outcome is Outcome.OK
