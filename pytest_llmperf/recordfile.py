"""``records/*.jsonl.gz``: one JSON object per request, in the order of the plan.

Keys are those of ``RequestRecord``, in its order, except that ``chunk_ns`` holds integer deltas: the first is
the time itself, each further one the gap to the chunk before it; the text of the output is never stored. All
times are ns of the run's one monotonic clock. The gzip header carries no time and no name, so equal records give
equal files.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterable
from dataclasses import MISSING, fields
from itertools import accumulate
from operator import sub
from pathlib import Path
from typing import Any, Final

from pytest_llmperf.errors import UsageError
from pytest_llmperf.records import Ints, Outcome, Phase, RequestRecord, TokenSource

__all__ = ["read_records", "write_records"]

_FIELDS: Final = tuple(field.name for field in fields(RequestRecord) if field.name != "texts")
_REQUIRED: Final = frozenset(field.name for field in fields(RequestRecord) if field.default is MISSING)


def write_records(path: Path, records: Iterable[RequestRecord]) -> None:
    """Write ``path`` (``….jsonl.gz``) in one step; the folder is made where it is absent. Raises OSError."""
    lines = (json.dumps(_to_json(record), separators=(",", ":")) for record in records)
    body = "".join(f"{line}\n" for line in lines).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        temporary.write_bytes(gzip.compress(body, compresslevel=6, mtime=0))
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def read_records(path: Path) -> tuple[RequestRecord, ...]:
    """The records of ``path``. Raises UsageError naming file and line where it is not such a file."""
    try:
        text = gzip.decompress(path.read_bytes()).decode()
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: cannot be read: {error}") from error
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        try:
            found.append(_from_json(json.loads(line)))
        except (ValueError, KeyError, TypeError) as error:
            raise UsageError(f"{path}: line {number}: not a request record: {error}") from error
    return tuple(found)


def _to_json(record: RequestRecord) -> dict[str, Any]:
    written = {name: getattr(record, name) for name in _FIELDS}
    stamps = list(record.chunk_ns)
    written["chunk_ns"] = [*stamps[:1], *map(sub, stamps[1:], stamps)]
    written["chunk_tokens"] = None if record.chunk_tokens is None else list(record.chunk_tokens)
    return written


def _from_json(written: dict[str, Any]) -> RequestRecord:
    values = {name: written[name] for name in _FIELDS if name in written or name in _REQUIRED}
    values["chunk_ns"] = Ints("q", accumulate(values["chunk_ns"]))
    if values["chunk_tokens"] is not None:
        values["chunk_tokens"] = Ints("i", values["chunk_tokens"])
    values["phase"] = Phase(values["phase"])
    values["outcome"] = Outcome(values["outcome"])
    values["token_source"] = TokenSource(values["token_source"])
    return RequestRecord(**values)
