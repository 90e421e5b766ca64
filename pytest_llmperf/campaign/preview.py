"""The command line that a server would be started with, as far as it is known before anything is installed."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Final

from pytest_llmperf.engines import engine_of
from pytest_llmperf.engines.redact import HIDDEN, redact, secret_name
from pytest_llmperf.errors import LlmperfError
from pytest_llmperf.plan import ServerSpec

__all__ = ["start_line"]

_PORT: Final = 64_937
"""Stands for the port, which is chosen when it is needed."""


def start_line(spec: ServerSpec) -> str | None:
    """Variables that the engine and the configuration set, and the command; secrets hidden. Why not, where its model is
    not here. None: it runs already."""
    if spec.targeted:
        return None
    try:
        words, variables = _command(spec)
    except LlmperfError as error:
        return f"cannot be started here: {error}"
    shown = " ".join((*variables, *map(_quoted, redact(words))))
    shown = shown if spec.port is not None else shown.replace(str(_PORT), "PORT")
    return f"image {spec.image_name}: {shown}" if spec.launched_by == "container" else shown


def _command(spec: ServerSpec) -> tuple[tuple[str, ...], list[str]]:
    engine, port = engine_of(spec), spec.port or _PORT
    own: list[str] = []
    if spec.uses_engine_command and engine.command is not None:
        own = engine.command(spec, port, engine.find_model(spec))
        own[:1] = [spec.program or own[0]]
    if spec.launched_by == "container":  # inside, the loopback is the container's own
        own = ["0.0.0.0" if word == "127.0.0.1" else word for word in own]  # noqa: S104
    variables = {**engine.environment(spec, port), **spec.env} if spec.uses_engine_command else spec.env
    words = spec.filled(spec.start, port, own) if spec.launched_by == "command" else tuple(own)
    return words, [_setting(name, variables) for name in sorted(variables)]


def _setting(name: str, variables: Mapping[str, str]) -> str:
    return f"{name}={HIDDEN if secret_name(name) else _quoted(redact([variables[name]])[0])}"


def _quoted(word: str) -> str:
    """As a shell would want it; what stands for a secret is left as it is."""
    return word if word == HIDDEN else shlex.quote(word)
