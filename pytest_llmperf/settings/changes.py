"""One server specification made of another by changing named variables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pydantic import ValidationError

from pytest_llmperf.engines import engine_of
from pytest_llmperf.engines.engine import SETTABLE
from pytest_llmperf.engines.flags import set_flag
from pytest_llmperf.errors import ConfigError, nearest
from pytest_llmperf.plan import ServerSpec
from pytest_llmperf.settings.faults import describe_validation_error, shown_type
from pytest_llmperf.settings.launchable import key_of_flag, require_launchable

__all__ = ["VARIABLES", "changed", "flat"]

VARIABLES: Final = ("engine", "version", "image", "executable", "model", *SETTABLE)
"""Fields of a server that may be the one variable; besides them ``env.NAME`` and ``args.--FLAG``."""

_BUILD: Final = ("version", "image", "image_template", "executable")
"""What to run is said by these; a change of one replaces what the others said."""


def flat(table: Mapping[str, Any], where: str, key: str) -> dict[str, Any]:
    """A table of changes with ``env.NAME`` and ``args.--FLAG`` as keys, however TOML nested them.

    Raises ConfigError (``where`` and ``key`` name the table) for what is no variable, and for an empty table.
    """
    found: dict[str, Any] = {}
    for name, value in table.items():
        if name in ("env", "args") and isinstance(value, Mapping):
            found |= {f"{name}.{inner}": each for inner, each in value.items()}
        else:
            found[name] = value
    if not found:
        raise ConfigError(where, key, "is empty; write at least one key of a server, e.g. max_num_seqs = 8")
    for name in found:
        outer, _, inner = name.partition(".")
        if name not in VARIABLES and not (inner and outer in ("env", "args")):
            problem = f"unknown key{nearest(name, (*VARIABLES, 'env.NAME', 'args.--FLAG'))}"
            raise ConfigError(where, f"{key}.{name}", problem)
    return found


def changed(spec: ServerSpec, changes: Mapping[str, Any], where: str) -> ServerSpec:
    """``spec`` with all ``changes`` (as ``flat`` gives them) at once, checked as one that is about to be launched.

    Another engine leaves its version and program behind; another version, image or program replaces the old one.
    Raises ConfigError with ``where`` and the key.
    """
    update: dict[str, Any] = {}
    if spec.targeted:
        problem = "a running server (url) cannot be changed from here; compare two of them with url=A,B"
        raise ConfigError(where, next(iter(changes)), problem)
    if changes.get("engine", spec.engine) != spec.engine:
        update |= dict.fromkeys(_BUILD)
    for key in ("image", "executable"):
        if key in changes:
            update |= dict.fromkeys((*_BUILD, "launcher"))
            if "{version}" in str(changes[key]):
                update["version"] = spec.version
    for key, value in changes.items():
        outer, _, inner = key.partition(".")
        if outer == "env":
            update["env"] = {**update.get("env", spec.env), inner: _text(key, value, where)}
        elif outer == "args":
            update["extra_args"] = _flag(spec, update.get("extra_args", spec.extra_args), inner, value, where)
        else:
            update[key] = value
    try:
        found = ServerSpec.model_validate({**spec.model_dump(), **update, "folder": spec.folder})
    except ValidationError as error:
        key, problem = describe_validation_error(error, ServerSpec)
        raise ConfigError(where, key or next(iter(changes)), problem) from None
    try:
        require_launchable(found, where)
    except ConfigError as error:
        raise ConfigError(where, error.key.removeprefix(f"servers.{spec.name}."), error.problem) from None
    return found


def _flag(spec: ServerSpec, arguments: tuple[str, ...], flag: str, value: object, where: str) -> tuple[str, ...]:
    if not flag.startswith("-") or flag.strip("-") == "":
        raise ConfigError(where, f"args.{flag}", "is no flag; write e.g. args.--enforce-eager")
    key = key_of_flag(engine_of(spec), flag)
    if key is not None:
        raise ConfigError(where, f"args.{flag}", f"is the flag of {key}; write {key}=…")
    return set_flag(arguments, flag, value if isinstance(value, bool) else _text(f"args.{flag}", value, where))


def _text(key: str, value: object, where: str) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if not isinstance(value, str | int | float):
        raise ConfigError(where, key, f"{shown_type(value)} is neither text nor a number")
    return str(value)
