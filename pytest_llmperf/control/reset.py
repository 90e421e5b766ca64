"""Emptying a server's prefix cache between two loads."""

from __future__ import annotations

from pathlib import Path
from typing import Final, Literal

import httpx

from pytest_llmperf.control.client import open_client
from pytest_llmperf.engines import Engine
from pytest_llmperf.engines.engine import mapping
from pytest_llmperf.records import Endpoint

__all__ = ["Reset", "empty_prefix_cache"]

_ABSENT: Final = (httpx.codes.NOT_FOUND, httpx.codes.METHOD_NOT_ALLOWED)


Reset = Literal["emptied", "refused", "not offered"]


def empty_prefix_cache(endpoint: Endpoint, engine: Engine, *, ca_file: Path | None = None) -> Reset:
    """Ask for an empty prefix cache; how that went by the server's own word.

    ``not offered`` where the engine has no route for it, or the server not (vLLM outside development mode);
    ``refused`` where it does not do it now: SGLang while requests run, vLLM while blocks are in use. Never raises for
    what the server does.
    """
    if not engine.reset_paths:
        return "not offered"
    with open_client(endpoint, ca_file=ca_file) as client:
        answers = [_asked(client, path) for path in engine.reset_paths]
    return next((each for each in ("emptied", "refused") if each in answers), "not offered")


def _asked(client: httpx.Client, path: str) -> Reset:
    try:
        response = client.post(path)
    except httpx.HTTPError:
        return "refused"
    if response.status_code in _ABSENT:
        return "not offered"
    if response.status_code != httpx.codes.OK:
        return "refused"
    try:
        answer = response.json()
    except ValueError:  # text, or no body at all
        return "emptied"
    # vLLM answers 200 to a failure too.
    return "refused" if mapping(answer).get("success") is False else "emptied"
