"""``[tool.llmperf]`` of pyproject.toml, or ``llmperf.toml``: read, validated, overridden from the command line.

Every error names the file, the key, the value and what would be right.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from pytest_llmperf.errors import ConfigError, MarkerError, nearest
from pytest_llmperf.lengths import KINDS
from pytest_llmperf.plan import LAUNCH_ONLY, Clients, ServerSpec, Workload
from pytest_llmperf.recount import check_tokenizer

__all__ = ["Overrides", "Settings", "check_speaks", "describe_validation_error", "load_settings", "load_workload",
           "server_named"]  # fmt: skip

BUILT_IN_SERVERS: Final[dict[str, dict[str, Any]]] = {"embedded": {"engine": "embedded"}}
_TAGS: Final = (*KINDS, "linear", "steps")
"""Names of alternatives in the location of a fault, which no user wrote there."""
BUILT_IN_WORKLOADS: Final = Path(__file__).parent / "workloads"


class WorkerDevices(BaseModel):
    """What one xdist worker owns."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    gpus: tuple[int, ...] = Field(min_length=1)


class Settings(BaseModel):
    """The configuration file. Servers stay raw tables until one is asked for, so that overrides see all keys."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    source: str = Field(exclude=True)
    """The file, for error messages."""
    default_server: str | None = None
    url: str | None = None
    api_key_env: str | None = None
    replays: int | None = Field(default=None, ge=1, le=100)
    clients: Clients = "auto"
    report: str = "llmperf-report"
    baselines: str = "baselines"
    """A directory, relative to the file, or a URL."""
    pool: str | None = Field(default=None, min_length=1)
    """Name of the runners that are interchangeable with this one."""
    undecided: Literal["warn", "fail"] = "warn"
    workloads: tuple[str, ...] = ("perfsuites/workloads",)
    """Folders, relative to the file, that workload names are looked up in."""
    servers: dict[str, dict[str, Any]] = Field(default_factory=dict)
    workers: dict[str, WorkerDevices] = Field(default_factory=dict)


class Overrides(BaseModel):
    """What the command line says; it wins over markers and file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    server: str | None = None
    url: str | None = None
    api_key_env: str | None = None
    assignments: tuple[str, ...] = ()
    """``key=value`` of ``--llmperf-set``, applied to every server of the run."""


def load_settings(root: Path) -> Settings:
    """The settings of the project at ``root``; defaults where it has none. Raises ConfigError."""
    own, shared = root / "llmperf.toml", root / "pyproject.toml"
    tools = _read_toml(shared).get("tool") if shared.is_file() else None
    table = tools.get("llmperf") if isinstance(tools, dict) else None
    if own.is_file():
        if table is not None:
            raise ConfigError(str(own), "", f"settings are also in [tool.llmperf] of {shared}; keep one of the two")
        source, table = own, _read_toml(own)
        if set(table) == {"tool"}:
            raise ConfigError(
                str(own), "tool", "in llmperf.toml the keys stand at the top level, without [tool.llmperf]"
            )
    else:
        source = shared
    if table is not None and not isinstance(table, dict):
        raise ConfigError(str(source), "tool.llmperf", f"{table!r} is not a table")
    try:
        settings = Settings.model_validate({**(table or {}), "source": str(source)})
    except ValidationError as error:
        raise ConfigError(str(source), *describe_validation_error(error, Settings)) from None
    for name, server in settings.servers.items():
        _server(name, server, settings.source)
    return settings


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
            table = {**{key: value for key, value in named.items() if key not in LAUNCH_ONLY}, "url": url}
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
        _server(label, changed, "--llmperf-set")
        table = changed
    spec = _server(label, table, where)
    _require_launchable(spec, where)
    return spec


def check_speaks(spec: ServerSpec, workload: Workload) -> None:
    """Raise ConfigError where the engine of ``spec`` is known not to speak the workload's API."""
    from pytest_llmperf.engines import engine_of
    from pytest_llmperf.engines.engine import check_api

    check_api(engine_of(spec), workload.api, f"servers.{spec.name}")


def load_workload(
    name: str, settings: Settings, beside: Path | None, changes: Mapping[str, Any] | None = None
) -> Workload:
    """The workload called ``name`` (a TOML path works too), with ``changes``. Looked up beside the test, in the
    settings' folders, then among those shipped; files it names lie beside it. Raises ConfigError that names where it
    was looked for."""
    base = Path(settings.source).parent
    if name.endswith(".toml"):
        candidates = [*([beside / name] if beside else []), base / name]
    else:
        folders = [
            *([beside / "workloads"] if beside else []),
            *(base / folder for folder in settings.workloads),
        ]
        candidates = [folder / f"{name}.toml" for folder in (*folders, BUILT_IN_WORKLOADS)]
    path = next((candidate for candidate in candidates if _is_file(candidate)), None)
    if path is None:
        known = sorted({found.stem for candidate in candidates for found in candidate.parent.glob("*.toml")})
        hint = nearest(name, known) if known and not name.endswith(".toml") else ""
        looked = _listed(list(dict.fromkeys(candidates)))
        raise MarkerError("llmperf", "workload", f"no workload {name[:80]!r}{hint}; looked for {looked}")
    table = _read_toml(path)
    try:
        return Workload.model_validate(
            {"name": path.stem, **table, **(changes or {})}, context={"folders": (path.parent,)}
        )
    except ValidationError as error:
        raise ConfigError(str(path), *describe_validation_error(error, Workload)) from None


def describe_validation_error(error: ValidationError, model: type[BaseModel] | None = None) -> tuple[str, str]:
    """The first fault of a pydantic error as (dotted key, problem with value and what is allowed).

    A key that is unknown comes before one that is missing: it is often the same, misspelt.
    """
    fault = min(error.errors(include_url=False), key=lambda each: each["type"] != "extra_forbidden")
    location = [str(part) for part in fault["loc"] if part not in _TAGS]
    key = ".".join(location)
    message = fault["msg"].removeprefix("Value error, ")
    if fault["type"] == "extra_forbidden":
        fields = _fields_at(model, location[:-1])
        known = tuple(field for field in fields if field not in ("source", "name"))
        return key, "unknown key" + (nearest(location[-1], known) if known else "")
    if fault["type"] == "missing":
        return key, "is required"
    if fault["type"] == "value_error" and (repr(fault["input"]) in message or location[-1:] == ["url"]):
        return key, message
    if isinstance(fault["input"], Mapping) and fault["type"] == "value_error":
        return key, message
    return key, f"{fault['input']!r}: {message[:1].lower()}{message[1:]}"


def _fields_at(model: type[BaseModel] | None, location: Sequence[str]) -> tuple[str, ...]:
    """The keys that are known where ``location`` leads from ``model``; none where that is not a plain model."""
    for part in location:
        field = model.model_fields.get(part) if model is not None else None
        model = field.annotation if field is not None and isinstance(field.annotation, type) else None
        if model is None or not issubclass(model, BaseModel):
            return ()
    return tuple(model.model_fields) if model is not None else ()


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # a name that no file can have
        return False


def _require_launchable(spec: ServerSpec, where: str) -> None:
    from pytest_llmperf.engines import ENGINES, launchable

    if spec.url is None and spec.engine not in launchable():
        problem = f"{ENGINES[spec.engine].title} cannot be launched by this version: start it yourself and give its url"
        raise ConfigError(where, f"servers.{spec.name}.engine", problem)


def _require_units(table: Mapping[str, Any], where: str, prefix: str) -> None:
    """A bare number of seconds is an error: was it ms, or min?"""
    limits = table.get("limits")
    times = {"startup_timeout": table.get("startup_timeout")}
    if isinstance(limits, Mapping):
        times |= {f"limits.{key}": value for key, value in limits.items()}
    for key, value in times.items():
        if isinstance(value, int | float) and not isinstance(value, bool):
            raise ConfigError(where, f"{prefix}.{key}", f"{value!r} has no unit; write e.g. '{value} s'")


def _server(name: str, table: Mapping[str, Any], where: str) -> ServerSpec:
    from pytest_llmperf.engines import ENGINES

    prefix = f"servers.{name}"
    _require_units(table, where, prefix)
    try:
        spec = ServerSpec.model_validate({"name": name, **table})
    except ValidationError as error:
        key, problem = describe_validation_error(error, ServerSpec)
        raise ConfigError(where, f"{prefix}.{key}", problem) from None
    if spec.engine not in ENGINES:
        raise ConfigError(
            where, f"{prefix}.engine", f"unknown engine {spec.engine!r}{nearest(spec.engine, tuple(ENGINES))}"
        )
    if spec.tokenizer is not None:
        check_tokenizer(spec.tokenizer, where, f"{prefix}.tokenizer")
    return spec


def _table(name: str, known: Mapping[str, dict[str, Any]], where: str) -> dict[str, Any]:
    if name not in known:
        raise ConfigError(where, "server", f"unknown server {name!r}{nearest(name, tuple(known))}")
    return known[name]


def _assign(table: Mapping[str, Any], assignment: str) -> dict[str, Any]:
    """``table`` with one ``key=value``; ``env.NAME`` and ``limits.KEY`` reach one level down.

    Values are TOML; what is not, is text.
    """
    key, equals, written = assignment.partition("=")
    key = key.strip()
    if not equals or not key:
        raise ConfigError("--llmperf-set", assignment, "write key=value, e.g. max_num_seqs=4")
    fields = tuple(field for field in ServerSpec.model_fields if field not in ("name", "env", "limits"))
    outer, dot, inner = key.partition(".")
    if dot and outer in ("env", "limits") and inner:
        value: Any = written if outer == "env" else _toml_value(written)
        within = table.get(outer, {})
        if not isinstance(within, Mapping):
            raise ConfigError("--llmperf-set", key, f"{outer} of the server is {within!r}, not a table")
        return {**table, outer: {**within, inner: value}}
    if key not in fields:
        raise ConfigError("--llmperf-set", key, f"unknown key{nearest(key, (*fields, 'env.NAME', 'limits.KEY'))}")
    return {**table, key: _toml_value(written)}


def _toml_value(written: str) -> Any:
    try:
        return tomllib.loads(f"value = {written.strip()}")["value"]
    except tomllib.TOMLDecodeError:
        return written.strip()


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(str(path), "", f"not valid TOML: {error}") from None
    except OSError as error:
        raise ConfigError(str(path), "", f"cannot be read: {error.strerror}") from None


def _listed(paths: Sequence[Path]) -> str:
    return ", ".join(str(path) for path in paths)
