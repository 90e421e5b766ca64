"""Responses are read the same wherever the bytes are cut; what is no HTTP is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_llmperf.load.http1 import MAX_HEAD, ProtocolError, ResponseParser, content_start, parse_head

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
CHUNKED = HEAD + b'Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\nA;name="v"\r\n0123456789\r\n1 \r\n\n\r\n0\r\n\r\n'
TRAILERS = HEAD + b"transfer-encoding: Chunked\r\n\r\n2\r\nhi\r\n000\r\nX-Sum: 1\r\nX-More: 0\r\n\r\n"
LENGTH = HEAD + b"Content-Length: 7\r\nX-Last: 0\r\n\r\n0\r\n\r\n12"
INTERIM = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n" + LENGTH
EMPTY = b"HTTP/1.1 204 No Content\r\n\r\n"
BARE = b"HTTP/1.1 200 \nContent-Length: 2\n\nok"


def read(*parts: bytes) -> tuple[ResponseParser, list[bytes]]:
    parser = ResponseParser()
    return parser, [piece for part in parts for piece in parser.feed(part)]


def check_end(parser: ResponseParser) -> None:
    assert parser.complete
    assert parser.feed(b"more") == []


@pytest.mark.parametrize(
    ("response", "body"),
    [
        (CHUNKED, b"hello0123456789\n"),
        (TRAILERS, b"hi"),
        (LENGTH, b"0\r\n\r\n12"),
        (INTERIM, b"0\r\n\r\n12"),
        (EMPTY, b""),
        (BARE, b"ok"),
    ],
    ids=["chunked", "trailers", "length", "interim", "empty", "bare-lf"],
)
def test_every_split_point_gives_the_same_body_and_end(response: bytes, body: bytes) -> None:
    parser, pieces = read(*(response[at : at + 1] for at in range(len(response))))
    assert parser.complete
    assert b"".join(pieces) == body
    for at in range(len(response) + 1):
        parser, pieces = read(response[:at])
        assert parser.complete is (at == len(response))
        pieces += parser.feed(response[at:])
        check_end(parser)
        assert b"".join(pieces) == body


def test_pieces_of_one_read_are_separate_chunks() -> None:
    _, pieces = read(CHUNKED)
    assert pieces == [b"hello", b"0123456789", b"\n"]


def test_a_body_without_length_ends_with_the_connection() -> None:
    parser, pieces = read(HEAD + b"\r\n", b"abc", b"def")
    before = parser.complete
    parser.end()
    assert pieces == [b"abc", b"def"]
    assert (before, parser.complete) == (False, True)
    assert parser.head is not None
    assert not parser.head.keep_alive


def test_a_cut_body_is_not_complete() -> None:
    for response in (CHUNKED[:-1], LENGTH[:-1]):
        parser, _ = read(response)
        parser.end()
        assert not parser.complete


@pytest.mark.parametrize(
    ("line", "keep"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 0", True),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: foo, Close", False),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 0", False),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 0\r\nConnection: keep-alive", True),
    ],
)
def test_keep_alive_is_what_the_server_says(line: bytes, keep: bool) -> None:
    head = parse_head(line + b"\r\n\r\n")
    assert head is not None
    assert head.keep_alive is keep


@pytest.mark.parametrize(
    "response",
    [
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"HTTP/2 200\r\n\r\n",
        b"HTTP/1.1 two hundred\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n: empty\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1, 2\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n0x5\r\nhello\r\n",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n-5\r\nhello\r\n",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhelloXX",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + b"1" * 20_000,
        HEAD + b"X: " + b"y" * (MAX_HEAD + 1),
    ],
)
def test_what_is_no_http_is_refused_with_bounded_memory(response: bytes) -> None:
    with pytest.raises(ProtocolError):
        read(response)


def test_other_protocols_are_refused_by_their_first_bytes() -> None:
    with pytest.raises(ProtocolError, match="not an HTTP"):
        read(b"S")


@given(st.binary(max_size=300), st.lists(st.integers(1, 40), min_size=1, max_size=20), st.integers(1, 40))
def test_any_chunking_of_any_body(body: bytes, sizes: list[int], step: int) -> None:
    response, at = [HEAD + b"Transfer-Encoding: chunked\r\n\r\n"], 0
    while at < len(body):
        piece = body[at : at + sizes[at % len(sizes)]]
        response.append(b"%x\r\n%s\r\n" % (len(piece), piece))
        at += len(piece)
    stream = b"".join([*response, b"0\r\n\r\n"])
    parser, pieces = read(*(stream[at : at + step] for at in range(0, len(stream), step)))
    assert parser.complete
    assert b"".join(pieces) == body


@given(
    st.sampled_from([b"", b"5\r\nhe", b"5\r\nhello", b"5\r\nhello\r", b"3\r\nabc\r\n", b"3", b"0\r\n", b"0\r\n\r\n"]),
    st.sampled_from([b"3", b"03", b"3;a", b"3 ", b"4", b"2", b"0", b"", b"x", b"+3", b"0_3"]),
    st.sampled_from([b"abc\r\n", b"abc", b"abc\r", b"ab\r\n", b"\r\n", b"abc\r\n1\r\nx\r\n", b"abc\n\n", b"abcd"]),
)
def test_a_read_that_need_not_be_fed_is_one_whole_chunk(before: bytes, size: bytes, rest: bytes) -> None:
    data = size + b"\r\n" + rest
    parser, _ = read(HEAD + b"Transfer-Encoding: chunked\r\n\r\n", before)
    start = parser.sole(data)
    if start >= 0:
        assert parser.feed(data) == [data[start:-2]]
        assert parser.between
    elif before in (b"", b"3\r\nabc\r\n") and size in (b"3", b"03"):
        assert rest != b"abc\r\n"


def test_without_chunks_every_read_is_fed() -> None:
    chunk = b"3\r\nabc\r\n"
    assert content_start(chunk) == 3
    assert ResponseParser().sole(chunk) == -1
    for head in (HEAD + b"\r\n", HEAD + b"Content-Length: 8\r\n\r\n"):
        parser, _ = read(head)
        assert parser.sole(chunk) == -1


def test_heads_that_differ_in_a_byte_are_told_apart_however_often_they_come() -> None:
    for _ in range(3):
        for status in range(205, 225):
            head = parse_head(b"HTTP/1.1 %d OK\r\nContent-Length: 2\r\n\r\nok" % status)
            assert head is not None
            assert (head.status, head.body_start, head.content_length) == (status, 38, 2)
        early = parse_head(b"HTTP/1.1 103 Early\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        assert early is not None
        assert early.body_start == 60
        with pytest.raises(ProtocolError):
            parse_head(b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n")
