"""The bytes of a request."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pytest_llmperf.errors import UsageError
from pytest_llmperf.load.request import PreparedRequest, body, encode
from pytest_llmperf.plan import Fixed, Workload
from pytest_llmperf.records import Arrival, Endpoint, Phase


def endpoint(base_url: str = "http://127.0.0.1:8000", **changes: Any) -> Endpoint:
    facts = {"base_url": base_url, "host": "127.0.0.1", "port": 8000, "tls": False, "model": "m", "engine": "openai"}
    return Endpoint(**{**facts, **changes})


def workload(**changes: Any) -> Workload:
    return Workload(**{"name": "w", "input": Fixed(tokens=1), "output": Fixed(tokens=1), **changes})


def split(wire: bytes) -> tuple[str, dict[str, str], bytes]:
    head, _, content = wire.partition(b"\r\n\r\n")
    line, *headers = head.decode().split("\r\n")
    return line, dict(header.split(": ", 1) for header in headers), content


def test_a_chat_request() -> None:
    fields = body("m", workload(), "hé", 8, {"ignore_eos": True})
    line, headers, content = split(encode(endpoint(headers={"Authorization": "Bearer k"}), "chat", fields))
    assert line == "POST /v1/chat/completions HTTP/1.1"
    assert headers["Host"] == "127.0.0.1:8000"
    assert headers["Accept"] == "text/event-stream"
    assert headers["Authorization"] == "Bearer k"
    assert int(headers["Content-Length"]) == len(content)
    assert json.loads(content) == {
        "model": "m",
        "messages": [{"role": "user", "content": "hé"}],
        "max_tokens": 8,
        "stream": True,
        "stream_options": {"include_usage": True},
        "ignore_eos": True,
    }


def test_a_completion_behind_a_path_prefix() -> None:
    fields = body("m", workload(api="completions"), "x", 8)
    line, _, content = split(encode(endpoint("http://127.0.0.1:8000/team a/llm/"), "completions", fields))
    assert line == "POST /team%20a/llm/v1/completions HTTP/1.1"
    assert json.loads(content)["prompt"] == "x"


def test_sampling_wins_over_extras_and_options_are_merged() -> None:
    extras = {"temperature": 1, "ignore_eos": True, "stream_options": {"continuous_usage_stats": True}}
    fields = body("m", workload(sampling={"temperature": 0, "ignore_eos": False}), "x", 8, extras)
    assert fields["temperature"] == 0
    assert (fields["max_tokens"], fields["ignore_eos"]) == (8, False)
    assert fields["stream_options"] == {"include_usage": True, "continuous_usage_stats": True}


@pytest.mark.parametrize(
    ("changes", "host"),
    [
        ({"host": "::1", "port": 8000}, "[::1]:8000"),
        ({"host": "[::1]", "port": 80}, "[::1]"),
        ({"host": "fe80::1%eth0", "port": 8000}, "[fe80::1]:8000"),
        ({"host": "example.org", "port": 443, "tls": True}, "example.org"),
        ({"host": "bücher.example", "port": 1}, "xn--bcher-kva.example:1"),
    ],
)
def test_host_header(changes: dict[str, Any], host: str) -> None:
    assert split(encode(endpoint(**changes), "chat", {}))[1]["Host"] == host


@pytest.mark.parametrize(
    "headers",
    [
        {"X-A": "1\r\nX-B: 2"},
        {"X-A": "1\n"},
        {"X-A\r\nX-B": "1"},
        {"X A": "1"},
        {"X-A": "\0"},
        {"X-A": "€"},
        {"Content-Length": "0"},
        {"": "1"},
    ],
)
def test_a_header_cannot_smuggle_another(headers: dict[str, str]) -> None:
    with pytest.raises(UsageError) as caught:
        encode(endpoint(headers=headers), "chat", {})
    assert all(value not in str(caught.value) for value in headers.values() if len(value) > 3)


def test_a_host_cannot_smuggle_a_header() -> None:
    with pytest.raises(UsageError):
        encode(endpoint(host="x\r\ny"), "chat", {})


def test_the_bytes_do_not_show_in_a_repr() -> None:
    request = PreparedRequest(Arrival(0, Phase.WARMUP, None, 1, 1), b"Authorization: Bearer secret")
    assert "secret" not in repr(request)
