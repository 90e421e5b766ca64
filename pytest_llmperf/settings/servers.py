"""A server of the configuration as a specification, overridden from the command line."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from pytest_llmperf.errors import ConfigError, MarkerError, nearest
from pytest_llmperf.fields import on_other_machine
from pytest_llmperf.identity import ENVIRONMENT, INPUTS, fact_class
from pytest_llmperf.plan import LAUNCH_ONLY, ServerSpec, Workload
from pytest_llmperf.recount import check_tokenizer
from pytest_llmperf.settings.faults import describe_validation_error, given_value, shown_type, toml_value
from pytest_llmperf.settings.launchable import require_launchable
from pytest_llmperf.settings.model import Overrides, Settings

__all__ = ["BUILT_IN_SERVERS", "check_speaks", "read_server", "server_named"]

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
    folder = Path(settings.source).absolute().parent
    api_key_env = overrides.api_key_env or (settings.api_key_env if "api_key_env" not in table else None)
    if api_key_env:
        table["api_key_env"] = api_key_env
    for assignment in overrides.assignments:
        changed = _assign(table, assignment)
        read_server(label, changed, "--llmperf-set", folder)
        table = changed
    spec = read_server(label, table, where, folder)
    require_launchable(spec, where)
    return spec


def check_speaks(spec: ServerSpec, workload: Workload) -> None:
    """Raise ConfigError where the engine of ``spec`` is known not to speak the workload's API."""
    from pytest_llmperf.engines import engine_of
    from pytest_llmperf.engines.engine import check_api

    check_api(engine_of(spec), workload.api, f"servers.{spec.name}")


def _require_units(table: Mapping[str, Any], where: str, prefix: str) -> None:
    """A bare number of seconds or bytes is an error: was it ms, or min?"""
    limits = table.get("limits")
    found = {key: table.get(key) for key in ("startup_timeout", "gpu_wait", "shm_size")}
    if isinstance(limits, Mapping):
        found |= {f"limits.{key}": value for key, value in limits.items()}
    for key, value in found.items():
        if isinstance(value, int | float) and not isinstance(value, bool):
            unit = "GiB" if key == "shm_size" else "s"
            raise ConfigError(where, f"{prefix}.{key}", f"{value!r} has no unit; write e.g. '{value} {unit}'")


def read_server(name: str, table: Mapping[str, Any], where: str, folder: Path) -> ServerSpec:
    """The specification that ``table`` of the file (or option) ``where`` gives; relative paths start from ``folder``.

    Raises ConfigError."""
    from pytest_llmperf.engines import ENGINES

    prefix = f"servers.{name}"
    _require_units(table, where, prefix)
    if "folder" in table:
        raise ConfigError(where, f"{prefix}.folder", "unknown key")
    try:
        spec = ServerSpec.model_validate({"name": name, **_placed(table, folder), "folder": folder})
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


def _placed(table: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """``table`` with the paths of files made absolute. A model may be a name: it is a path where it is found there."""
    found = dict(table)
    for key in ("tokenizer", "ca_file", "model"):
        written = table.get(key)
        if isinstance(written, str) and written and (key != "model" or _only_beside(written, folder)):
            found[key] = str(folder / Path(written).expanduser())
    return found


def _only_beside(model: str, folder: Path) -> bool:
    try:
        return "/" in model and not Path(model).expanduser().exists() and (folder / model).exists()
    except OSError:  # a name that no file can have
        return False


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
    fields = tuple(field for field in ServerSpec.model_fields if field not in ("name", "folder", "env", "limits"))
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
