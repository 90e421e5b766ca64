"""What pydantic found wrong, as the dotted key and one clear line; TOML as it is read."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel, ValidationError

from pytest_llmperf.errors import ConfigError, nearest
from pytest_llmperf.lengths import KINDS

__all__ = ["describe_validation_error", "given_value", "read_toml", "shown_type", "toml_value"]

_TEXTS: Final = (
    "engine",
    "version",
    "image",
    "image_template",
    "executable",
    "model",
    "quantization",
    "kv_cache_dtype",
)
"""Keys of a server that are text, whatever TOML would make of it: ``version=0.33``."""

_NOT_QUOTED: Final = ("extra_args", "env", "start", "stop", "logs")
"""Keys of a server whose values may hold secrets."""
_TAGS: Final = (*KINDS, "linear", "steps")
"""Names of alternatives in the location of a fault, which no user wrote there."""


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
        known = tuple(field for field in fields if field not in ("source", "name", "folder"))
        return key, "unknown key" + (nearest(location[-1], known) if known else "")
    if fault["type"] == "missing":
        return key, "is required"
    hidden = any(part in _NOT_QUOTED for part in location)
    shown = shown_type(fault["input"]) if hidden else repr(fault["input"])
    if fault["type"] == "tuple_type":
        one = isinstance(fault["input"], str | int | float) and not isinstance(fault["input"], bool)
        written = '["…"]' if hidden else f"[{json.dumps(fault['input'])}]" if one else ""
        return key, f"{shown} is no list" + (f"; write {written}" if one else "")
    if fault["type"] == "dict_type":
        return key, f'{shown} is no table; write e.g. {{ NAME = "value" }}'
    if hidden:
        return key, f"{shown}: {message[:1].lower()}{message[1:]}"
    if fault["type"] == "value_error" and (repr(fault["input"]) in message or location[-1:] == ["url"]):
        return key, message
    if isinstance(fault["input"], Mapping) and fault["type"] == "value_error":
        return key, message
    return key, f"{fault['input']!r}: {message[:1].lower()}{message[1:]}"


def shown_type(value: object) -> str:
    """What a value is that may not be shown: ``a text``, ``a list``."""
    names = {str: "a text", bool: "a boolean", int: "a number", float: "a number", list: "a list", dict: "a table"}
    return names.get(type(value), f"a value of type {type(value).__name__}")


def _fields_at(model: type[BaseModel] | None, location: Sequence[str]) -> tuple[str, ...]:
    """The keys that are known where ``location`` leads from ``model``; none where that is not a plain model."""
    for part in location:
        field = model.model_fields.get(part) if model is not None else None
        model = field.annotation if field is not None and isinstance(field.annotation, type) else None
        if model is None or not issubclass(model, BaseModel):
            return ()
    return tuple(model.model_fields) if model is not None else ()


def toml_value(written: str) -> Any:
    try:
        return tomllib.loads(f"value = {written.strip()}")["value"]
    except tomllib.TOMLDecodeError:
        return written.strip()


def given_value(key: str, written: str) -> Any:
    """What ``key=written`` on the command line means: TOML, or text where it isn't that or ``key`` takes text."""
    value = toml_value(written)
    return written.strip() if key in _TEXTS and not isinstance(value, str) else value


def read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(str(path), "", f"not valid TOML: {error}") from None
    except OSError as error:
        raise ConfigError(str(path), "", f"cannot be read: {error.strerror}") from None
