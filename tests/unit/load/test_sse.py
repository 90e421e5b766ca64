"""Events come out the same wherever the bytes are cut."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pytest_llmperf.load.ndjson import LineDecoder
from pytest_llmperf.load.sse import SseDecoder, SseEvent

STREAMS = Path(__file__).parents[2] / "fixtures" / "streams"


def decode(*parts: bytes) -> list[SseEvent]:
    decoder = SseDecoder()
    return [event for part in parts for event in decoder.feed(part)]


@pytest.mark.parametrize("ending", [b"\n", b"\r\n", b"\r"], ids=["LF", "CRLF", "CR"])
def test_every_split_point_gives_the_same_events(ending: bytes) -> None:
    text = (
        b"\xef\xbb\xbfdata: one\n\n: a comment\n\nevent: error\ndata: caf\xc3\xa9\ndata:\ndata:two\nid: 7\n\n"
        b"retry: 10\n\ndata\n\ndata: \xf0\x9f\x8c\x8d\n\ndata: unfinished\n"
    )
    stream = text.replace(b"\n", ending)
    expected = [
        SseEvent("", "one"),
        SseEvent("error", "café\n\ntwo"),
        SseEvent("", ""),
        SseEvent("", "🌍"),
    ]
    assert decode(stream) == expected
    assert decode(*(stream[at : at + 1] for at in range(len(stream)))) == expected
    for first in range(len(stream) + 1):
        assert decode(stream[:first], stream[first:]) == expected


@pytest.mark.parametrize("path", sorted(STREAMS.glob("*.sse")), ids=lambda path: path.stem)
def test_recorded_streams_at_every_split_point(path: Path) -> None:
    stream = path.read_bytes()
    whole = decode(stream)
    assert len(whole) == stream.count(b"\n\n")
    for at in range(len(stream) + 1):
        assert decode(stream[:at], stream[at:]) == whole


def test_an_event_is_returned_by_the_call_that_completes_it() -> None:
    decoder = SseDecoder()
    assert decoder.feed(b"data: x\r\n") == []
    assert decoder.feed(b"\r") == [SseEvent("", "x")]
    assert decoder.feed(b"\ndata: y\n") == []
    assert decoder.feed(b"\n") == [SseEvent("", "y")]


def test_bytes_that_are_no_utf8_do_not_stop_the_stream() -> None:
    assert decode(b"data: \xff\n\n", b"data: ok\n\n") == [SseEvent("", "\ufffd"), SseEvent("", "ok")]


def test_a_long_line_in_small_pieces_is_not_copied_over_and_over() -> None:
    decoder = SseDecoder()
    for _ in range(20_000):  # quadratic copying would move 10 GB here
        assert decoder.feed(b"data: " + b"x" * 100) == []
    assert len(decoder.feed(b"\n\n")[0].data) == 106 * 20_000 - 6


LINES = st.sampled_from([b"data: a", b"data:b", b"", b":c", b"event: e", b"data", b"id: 1", "data: ü🌍".encode(), b"d"])


@given(
    st.lists(st.tuples(LINES, st.sampled_from([b"\n", b"\r\n", b"\r"])), max_size=30),
    st.lists(st.integers(0, 400), max_size=12),
)
def test_any_cuts_of_any_stream(lines: list[tuple[bytes, bytes]], cuts: list[int]) -> None:
    stream = b"".join(line + ending for line, ending in lines)
    edges = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    parts = [stream[a:b] for a, b in pairwise(edges)]
    assert decode(*parts) == decode(stream)


SCRAPS = st.sampled_from(
    [b"data: a", b"data:b", b":c", b"event: e", b"d", b"\n", b"\n\n", b"\r\n", b"\r", b"\xef\xbb\xbf", b" "]
)


@pytest.mark.parametrize("decoder", [SseDecoder, LineDecoder])
@given(st.lists(SCRAPS, max_size=4), st.lists(SCRAPS, max_size=4))
@example([], [b"data: a", b"\n\n"])
@example([], [b"data: a", b"\n"])
def test_what_need_not_be_fed_is_one_event(
    decoder: type[SseDecoder | LineDecoder], before: list[bytes], parts: list[bytes]
) -> None:
    short, long, data = decoder(), decoder(), b"".join(parts)
    for part in before:
        assert short.feed(part) == long.feed(part)
    found = short.sole(b"xy" + data + b"z", 2, 2 + len(data))
    if found is None:
        assert data != (b"data: a\n\n" if decoder is SseDecoder else b"data: a\n") or not short.between
        assert short.feed(data) == long.feed(data)
    else:
        assert long.feed(data) == [SseEvent("", found)]
    for part in (b"\xef\xbb\xbfdata: x\n\n", b"\ndata: y\n\n"):
        assert short.feed(part) == long.feed(part)
