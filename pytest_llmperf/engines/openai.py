"""Any other server that speaks the OpenAI API: nothing is assumed about it."""

from __future__ import annotations

from typing import Final

from pytest_llmperf.engines.engine import Engine

__all__ = ["OPENAI"]

# No request extras: a strict server answers unknown fields with an error.
OPENAI: Final = Engine(
    name="openai",
    title="an OpenAI-compatible server",
    parameters={},
    default_port=8000,
    cpu=False,
    ready_path="/v1/models",
    apis=None,
)
