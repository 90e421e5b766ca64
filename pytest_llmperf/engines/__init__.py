"""The engines: constants of type ``Engine`` in one explicit dict, and users' own beside them."""

from __future__ import annotations

from pytest_llmperf.engines.engine import Engine
from pytest_llmperf.engines.registry import add_installed, register_engine
from pytest_llmperf.engines.table import ENGINES
from pytest_llmperf.errors import ConfigError, nearest
from pytest_llmperf.plan import ServerSpec

__all__ = ["ENGINES", "Engine", "add_installed", "computes_on_cpu", "engine_of", "launchable", "register_engine"]


def engine_of(spec: ServerSpec) -> Engine:
    """The engine that ``spec`` names. Raises ConfigError with the nearest name where there is none."""
    if spec.engine not in ENGINES:
        problem = f"unknown engine {spec.engine!r}{nearest(spec.engine, tuple(ENGINES))}"
        raise ConfigError(f"servers.{spec.name}", "engine", problem)
    return ENGINES[spec.engine]


def computes_on_cpu(spec: ServerSpec) -> bool:
    """Whether the server of ``spec`` is known to use no GPU: its memory is the host's then."""
    return spec.no_gpus or engine_of(spec).cpu


def launchable() -> tuple[str, ...]:
    """Names of the engines that this version can start itself."""
    return tuple(name for name, engine in ENGINES.items() if engine.command is not None)
