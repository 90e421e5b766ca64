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
        ("vllm", {"/reset_prefix_cache": (200, {"success": True})}, "emptied"),
        ("vllm", {"/reset_prefix_cache": (200, "")}, "emptied"),  # before it said whether
        ("vllm", {"/reset_prefix_cache": (200, {"success": False})}, "refused"),
        ("vllm", {}, "not offered"),  # no development mode: 404
        ("sglang", {"/flush_cache": (200, "Cache flushed.")}, "emptied"),
        ("sglang", {"/flush_cache": (400, "Flush cache failed.")}, "refused"),  # requests are running
        ("tgi", {}, "not offered"),
    ],
)
def test_whether_it_was_emptied(
    serve: Callable[..., str], engine: str, answers: dict[str, tuple[int, object]], done: str
) -> None:
    assert empty_prefix_cache(endpoint(serve(answers)), ENGINES[engine]) == done


def test_a_server_that_is_gone_has_emptied_nothing() -> None:
    assert empty_prefix_cache(endpoint("http://127.0.0.1:1"), ENGINES["vllm"]) == "refused"
