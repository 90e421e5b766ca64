"""What is told by repetition is what the long way tells, whatever the events are and however the reads are cut."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_llmperf.load import response
from pytest_llmperf.load.client import Exchange
from pytest_llmperf.load.http1 import ResponseParser
from pytest_llmperf.load.repeat import learn
from pytest_llmperf.load.request import PreparedRequest
from pytest_llmperf.records import Arrival, Phase, RequestRecord

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"


def event(fields: dict[str, Any], *, spaced: bool = False) -> bytes:
    separators = (", ", ": ") if spaced else (",", ":")
    return f"data: {json.dumps(fields, ensure_ascii=False, separators=separators)}\n\n".encode()


def text_event(text: str, **more: Any) -> dict[str, Any]:
    return {"id": "cmpl-1", "created": 7, "choices": [{"index": 0, "text": text, "finish_reason": None}], **more}


def chat_event(**delta: Any) -> dict[str, Any]:
    return {"id": "c-1", "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}


def framed(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def record(reads: list[bytes], *, short: bool) -> tuple[RequestRecord, int]:
    """What became of ``reads``, and how many chunks shared one. Not ``short``: without any shortcut."""
    with pytest.MonkeyPatch.context() as patch:
        if not short:
            patch.setattr(response, "learn", lambda _data, _framed, _counted: None)
            patch.setattr(ResponseParser, "sole", lambda _self, _data: -1)
        made = Exchange(PreparedRequest(Arrival(0, Phase.MEASURED, None, 1, 3), b""), None, held=False)
        made.sent_ns = made.progress_ns = 1
        ended = False
        for number, data in enumerate(reads):
            ended = made.take(10 * number + 10, data)
            if number % 3 == 2:
                made.digest(2)
        assert ended
        made.closed_ns = 10 * len(reads)
        made.digest()
        shared = made.shared_reads
        return made.record(), shared


texts = st.text(st.characters(blacklist_categories=("Cs",)), max_size=6)
usage = st.fixed_dictionaries({"prompt_tokens": st.just(5), "completion_tokens": st.integers(0, 300)})
event_fields = st.one_of(
    texts.map(text_event),
    st.tuples(texts, usage).map(lambda pair: text_event(pair[0], usage=pair[1])),
    texts.map(lambda text: text_event(text, created=8)),
    st.tuples(texts, texts).map(lambda pair: text_event(pair[0], note=pair[1])),
    texts.map(lambda text: chat_event(content=text)),
    texts.map(lambda text: chat_event(reasoning_content=text)),
    texts.map(lambda text: chat_event(role="assistant", content=text)),
    st.just(chat_event()),
    st.tuples(texts, st.integers(0, 99)).map(lambda pair: {"choices": [{"index": pair[1], "text": pair[0]}]}),
)


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.tuples(event_fields, st.integers(1, 5)), max_size=12), st.booleans(), st.booleans(), st.integers(0, 60)
)
def test_repetition_changes_no_record(
    parts: list[tuple[dict[str, Any], int]], chunked: bool, spaced: bool, cut: int
) -> None:
    events = [event(fields, spaced=spaced) for fields, times in parts for _ in range(times)]
    done = b"data: [DONE]\n\n"
    final = event({"choices": [{"index": 0, "text": "", "finish_reason": "stop"}]})
    if chunked:
        reads = [HEAD + b"Transfer-Encoding: chunked\r\n\r\n", *map(framed, (*events, final, done)), b"0\r\n\r\n"]
    else:
        reads = [HEAD + b"\r\n", *events, final, done]
    if cut and len(reads) > 4:  # one event comes in two reads
        broken = reads[3]
        at = cut % len(broken) or 1
        reads[3:4] = [broken[:at], broken[at:]]
    reads = [data for data in reads if data]
    assert record(reads, short=True) == record(reads, short=False)


EVENTS = {
    "plain": text_event(" a"),
    "counted": text_event(" a", usage={"prompt_tokens": 5, "completion_tokens": 1}),
    "counted first": {"usage": {"completion_tokens": 1}, "choices": [{"index": 0, "text": " a"}]},
    "counted aside": text_event(" a", details={"completion_tokens": 1}),
    "counted twice": text_event(" a", details={"completion_tokens": 1}, usage={"completion_tokens": 1}),
    "cached": text_event(" a", usage={"completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 3}}),
}
ODD = [
    (b" a", b"a\tb"), (b" a", b"a\nb"), (b" a", b"a\n\nb"), (b" a", b"a\rb"), (b" a", b"\x00"), (b" a", b"\xff\xe9"),
    (b" a", b"\\q"), (b" a", b"\\u12"), (b" a", b"\\u00e9"), (b" a", b"\\"), (b" a", b"n"), (b" a", b'"'),
    (b" a", b'\\"'), (b" a", b'b", "text":"'), (b" a", b'x"}],"choices":[{"text":"y'),
    (b'" a"', b"7"), (b'" a"', b'""'), (b'" a"', b"{}"),
    (b":7", b":"), (b":7", b":8"), (b":7", b":10"), (b":7", b":1e5"), (b":7", b":-7"), (b":5", b":6"), (b":3}", b":4}"),
    (b":1}", b":1234567890}"), (b":1}", b":0}"), (b":1}", b":2}"),
    (b'"index":0', b'"index":1'), (b"null", b'"stop"'),
    (b"cmpl-1", b"cmpl-22"), (b"cmpl-1", b'\\"text\\":\\"'), (b"{", b"["), (b'"text"', b'"error"'),
    (b'"text"', b'"text":"x","text"'), (b'"text"', b'"note":"text"'), (b"data: ", b"data:"),
    (b"data: ", b": c\ndata: "), (b"data: ", b"event: error\ndata: "), (b"data: ", b"\xef\xbb\xbfdata: "),
    (b"data: ", b"\n\ndata: "), (b"\n\n", b"\r\n\r\n"), (b"\n\n", b"\n\n\n"), (b"\n\n", b"\n"),
    (b',"choices"', b'\ndata: ,"choices"'), (b"}\n\n", b"} \n\n"), (b"", b""),
]  # fmt: skip
FRAMES = [b"%x\r\n%s\r\n", b"%X\r\n%s\r\n", b"00%x\r\n%s\r\n", b"%x;ext=1\r\n%s\r\n", b"%x \r\n%s\r\n"]


@pytest.mark.parametrize("name", EVENTS)
def test_nothing_that_only_looks_like_a_repetition_is_taken_for_one(name: str) -> None:
    plain, done = event(EVENTS[name]), b"data: [DONE]\n\n"
    for old, new in ODD:
        odd = plain.replace(old, new, 1)
        for sent in ((plain, plain, odd, odd, done), (plain, odd, plain, done)):
            bare = [HEAD + b"\r\n", *sent]
            assert record(bare, short=True) == record(bare, short=False), (old, new)
            for frame in FRAMES:
                reads = [HEAD + b"Transfer-Encoding: chunked\r\n\r\n", *(frame % (len(part), part) for part in sent)]
                for joined in (reads, [*reads[:2], reads[2] + reads[3], *reads[4:]]):
                    whole = [*joined, b"0\r\n\r\n"]
                    assert record(whole, short=True) == record(whole, short=False), (old, new, frame)


def test_what_is_not_sure_is_not_learned() -> None:
    assert learn(framed(event(text_event(" a"))), True, None) is not None
    assert learn(event(text_event(' quoted " and \\ too')), False, None) is not None
    assert learn(framed(event(text_event(""))), True, None) is None
    assert learn(framed(event({"choices": [{"text": "a", "finish_reason": "stop"}]})), True, None) is None
    assert learn(b": comment\n" + event(text_event("a")), False, None) is None
    assert learn(framed(event(text_event("a")) + event(text_event("b"))), True, None) is None
    assert learn(framed(event({"choices": [{"text": "", 'note "text': "a"}]})), True, None) is None
    assert learn(framed(b"event: x\n" + event(text_event("a"))), True, None) is None
    assert learn(framed(event(text_event("a")))[:-2], True, None) is None
    assert learn(framed(event(text_event("a", usage={"completion_tokens": 1}))), True, 2) is None
    assert learn(b"no chunk at all", True, None) is None


def test_a_repetition_may_differ_in_text_and_digits_alone() -> None:
    template = learn(framed(event(text_event(" a", usage={"prompt_tokens": 5, "completion_tokens": 1}))), True, 1)
    assert template is not None
    same = framed(event(text_event(' "b\\', usage={"prompt_tokens": 5, "completion_tokens": 12}, created=9)))
    longer = framed(event(text_event("c", usage={"prompt_tokens": 5, "completion_tokens": 13}, more=1)))
    found = template.take([30, 20, 40], [same, same, longer], 25)
    assert (found.times, found.texts, found.counts) == ([30, 30], [rb" \"b\\"] * 2, [12, 12])
    for other in (
        framed(event(text_event("", usage={"prompt_tokens": 5, "completion_tokens": 1}))),
        framed(event(text_event("a", usage=None))),
        framed(event(text_event("a", usage={"prompt_tokens": 5, "completion_tokens": 1})))[:-1],
        b"0\r\n\r\n",
        b"",
    ):
        assert list(template.take([1], [other], 0).times) == []


def test_two_halves_of_an_escape_make_no_text() -> None:
    template = learn(event(text_event("a")), False, None)
    assert template is not None
    reads = [event(text_event("a")).replace(b'"a"', b'"%s"' % text) for text in (b"b", b"\\", b"n", b"b")]
    assert template.take([1, 2, 3, 4], reads, 0).texts == [b"b"]
