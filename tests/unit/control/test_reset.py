"""The prefix cache is emptied where the engine has a route, and it is known whether it was."""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import urlsplit

import pytest

from pytest_llmperf.control.reset import empty_prefix_cache
from pytest_llmperf.engines import ENGINES
from pytest_llmperf.records import Endpoint


def endpoint(url: str) -> Endpoint:
    return Endpoint(url, "127.0.0.1", urlsplit(url).port or 0, False, "m", "vllm")


@pytest.mark.parametrize(
    ("engine", "answers", "done"),
    [
        ("vllm", {"/reset_prefix_cache": (200, {"success": True})}, True),
        ("vllm", {"/reset_prefix_cache": (200, "")}, True),  # before it said whether
        ("vllm", {"/reset_prefix_cache": (200, {"success": False})}, False),
        ("vllm", {}, False),  # no development mode: 404
        ("sglang", {"/flush_cache": (200, "Cache flushed.")}, True),
        ("sglang", {"/flush_cache": (400, "Flush cache failed.")}, False),  # requests are running
        ("tgi", {}, False),
    ],
)
def test_whether_it_was_emptied(
    serve: Callable[..., str], engine: str, answers: dict[str, tuple[int, object]], done: bool
) -> None:
    assert empty_prefix_cache(endpoint(serve(answers)), ENGINES[engine]) is done


def test_a_server_that_is_gone_has_emptied_nothing() -> None:
    assert empty_prefix_cache(endpoint("http://127.0.0.1:1"), ENGINES["vllm"]) is False
