"""A server of the configuration as a specification, overridden from the command line."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from pydantic import ValidationError

from pytest_llmperf.errors import ConfigError, MarkerError, nearest
from pytest_llmperf.fields import on_other_machine
from pytest_llmperf.identity import ENVIRONMENT, INPUTS, fact_class
from pytest_llmperf.plan import LAUNCH_ONLY, ServerSpec, Workload
from pytest_llmperf.recount import check_tokenizer
from pytest_llmperf.settings.faults import describe_validation_error, given_value, shown_type, toml_value
from pytest_llmperf.settings.model import Overrides, Settings

__all__ = ["BUILT_IN_SERVERS", "check_speaks", "read_server", "require_launchable", "server_named"]

_NOT_DECLARED: Final = ("engine", "workload", "definitions")
"""Facts that the configuration says elsewhere, or that belong to a test."""
BUILT_IN_SERVERS: Final[dict[str, dict[str, Any]]] = {"embedded": {"engine": "embedded"}}


def server_named(name: str | None, settings: Settings, overrides: Overrides) -> ServerSpec:
    """The specification of server ``name`` (None: the default), with the command line's overrides applied.

    A URL on the command line replaces whatever server was named. Raises ConfigError.
    """
    name = overrides.server or name or settings.default_server
    url = overrides.url or (settings.url if name is None else None)
    known = {**BUILT_IN_SERVERS, **settings.servers}
    if url is not None:
        where = "--llmperf-url" if overrides.url else settings.source
        table: dict[str, Any] = {"engine": "openai", "url": url}
        if overrides.server:
            named = _table(overrides.server, known, "--llmperf-server")
            elsewhere = on_other_machine(url) or isinstance(named.get("gpus"), str)  # any: chosen at a launch
            unfit = (*LAUNCH_ONLY, *(("gpus",) if elsewhere else ()))
            table = {**{key: value for key, value in named.items() if key not in unfit}, "url": url}
        label = overrides.server or "url"
    elif name is None:
        raise ConfigError(
            settings.source if settings.servers else f"{settings.source} (no servers there)",
            "default_server",
            f"no server is named: set it, give server= in the marker, --llmperf-server or --llmperf-url; "
            f"known servers: {', '.join(known)}",
        )
    else:
        where = "--llmperf-server" if overrides.server else settings.source
        if name not in known and not overrides.server and name != settings.default_server:
            raise MarkerError("llmperf", "server", f"unknown server {name!r}{nearest(name, tuple(known))}")
        table, label = dict(_table(name, known, where)), name
    api_key_env = overrides.api_key_env or (settings.api_key_env if "api_key_env" not in table else None)
    if api_key_env:
        table["api_key_env"] = api_key_env
    for assignment in overrides.assignments:
        changed = _assign(table, assignment)
        read_server(label, changed, "--llmperf-set")
        table = changed
    spec = read_server(label, table, where)
    require_launchable(spec, where)
    return spec


def check_speaks(spec: ServerSpec, workload: Workload) -> None:
    """Raise ConfigError where the engine of ``spec`` is known not to speak the workload's API."""
    from pytest_llmperf.engines import engine_of
    from pytest_llmperf.engines.engine import check_api

    check_api(engine_of(spec), workload.api, f"servers.{spec.name}")


def require_launchable(spec: ServerSpec, where: str) -> None:
    """Raise ConfigError where ``spec`` is neither a running server nor one that this version can start."""
    from pytest_llmperf.engines import ENGINES, launchable
    from pytest_llmperf.engines.engine import SETTABLE
    from pytest_llmperf.engines.redact import redact

    prefix = f"servers.{spec.name}"
    if spec.url is not None:
        return
    for key in ("start", "logs", "stop"):
        words = getattr(spec, key)
        if redact(words) != words:
            problem = "holds a secret, which would be shown and stored; let the command read it from a variable"
            raise ConfigError(where, f"{prefix}.{key}", problem)
    if spec.launched_by == "command" and not spec.uses_engine_command:
        for key in ("version", *SETTABLE):
            if getattr(spec, key) is not None and not spec.passes(key):
                problem = f"does not reach the server: write {{{key}}} into start, or {{command}} for all of them"
                raise ConfigError(where, f"{prefix}.{key}", problem)
        if spec.extra_args:
            problem = "do not reach the server: write {command} into start, or the arguments themselves"
            raise ConfigError(where, f"{prefix}.extra_args", problem)
        return
    if spec.engine not in launchable():
        problem = f"{ENGINES[spec.engine].title} cannot be launched by this version: start it yourself and give its url"
        raise ConfigError(where, f"{prefix}.engine", problem)
    if spec.launched_by == "container" and spec.engine in BUILT_IN_SERVERS:
        key = "image" if spec.image else "image_template"
        problem = f"{ENGINES[spec.engine].title} is part of this package and in no image; name the engine of the image"
        raise ConfigError(where, f"{prefix}.{key}", problem)


def _require_units(table: Mapping[str, Any], where: str, prefix: str) -> None:
    """A bare number of seconds is an error: was it ms, or min?"""
    limits = table.get("limits")
    times = {key: table.get(key) for key in ("startup_timeout", "gpu_wait")}
    if isinstance(limits, Mapping):
        times |= {f"limits.{key}": value for key, value in limits.items()}
    for key, value in times.items():
        if isinstance(value, int | float) and not isinstance(value, bool):
            raise ConfigError(where, f"{prefix}.{key}", f"{value!r} has no unit; write e.g. '{value} s'")


def read_server(name: str, table: Mapping[str, Any], where: str) -> ServerSpec:
    """The specification that ``table`` of the file (or option) ``where`` gives. Raises ConfigError."""
    from pytest_llmperf.engines import ENGINES

    prefix = f"servers.{name}"
    _require_units(table, where, prefix)
    try:
        spec = ServerSpec.model_validate({"name": name, **table})
    except ValidationError as error:
        key, problem = describe_validation_error(error, ServerSpec)
        raise ConfigError(where, f"{prefix}.{key}".rstrip("."), problem) from None
    if spec.engine not in ENGINES:
        raise ConfigError(
            where, f"{prefix}.engine", f"unknown engine {spec.engine!r}{nearest(spec.engine, tuple(ENGINES))}"
        )
    if spec.tokenizer is not None:
        check_tokenizer(spec.tokenizer, where, f"{prefix}.tokenizer")
    for key in spec.identity:
        if fact_class(key) is None or key in _NOT_DECLARED:
            known = tuple(fact for fact in (*INPUTS, *ENVIRONMENT) if fact not in _NOT_DECLARED)
            problem = f"unknown field{nearest(key, (*known, 'args', 'args.--FLAG', 'env.NAME'))}"
            raise ConfigError(where, f"{prefix}.identity.{key}", problem)
    return spec


def _table(name: str, known: Mapping[str, dict[str, Any]], where: str) -> dict[str, Any]:
    if name not in known:
        raise ConfigError(where, "server", f"unknown server {name!r}{nearest(name, tuple(known))}")
    return known[name]


def _key_of(assignment: str) -> str:
    """The key that ``assignment`` begins with: the rest may be a secret."""
    return re.split(r"[^\w.-]", assignment.strip(), maxsplit=1)[0]


def _assign(table: Mapping[str, Any], assignment: str) -> dict[str, Any]:
    """``table`` with one ``key=value``; ``env.NAME`` and ``limits.KEY`` reach one level down.

    Values are TOML; what is not, is text.
    """
    key, equals, written = assignment.partition("=")
    key = key.strip()
    if not equals or not key:
        raise ConfigError("--llmperf-set", _key_of(assignment), "write key=value, e.g. max_num_seqs=4")
    fields = tuple(field for field in ServerSpec.model_fields if field not in ("name", "env", "limits"))
    outer, dot, inner = key.partition(".")
    if dot and outer in ("env", "limits") and inner:
        value: Any = written if outer == "env" else toml_value(written)
        within = table.get(outer, {})
        if not isinstance(within, Mapping):
            raise ConfigError("--llmperf-set", key, f"{outer} of the server is {shown_type(within)}, not a table")
        return {**table, outer: {**within, inner: value}}
    if key not in fields:
        raise ConfigError("--llmperf-set", key, f"unknown key{nearest(key, (*fields, 'env.NAME', 'limits.KEY'))}")
    return {**table, key: given_value(key, written)}
