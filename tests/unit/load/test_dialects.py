"""Every API: what is asked, what its streams and whole replies mean wherever they are cut, and against a real server.

Only llama.cpp's own stream is recorded; the others are written as their documentation has them.
"""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from loading import by_id, endpoint, run
from truth_server import Script, TruthServer
from truth_wire import wire_of

from pytest_llmperf.load.dialects import DIALECTS
from pytest_llmperf.load.http1 import ProtocolError
from pytest_llmperf.load.reader import Reader
from pytest_llmperf.load.request import body, encode
from pytest_llmperf.plan import Fixed, LoadProfile, Workload
from pytest_llmperf.records import Api, Outcome, TokenSource

STREAMS = Path(__file__).parents[2] / "fixtures" / "streams"
APIS: tuple[Api, ...] = get_args(Api)
FINISH: dict[Api, str | None] = {"triton": None, "llamacpp": "limit"}
NATIVE: tuple[Api, ...] = ("tgi", "llamacpp", "triton", "ollama-chat", "ollama-generate")
KEYS = (
    "choices", "delta", "text", "content", "usage", "token", "details", "generated_text", "stop", "timings", "message",
    "text_output", "done", "response", "thinking", "tool_calls", "function", "arguments", "completion_tokens", "index",
    "finish_reason", "error",
)  # fmt: skip
LOAD = LoadProfile(concurrency=2, requests=4, warmup=0)


def workload(api: Api, **changes: Any) -> Workload:
    return Workload(**{"name": "w", "api": api, "input": Fixed(tokens=30), "output": Fixed(tokens=6), **changes})


def written(api: Api, **script: Any) -> tuple[bytes, bytes]:
    """A stream of six tokens, and the same as a whole reply, as the truth server writes them."""
    dialect = DIALECTS[api]
    fields = dialect.body("m", "hello", 6)
    fields |= {"return_num_output_tokens": True} if api == "triton" and script.get("usage", True) else {}
    found = wire_of(dialect.route("m", stream=True), "m")
    assert found is not None
    wire = found(Script(n=6, word="é🌍", **script), fields, "m", 5)
    texts = [text for index in range(6) for text in wire.output(index, 1, index + 1)]
    lines = [wire.comment(), *map(wire.line, [*wire.role(), *texts, *wire.tail(6)])]
    whole = wire_of(dialect.route("m", stream=False), "m")
    assert whole is not None
    return b"".join(lines), json.dumps(whole(wire.script, fields, "m", 5).reply()).encode()


def read(api: Api, *parts: bytes) -> Reader:
    """The k-th event at time k."""
    dialect = DIALECTS[api]
    reader, decoder, at = dialect.reader(keep_text=True), dialect.decoder(), 0
    for events in (*map(decoder.feed, parts), decoder.end()):
        for event in events:
            at += 1
            reader.take(event.data, at)
    return reader


def facts(reader: Reader) -> tuple[Any, ...]:
    counts = (reader.output_tokens, reader.prompt_tokens, reader.cached_tokens, reader.chunk_tokens)
    return (*counts, reader.chunk_ns, reader.first_answer_ns, reader.finish_reason, reader.texts, reader.verdict())


# --- requests


def test_the_plan_knows_the_apis_of_the_load() -> None:
    assert set(get_args(Workload.model_fields["api"].annotation)) == set(APIS) == set(DIALECTS)


@pytest.mark.parametrize(
    ("api", "path", "whole_path", "expected"),
    [
        ("tgi", "/generate_stream", "/generate",
         {"inputs": "hi", "parameters": {"max_new_tokens": 6, "details": True, "seed": 1}}),
        ("llamacpp", "/completion", "/completion", {"prompt": "hi", "n_predict": 6, "stream": True, "seed": 1}),
        ("triton", "/v2/models/org%2Fm/generate_stream", "/v2/models/org%2Fm/generate",
         {"text_input": "hi", "max_tokens": 6, "stream": True, "seed": 1}),
        ("ollama-chat", "/api/chat", "/api/chat",
         {"model": "org/m", "messages": [{"role": "user", "content": "hi"}], "stream": True,
          "options": {"num_predict": 6, "seed": 1}}),
        ("ollama-generate", "/api/generate", "/api/generate",
         {"model": "org/m", "prompt": "hi", "stream": True, "options": {"num_predict": 6, "seed": 1}}),
    ],
)  # fmt: skip
def test_requests(api: Api, path: str, whole_path: str, expected: dict[str, Any]) -> None:
    made = body("org/m", workload(api, sampling={"seed": 1}), "hi", 6, {"stream_options": {"x": 1}})
    assert made == expected
    with TruthServer(model="org/m") as server:
        target = endpoint(server)
        assert encode(target, api, made).startswith(f"POST {path} HTTP/1.1\r\n".encode())
        assert encode(target, api, made, stream=False).startswith(f"POST {whole_path} HTTP/1.1\r\n".encode())


def test_a_whole_reply_of_the_openai_api_is_asked_for_without_stream_options() -> None:
    made = body("m", workload("chat"), "hi", 6, {"stream_options": {"continuous_usage_stats": True}}, stream=False)
    assert "stream_options" not in made
    assert made["stream"] is False


# --- readers


@pytest.mark.parametrize("api", APIS)
def test_what_a_stream_means_at_every_split_point(api: Api) -> None:
    stream, _ = written(api)
    expected = read(api, stream)
    assert expected.verdict() == (Outcome.OK, None)
    assert len(expected.chunk_ns) == 6
    assert expected.output_tokens == 6
    assert expected.prompt_tokens == 5
    assert expected.texts == ("".join(f" é🌍{index}" for index in range(6)),)
    assert expected.finish_reason == FINISH.get(api, "length")
    assert expected.chunk_tokens == ((1,) * 6 if api in ("tgi", "llamacpp", "triton") else None)
    for at in range(len(stream) + 1):
        assert facts(read(api, stream[:at], stream[at:])) == facts(expected)
    assert facts(read(api, *(stream[at : at + 1] for at in range(len(stream))))) == facts(expected)


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(APIS), st.lists(st.integers(0, 3000), max_size=8), st.booleans())
def test_any_cuts(api: Api, cuts: list[int], crlf: bool) -> None:
    stream, _ = written(api, crlf=crlf)
    edges = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    assert facts(read(api, *(stream[a:b] for a, b in pairwise(edges)))) == facts(read(api, stream))


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(APIS),
    st.recursive(
        st.none() | st.booleans() | st.integers(-3, 9) | st.text(max_size=3),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(
                    [
                        "choices",
                        "delta",
                        "text",
                        "content",
                        "usage",
                        "token",
                        "details",
                        "generated_text",
                        "stop",
                        "timings",
                        "text_output",
                        "done",
                        "message",
                        "response",
                        "thinking",
                        "tool_calls",
                        "function",
                        "arguments",
                        "completion_tokens",
                        "finish_reason",
                        "index",
                        "error",
                    ]
                ),
                inner,
                max_size=4,
            )
        ),
        max_leaves=12,
    ),
)
def test_no_frame_does_more_than_break_the_protocol(api: Api, frame: Any) -> None:
    for feed in ("take", "take_whole"):
        reader = DIALECTS[api].reader(keep_text=True)
        try:
            if feed == "take":
                reader.take(json.dumps(frame), 1)
            else:
                reader.take_whole(json.dumps(frame))
        except ProtocolError:
            continue
        assert reader.output_tokens is None or reader.output_tokens >= 0
        reader.verdict()


@pytest.mark.parametrize("api", APIS)
def test_without_counts_tokens_are_unknown(api: Api) -> None:
    reader = read(api, written(api, usage=False)[0])
    if api == "tgi":  # every event names its token: they are all there, and the last one is marked
        assert (reader.output_tokens, reader.chunk_tokens) == (6, (1,) * 6)
        assert reader.token_source is TokenSource.CONTINUOUS_USAGE
    else:
        assert (reader.output_tokens, reader.chunk_tokens) == (None, None)
        assert reader.token_source is TokenSource.UNKNOWN
    assert reader.verdict() == (Outcome.OK, None)


@pytest.mark.parametrize("api", APIS)
def test_a_count_that_disagrees_with_its_parts_is_not_spread_over_them(api: Api) -> None:
    if api == "tgi":
        assert read(api, written(api, lie=-2)[0]).chunk_tokens is None
        assert read(api, written(api, lie=-2)[0]).output_tokens == 4


@pytest.mark.parametrize("api", [api for api in APIS if api != "triton"])
def test_a_stream_without_its_last_event_is_truncated(api: Api) -> None:
    outcome, detail = read(api, written(api, finish=False, done=False, usage=False)[0]).verdict()
    assert outcome is Outcome.TRUNCATED
    assert DIALECTS[api].reader.end_mark in (detail or "")


@pytest.mark.parametrize("api", APIS)
def test_an_error_inside_the_stream(api: Api) -> None:
    wire = wire_of(DIALECTS[api].route("m", stream=True), "m")
    assert wire is not None
    made = wire(Script(message="out of memory"), DIALECTS[api].body("m", "x", 1), "m", 1)
    stream = b"".join(map(made.line, [*made.output(0, 1, 1), *made.error()]))
    reader = read(api, stream)
    assert reader.verdict() == (Outcome.STREAM_ERROR, "out of memory")
    assert len(reader.chunk_ns) == 1


@pytest.mark.parametrize("api", APIS)
def test_whole_replies(api: Api) -> None:
    reader = DIALECTS[api].reader(keep_text=True)
    reader.take_whole(written(api)[1].decode())
    assert reader.verdict() == (Outcome.OK, None)
    assert reader.output_tokens == 6
    assert reader.prompt_tokens == (None if api == "tgi" else 5)
    assert reader.chunk_ns == []
    assert reader.texts == read(api, written(api)[0]).texts
    empty = DIALECTS[api].reader()
    with pytest.raises(ProtocolError):
        empty.take_whole('{"hello": 1}')


def test_the_recorded_stream_of_llamacpp_at_every_split_point() -> None:
    stream = (STREAMS / "llama-server-xllamacpp-2026.10.11549-native-completion.sse").read_bytes()
    expected = read("llamacpp", stream)
    assert expected.chunk_ns == [1, 2, 3, 4]
    assert (expected.output_tokens, expected.prompt_tokens, expected.cached_tokens) == (4, 5, 3)
    assert expected.chunk_tokens == (1, 1, 1, 1)
    assert expected.texts == (" Madrid.\n\n",)
    assert (expected.finish_reason, expected.verdict()) == ("limit", (Outcome.OK, None))
    assert (expected.first_event_ns, expected.last_event_ns) == (1, 5)
    for at in range(len(stream) + 1):
        assert facts(read("llamacpp", stream[:at], stream[at:])) == facts(expected)


def api_of(path: Path) -> Api:
    return "llamacpp" if "native" in path.stem else "chat" if "chat" in path.stem else "completions"


@pytest.mark.parametrize("path", sorted(STREAMS.glob("*.sse")), ids=lambda path: path.stem)
def test_recorded_streams_at_every_split_point(path: Path) -> None:
    """Also with CRLF, with comments between the events, and byte by byte."""
    stream, api = path.read_bytes(), api_of(path)
    expected = facts(read(api, stream))
    for at in range(len(stream) + 1):
        assert facts(read(api, stream[:at], stream[at:])) == expected
    assert facts(read(api, *(stream[at : at + 1] for at in range(len(stream))))) == expected
    assert facts(read(api, stream.replace(b"\n", b"\r\n"))) == expected
    assert facts(read(api, stream.replace(b"\n\n", b"\n\n: ping\n\n"))) == expected


def test_llamacpp_counts_per_chunk_on_the_openai_api_too() -> None:
    stream = (STREAMS / "llama-server-xllamacpp-2026.10.11549-completions-timings-per-token.sse").read_bytes()
    reader = read("completions", stream)
    assert reader.chunk_ns == [3, 4, 5, 6]  # two events of prompt progress come first
    assert reader.chunk_tokens == (1, 1, 1, 1)
    assert reader.output_tokens == 4
    assert reader.token_source is TokenSource.CONTINUOUS_USAGE
    assert (reader.first_event_ns, reader.last_event_ns) == (1, 7)


def test_special_tokens_of_tgi_are_counted_and_not_kept() -> None:
    reader = DIALECTS["tgi"].reader(keep_text=True)
    reader.take('{"token": {"id": 7, "text": "hi", "special": false}, "generated_text": null}', 1)
    details = '"details": {"finish_reason": "eos_token", "generated_tokens": 2, "input_length": 3}'
    reader.take('{"token": {"id": 2, "text": "</s>", "special": true}, "generated_text": "hi", ' + details + "}", 2)
    assert (reader.chunk_ns, reader.chunk_tokens, reader.texts) == ([1], (2,), ("hi",))
    assert reader.done


def test_ollama_thinks_calls_and_caches() -> None:
    reader = DIALECTS["ollama-chat"].reader(keep_text=True)
    reader.take('{"message": {"content": "", "thinking": "hm"}, "done": false}', 1)
    call = '{"function": {"name": "f", "arguments": {}}}'
    reader.take('{"message": {"content": "", "tool_calls": [' + call + ']}, "done": false}', 2)
    reader.take('{"message": {"content": ""}, "done": true, "done_reason": "stop", "eval_count": 9}', 3)
    assert (reader.chunk_ns, reader.first_answer_ns) == ([1, 2], 2)
    assert (reader.output_tokens, reader.prompt_tokens) == (9, None)  # a prompt out of the cache is not counted
    assert reader.texts is None  # what the model wrote for the call is not told


# --- against a server


@pytest.mark.parametrize("api", NATIVE)
@pytest.mark.parametrize("framing", ["chunked", "close"])
def test_streams_agree_with_the_server(api: Api, framing: str) -> None:
    with TruthServer(ttft=20, gap=5, framing=framing) as server:
        result = run(server, LOAD, workload(api), directive="reasoning=2" if "ollama" in api else "")
        truth = by_id(server, 4)
    for record in result.records:
        served = truth[record.index]
        assert record.outcome is Outcome.OK, record.detail
        assert len(record.chunk_ns) == len(served.sends) == 6
        assert record.output_tokens == (None if api == "triton" else 6)
        assert record.prompt_tokens == (None if api == "triton" else served.prompt_tokens)
        assert record.finish_reason == FINISH.get(api, "length")
        assert record.first_answer_ns == record.chunk_ns[2 if "ollama" in api else 0]
    # keep-alive holds: none of them needs the connection to end
    assert len({record.connection for record in result.records}) == (2 if framing == "chunked" else 4)


@pytest.mark.parametrize("api", APIS)
def test_whole_replies_have_tokens_and_an_end_but_no_chunks(api: Api) -> None:
    with TruthServer(ttft=30) as server:
        result = run(server, LOAD, workload(api), stream=False, keep_text=True)
        truth = by_id(server, 4)
    for record in result.records:
        served = truth[record.index]
        assert record.outcome is Outcome.OK, record.detail
        assert not record.streamed
        assert (record.first_output_ns, record.chunk_ns) == (None, ())
        assert record.last_output_ns is not None
        assert record.last_output_ns > served.sends[0] - 500_000
        assert record.output_tokens == (None if api == "triton" else 6)
        assert record.texts == (" w0 w1 w2 w3 w4 w5",)


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize(
    ("directive", "outcome"),
    [
        ("error_after=2 message=oom", Outcome.STREAM_ERROR),
        ("cut_after=2", Outcome.CONNECTION_LOST),
        ("status=429 retry_after=7", Outcome.HTTP_STATUS),
        ("raw=html", Outcome.PROTOCOL_ERROR),
    ],
)
def test_failures_in_every_api(truth: TruthServer, api: Api, directive: str, outcome: Outcome) -> None:
    record = run(truth, LoadProfile(concurrency=1, requests=1, warmup=0), workload(api), directive).records[0]
    assert record.outcome is outcome, record.detail
    if outcome is Outcome.HTTP_STATUS:
        assert record.detail == "HTTP 429 Too Many Requests (Retry-After: 7): scripted"
    if "after=2" in directive:
        assert len(record.chunk_ns) == 2


@pytest.fixture(scope="module")
def truth() -> Any:
    with TruthServer(ttft=5, gap=3, n=4) as server:
        yield server
