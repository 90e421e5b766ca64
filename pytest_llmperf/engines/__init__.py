"""The engines: constants of type ``Engine`` in one explicit dict."""

from __future__ import annotations

from typing import Final

from pytest_llmperf.engines.embedded import EMBEDDED
from pytest_llmperf.engines.engine import Engine
from pytest_llmperf.engines.llamacpp import LLAMACPP
from pytest_llmperf.engines.ollama import OLLAMA
from pytest_llmperf.engines.openai import OPENAI
from pytest_llmperf.engines.sglang import SGLANG
from pytest_llmperf.engines.tgi import TGI
from pytest_llmperf.engines.triton import TRITON
from pytest_llmperf.engines.vllm import VLLM
from pytest_llmperf.errors import ConfigError, nearest
from pytest_llmperf.plan import ServerSpec

__all__ = ["ENGINES", "Engine", "engine_of", "launchable"]

ENGINES: Final[dict[str, Engine]] = {
    engine.name: engine for engine in (EMBEDDED, LLAMACPP, VLLM, SGLANG, TGI, OLLAMA, TRITON, OPENAI)
}


def engine_of(spec: ServerSpec) -> Engine:
    """The engine that ``spec`` names. Raises ConfigError with the nearest name where there is none."""
    if spec.engine not in ENGINES:
        problem = f"unknown engine {spec.engine!r}{nearest(spec.engine, tuple(ENGINES))}"
        raise ConfigError(f"servers.{spec.name}", "engine", problem)
    return ENGINES[spec.engine]


def launchable() -> tuple[str, ...]:
    """Names of the engines that this version can start itself."""
    return tuple(name for name, engine in ENGINES.items() if engine.command is not None)
