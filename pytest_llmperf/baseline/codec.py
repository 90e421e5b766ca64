"""Baseline files as bytes: small diffs out, and nothing in that is not exactly what it should be.

Written with one value a line, keys sorted, numbers with six significant digits. What is read is refused
unless it is whole, of this schema, finite, and true to itself: entries under the digest of their input, counts that
add up, and a path that says what is inside.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final, TypeVar

from pydantic import BaseModel, ValidationError

from pytest_llmperf.baseline.keys import Key
from pytest_llmperf.baseline.schema import SCHEMA, BaselineFile, Entry, StoredLaunch
from pytest_llmperf.errors import BaselineError

__all__ = ["LARGEST", "decode", "dump", "encode", "parse"]

Stored = TypeVar("Stored", bound=BaseModel)

LARGEST: Final = 64 << 20
"""Bytes of a file; more than ten thousand sessions."""
_DIGITS: Final = 6
_RESTORE: Final = "restore it from version control, or delete it and refresh"


def encode(file: BaselineFile) -> bytes:
    """The file's bytes; equal files give equal bytes."""
    return dump(file)


def dump(model: BaseModel) -> bytes:
    """A stored model as JSON: an infinite number becomes null, one that is not a number is left out of its object."""
    plain = _plain(model.model_dump(by_alias=True))
    return (json.dumps(plain, indent=1, sort_keys=True, ensure_ascii=False, allow_nan=False) + "\n").encode()


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.{_DIGITS}g}") if math.isfinite(value) else None
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, Mapping):
        return {
            name: _plain(each) for name, each in value.items() if not (isinstance(each, float) and math.isnan(each))
        }
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return value.isoformat() if isinstance(value, datetime) else value


def parse(data: bytes, where: str, model: type[Stored], schema: str, remedy: str) -> Stored:
    """``data`` as a ``model`` of exactly ``schema`` (``family/number``). Raises BaselineError."""
    try:
        content = json.loads(data.decode(), parse_constant=_no_constant)
    except UnicodeDecodeError:
        raise BaselineError(where, "not UTF-8 text", remedy) from None
    except RecursionError:
        raise BaselineError(where, "nested too deeply", remedy) from None
    except ValueError as error:
        cut = " (truncated?)" if data and not data.rstrip().endswith(b"}") else ""
        raise BaselineError(where, f"not JSON{cut}: {error}" if data else "empty", remedy) from None
    found = content.get("schema") if isinstance(content, dict) else None
    if found != schema:
        if isinstance(found, str) and found.startswith(f"{schema.rpartition('/')[0]}/"):
            other = f"schema {found[:60]!r}, this version reads {schema!r}"
            raise BaselineError(where, other, "read it with the pytest-llmperf that wrote it")
        shown = "no schema" if found is None else f"schema {str(found)[:60]!r}"
        raise BaselineError(where, f"{shown}, expected {schema!r}", remedy)
    try:
        return model.model_validate_json(data, strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])[:200]
        raise BaselineError(where, f"{place}: {first['msg']} ({error.error_count()} problems)", remedy) from None


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no number of JSON")


def decode(data: bytes, where: str, path: str) -> BaselineFile:
    """The file at ``path`` of a store; ``where`` is the full place, for errors. Raises BaselineError."""
    file = parse(data, where, BaselineFile, SCHEMA, _RESTORE)
    problem = next((fault for digest, entry in file.entries.items() if (fault := _fault(digest, entry))), None)
    if problem is None and not file.entries:
        problem = "no entries"
    if problem is not None:
        raise BaselineError(where, problem, _RESTORE)
    for entry in file.entries.values():
        right = Key.of(entry.identity(), file.test).path
        if right != path:
            raise BaselineError(where, f"what is inside belongs to {right}", "move it there, or delete it")
    return file


def _fault(digest: str, entry: Entry) -> str | None:
    """What is wrong with one entry."""
    place = f"entries.{digest[:20]}"
    if not entry.sessions:
        return f"{place}: no sessions"
    if entry.identity().digest() != digest:
        return f"{place}: its input has the digest {entry.identity().digest()}: it was edited by hand"
    ids = [session.id for session in entry.sessions]
    if len(set(ids)) < len(ids):
        return f"{place}: a session is there twice"
    for session in entry.sessions:
        if not session.launches:
            return f"{place}.sessions.{session.id[:40]}: no launches"
        if not _is_time(session.created):
            return f"{place}.sessions.{session.id[:40]}.created: {session.created[:40]!r} is no time with its zone"
        for launch in session.launches:
            if fault := _launch_fault(launch):
                return f"{place}.sessions.{session.id[:40]}.launches.{launch.order}: {fault}"
    return None


def _launch_fault(launch: StoredLaunch) -> str | None:
    if not 0 <= launch.n_failed <= launch.n_requests:
        return f"{launch.n_failed} of {launch.n_requests} requests failed"
    numbers = [*launch.metrics.values(), launch.time_to_ready_s]
    if all(map(math.isfinite, filter(None, numbers))):
        return None
    names = (*launch.metrics, "time_to_ready_s")
    wrong = next(name for name, value in zip(names, numbers, strict=True) if value and not math.isfinite(value))
    return f"{wrong} is no finite number"


def _is_time(text: str) -> bool:
    try:
        return datetime.fromisoformat(text).tzinfo is not None
    except ValueError:
        return False
