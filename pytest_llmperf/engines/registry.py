"""Engines that users add: by a call in ``conftest.py``, or as entry points of an installed package."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from importlib.metadata import entry_points
from typing import Any, Final, get_args

from pytest_llmperf.engines.engine import Engine, LogFact
from pytest_llmperf.engines.parameters import SETTABLE
from pytest_llmperf.engines.table import ENGINES
from pytest_llmperf.errors import ConfigError, nearest
from pytest_llmperf.samples import Gauge, Quantity

__all__ = ["GROUP", "add_installed", "register_engine"]

GROUP: Final = "pytest_llmperf.engines"
"""Of entry points whose value is an ``Engine``."""
_NAME: Final = re.compile(r"[a-z][a-z0-9_-]*\Z")
_OTHER_PORT: Final = re.compile(r":\d{1,5}/")


def register_engine(engine: Engine) -> None:
    """Make ``engine`` known, so that servers of the configuration may name it.

    For the ``conftest.py`` beside the configuration, at its top level: the configuration is read right after it.
    Raises ConfigError where the name is taken or a field of the engine can't be right.
    """
    _add(engine, "register_engine")


@lru_cache(maxsize=1)
def add_installed() -> None:
    """Add the engines of installed packages, once. Raises ConfigError for one that can't be loaded or added."""
    for entry in entry_points(group=GROUP):
        where = f"entry point {entry.name} of {entry.dist.name if entry.dist else 'a package'}"
        try:
            engine = entry.load()
        except Exception as error:
            raise ConfigError(where, GROUP, f"{entry.value} can't be loaded: {error}") from error
        _add(engine, where)


def _add(engine: Any, where: str) -> None:
    if not isinstance(engine, Engine):
        raise ConfigError(where, "", f"{engine!r} is no pytest_llmperf.Engine")
    if not _NAME.match(str(engine.name)):
        raise ConfigError(where, "name", f"{engine.name!r}: write lower-case letters, digits, - and _")
    if ENGINES.get(engine.name) == engine:
        return
    if engine.name in ENGINES:
        raise ConfigError(where, "name", f"there is an engine {engine.name!r} already; choose another name")
    for field, problem in _problems(engine):
        raise ConfigError(where, f"{engine.name}.{field}", problem)
    ENGINES[engine.name] = engine


def _problems(engine: Engine) -> Iterator[tuple[str, str]]:
    """Field and what is wrong with it."""
    command: object = engine.command
    if command is not None and not callable(command):
        yield "command", f"{command!r} is no function; write def command(spec, port, model) -> list[str]"
    for name in engine.parameters:
        if name not in SETTABLE:
            yield "parameters", f"there is no parameter {name!r}{nearest(name, SETTABLE)}"
    if not 1 <= engine.default_port <= 65535:
        yield "default_port", f"{engine.default_port!r} is no port"
    named = {"ready_path": (engine.ready_path,), "info_paths": engine.info_paths, "reset_paths": engine.reset_paths}
    for field, paths in named.items():
        for path in paths:
            if not path.startswith("/"):
                yield field, f"{path!r} is no path; write '/{path}'"
    url = engine.metrics_url
    if url is not None and not url.startswith("/") and not _OTHER_PORT.match(url):
        yield "metrics_url", f"{url!r}: write a path, e.g. '/metrics', or ':8002/metrics' for another port"
    yield from _unknown("series", engine.series, get_args(Quantity))
    yield from _unknown("log_patterns", engine.log_patterns, get_args(LogFact))
    yield from _unknown("log_series", engine.log_series, get_args(Gauge))
    yield from _unreadable("log_patterns", engine.log_patterns)
    yield from _unreadable("log_series", engine.log_series)


def _unreadable(field: str, table: Mapping[Any, tuple[str, ...]]) -> Iterator[tuple[str, str]]:
    for name, patterns in table.items():
        for pattern in patterns:
            try:
                groups = re.compile(pattern).groups
            except re.error as error:
                yield field, f"{name}: {pattern!r} is no regular expression: {error}"
            else:
                if not groups:
                    yield field, f"{name}: {pattern!r} has no group; put the value into (…)"


def _unknown(field: str, table: Any, known: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    for name in table:
        if name not in known:
            yield field, f"there is no {name!r}{nearest(name, known)}"
        elif isinstance(table[name], str):
            yield field, f"{name}: {table[name]!r} is one text; write ({table[name]!r},)"
