"""Emptying a server's prefix cache between two loads."""

from __future__ import annotations

from pathlib import Path

import httpx

from pytest_llmperf.control.client import open_client
from pytest_llmperf.engines import Engine
from pytest_llmperf.engines.engine import mapping
from pytest_llmperf.records import Endpoint

__all__ = ["empty_prefix_cache"]


def empty_prefix_cache(endpoint: Endpoint, engine: Engine, *, ca_file: Path | None = None) -> bool:
    """Whether the server says that its prefix cache is empty now.

    False where the engine has no route for it, the server does not offer it (vLLM outside development mode), or
    refuses it now (SGLang while requests run). Never raises for what the server does.
    """
    if not engine.reset_paths:
        return False
    with open_client(endpoint, ca_file=ca_file) as client:
        return any(_emptied(client, path) for path in engine.reset_paths)


def _emptied(client: httpx.Client, path: str) -> bool:
    try:
        response = client.post(path)
    except httpx.HTTPError:
        return False
    if response.status_code != httpx.codes.OK:
        return False
    try:
        answer = response.json()
    except ValueError:  # text, or no body at all
        return True
    return mapping(answer).get("success") is not False  # vLLM answers 200 to a failure too
