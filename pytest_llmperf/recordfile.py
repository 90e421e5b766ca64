"""``records/*.jsonl.gz``: one JSON object per request, in the order of the plan; and the samples beside them.

Keys are those of ``RequestRecord``, in its order, except that ``chunk_ns`` holds integer deltas: the first is
the time itself, each further one the gap to the chunk before it; the text of the output is never stored. All
times are ns of the run's one monotonic clock. The gzip header carries no time and no name, so equal records give
equal files.

``telemetry/*.jsonl.gz`` holds what was sampled of the server meanwhile: first an object with what ``samples.Telemetry``
has besides samples (``gpus``, ``notes`` …), then one for every sample, with the keys of ``HostSample``, ``GpuSample``
or ``EngineSample``.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Callable, Iterable
from dataclasses import MISSING, asdict, fields, replace
from itertools import accumulate
from operator import sub
from pathlib import Path
from typing import Any, Final, TypeVar

from pytest_llmperf.errors import UsageError
from pytest_llmperf.records import Ints, Outcome, Phase, RequestRecord, TokenSource
from pytest_llmperf.samples import Buckets, EngineSample, GpuSample, HostSample, Telemetry

__all__ = ["read_records", "read_telemetry", "write_records", "write_telemetry"]

T = TypeVar("T")

_FIELDS: Final = tuple(field.name for field in fields(RequestRecord) if field.name != "texts")
_HEAD: Final = ("gpus", "notes", "preemption_warnings", "log_errors")
_REQUIRED: Final = frozenset(field.name for field in fields(RequestRecord) if field.default is MISSING)


def write_records(path: Path, records: Iterable[RequestRecord]) -> None:
    """Write ``path`` (``….jsonl.gz``) in one step; the folder is made where it is absent. Raises OSError."""
    _write(path, map(_to_json, records))


def read_records(path: Path) -> tuple[RequestRecord, ...]:
    """The records of ``path``. Raises UsageError naming file and line where it is not such a file."""
    return tuple(_read(path, _from_json, "a request record"))


def write_telemetry(path: Path, telemetry: Telemetry) -> None:
    """As ``write_records``."""
    head = {name: getattr(telemetry, name) for name in _HEAD}
    samples = [*map(asdict, telemetry.host), *map(asdict, telemetry.gpu), *map(_engine_json, telemetry.engine)]
    _write(path, (head, *({k: v for k, v in each.items() if v is not None} for each in samples)))


def read_telemetry(path: Path) -> Telemetry:
    """The telemetry of ``path``. Raises UsageError naming file and line where it is not such a file."""
    found = _read(path, _sample, "a sample")
    if not found or not isinstance(found[0], Telemetry):
        raise UsageError(f"{path}: line 1: not the head of telemetry")
    host = tuple(each for each in found if isinstance(each, HostSample))
    gpu = tuple(each for each in found if isinstance(each, GpuSample))
    engine = tuple(each for each in found if isinstance(each, EngineSample))
    return replace(found[0], host=host, gpu=gpu, engine=engine)


def _write(path: Path, objects: Iterable[dict[str, Any]]) -> None:
    body = "".join(f"{json.dumps(each, separators=(',', ':'))}\n" for each in objects).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        temporary.write_bytes(gzip.compress(body, compresslevel=6, mtime=0))
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _read(path: Path, convert: Callable[[dict[str, Any]], T], what: str) -> list[T]:
    try:
        text = gzip.decompress(path.read_bytes()).decode()
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: cannot be read: {error}") from error
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        try:
            found.append(convert(json.loads(line)))
        except (ValueError, KeyError, TypeError) as error:
            raise UsageError(f"{path}: line {number}: not {what}: {error}") from error
    return found


def _sample(written: dict[str, Any]) -> Telemetry | HostSample | GpuSample | EngineSample:
    if not isinstance(written, dict):
        raise TypeError("no object")
    written = {name: tuple(value) if isinstance(value, list) else value for name, value in written.items()}
    if "gpus" in written:
        return Telemetry(**written)
    if "values" in written:
        return _engine_sample(written)
    return GpuSample(**{"server_bytes": None, **written}) if "gpu" in written else HostSample(**written)


def _engine_json(sample: EngineSample) -> dict[str, Any]:
    """Without what most samples do not have: pages of several processes, what they cannot mean, that it is a line of
    the log."""
    written = asdict(sample)
    written["pages"] = tuple(map(_engine_json, sample.pages))
    return {name: value for name, value in written.items() if value or name not in ("pages", "logged", "untold")}


def _engine_sample(written: dict[str, Any]) -> EngineSample:
    told = {
        name: Buckets(**{**each, "bounds": tuple(each["bounds"]), "counts": tuple(each["counts"])})
        for name, each in written["histograms"].items()
    }
    pages = tuple(map(_engine_sample, written.get("pages", ())))
    return EngineSample(
        written["t_ns"], written["values"], told, written.get("logged", False), pages, written.get("untold", {})
    )


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
