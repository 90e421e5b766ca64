"""How long a prompt is in the server's own tokens."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from pytest_llmperf.control.client import open_client
from pytest_llmperf.control.probe import ask
from pytest_llmperf.errors import TargetError
from pytest_llmperf.load.texts import Prompt
from pytest_llmperf.records import Api, Endpoint

__all__ = ["prompt_tokens"]

_ATTEMPTS: Final = 3
_SERVER_FAULT: Final = 500


def prompt_tokens(
    endpoint: Endpoint,
    api: Api,
    prompt: Prompt,
    *,
    extras: Mapping[str, Any] | None = None,
    ca_file: Path | None = None,
    timeout: float = 120.0,
) -> int | None:
    """Prompt tokens that the server counts for ``prompt`` (chat template included for ``api="chat"``).

    Asks for one token, not streamed; ``extras`` are merged into the request, ``timeout`` is in seconds. None where
    the server states no usage. Raises TargetError with the status and the server's message where it refuses; a server
    that fails now and then is asked again, as its load is what has to show that.
    """
    with open_client(endpoint, ca_file=ca_file, timeout=timeout) as client:
        for _ in range(_ATTEMPTS - 1):
            try:
                return ask(client, endpoint, api, prompt, extras or {}).prompt_tokens
            except TargetError as error:
                if error.status is None or error.status < _SERVER_FAULT:
                    raise
        return ask(client, endpoint, api, prompt, extras or {}).prompt_tokens
