"""What is told by repetition is what the long way tells, whatever the events are and however the reads are cut."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_llmperf.load import response
from pytest_llmperf.load.client import Exchange
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


def record(reads: list[bytes], *, repeat: bool) -> RequestRecord:
    with pytest.MonkeyPatch.context() as patch:
        if not repeat:
            patch.setattr(response, "learn", lambda _data, _framed: None)
        made = Exchange(PreparedRequest(Arrival(0, Phase.MEASURED, None, 1, 3), b""), None, held=False)
        made.sent_ns = made.progress_ns = 1
        ended = False
        for number, data in enumerate(reads):
            ended = made.take(10 * number + 10, data)
            if number % 3 == 2:
                made.digest(2)
        assert ended
        made.closed_ns = 10 * len(reads)
        return made.record()


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
    assert record(reads, repeat=True) == record(reads, repeat=False)


def test_what_is_not_sure_is_not_learned() -> None:
    assert learn(framed(event(text_event(" a"))), True) is not None
    assert learn(event(text_event(' quoted " and \\ too')), False) is not None
    assert learn(framed(event(text_event(""))), True) is None
    assert learn(framed(event({"choices": [{"text": "a", "finish_reason": "stop"}]})), True) is None
    assert learn(b": comment\n" + event(text_event("a")), False) is None
    assert learn(framed(event(text_event("a")) + event(text_event("b"))), True) is None
    assert learn(b"no chunk at all", True) is None


def test_a_repetition_may_differ_in_text_and_digits_alone() -> None:
    template = learn(framed(event(text_event(" a", usage={"prompt_tokens": 5, "completion_tokens": 1}))), True)
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
        assert template.take([1], [other], 0).times == []
