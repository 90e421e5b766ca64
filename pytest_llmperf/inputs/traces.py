"""Timed traces of real services: when requests came, how long they were, which prefixes they shared.

Three public formats, told apart by their first line:

- Azure LLM inference (2023, 2024): CSV ``TIMESTAMP,ContextTokens,GeneratedTokens``, a date and time with up to seven
  decimals of a second;
- BurstGPT: CSV ``Timestamp,…,Request tokens,Response tokens,…``, seconds (a response of 0 tokens is a failed request);
- Mooncake: JSON lines ``timestamp`` (ms), ``input_length``, ``output_length`` and ``hash_ids``, one for each 512 tokens
  of the prompt; equal ids stand for equal text.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from pytest_llmperf.errors import ConfigError
from pytest_llmperf.inputs.files import verify

__all__ = ["BLOCK_TOKENS", "TraceRow", "count_rows", "trace_rows"]

BLOCK_TOKENS: Final = 512
_NS: Final = 1_000_000_000
_AZURE: Final = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
_BURSTGPT: Final = ("Timestamp", "Request tokens", "Response tokens")
_MOONCAKE: Final = ("timestamp", "input_length", "output_length")
_FORMATS: Final = (
    "expected a CSV with the columns TIMESTAMP,ContextTokens,GeneratedTokens (Azure) or Timestamp,Request tokens,"
    "Response tokens (BurstGPT), or JSON lines with timestamp, input_length, output_length (Mooncake)"
)
_TIME: Final = re.compile(r"(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:?\d\d)?\Z")


@dataclass(frozen=True, slots=True)
class TraceRow:
    """One recorded request."""

    offset_ns: int
    """After the first row of the file."""
    input_tokens: int
    output_tokens: int
    blocks: tuple[int, ...] = ()
    """Ids of the prompt's blocks of ``BLOCK_TOKENS`` tokens, where the trace has them."""


def trace_rows(path: str, digest: str) -> Iterator[TraceRow]:
    """Requests with at least one prompt and one output token, read as they are asked for.

    Raises ConfigError with file, line and value where the file is not such a trace, goes back in time, or has changed.
    """
    verify(path, digest)
    return (row for row in _rows(Path(path)) if row.input_tokens > 0 and row.output_tokens > 0)


def count_rows(path: str, rows: int | None, window_ns: Callable[[int], int] | None, warmup: int) -> tuple[int, int]:
    """Look at the file as far as a load needs it: (usable rows, rows left out for having no tokens).

    As far as ``rows`` usable ones; or until the time that ``window_ns`` gives for that of the first row after
    ``warmup``; or the whole file.
    """
    usable = skipped = 0
    end_ns: int | None = None
    for row in _rows(Path(path)):
        if end_ns is not None and row.offset_ns >= end_ns:
            break
        if row.input_tokens < 1 or row.output_tokens < 1:
            skipped += 1
            continue
        if usable == warmup and window_ns is not None:
            end_ns = window_ns(row.offset_ns)
        usable += 1
        if rows is not None and usable >= rows:
            break
    return usable, skipped


def _rows(path: Path) -> Iterator[TraceRow]:
    first_ns: int | None = None
    latest_ns = 0
    for line, at_ns, row in _timed(path):
        if first_ns is None:
            first_ns = latest_ns = at_ns
        if at_ns < latest_ns:
            raise ConfigError(
                str(path), f"line {line}", "its time is before that of the line above; sort the file by time"
            )
        latest_ns = at_ns
        yield TraceRow(at_ns - first_ns, *row)


def _timed(path: Path) -> Iterator[tuple[int, int, tuple[int, int, tuple[int, ...]]]]:
    """(line, ns, (prompt tokens, output tokens, blocks)) of each row."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            opening = file.readline()
            file.seek(0)
            if opening.lstrip().startswith("{"):
                yield from _json_lines(path, file)
            else:
                yield from _csv(path, file)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(str(path), "", f"cannot be read: {error}") from None


def _csv(path: Path, file: Any) -> Iterator[tuple[int, int, tuple[int, int, tuple[int, ...]]]]:
    reader = csv.reader(file)
    header = [name.strip() for name in next(reader, [])]
    columns = next((names for names in (_AZURE, _BURSTGPT) if set(names) <= set(header)), None)
    if columns is None:
        raise ConfigError(str(path), "line 1", f"{','.join(header)[:120]!r}: {_FORMATS}")
    time_of = _date_ns if columns is _AZURE else _seconds_ns
    when, context, generated = (header.index(name) for name in columns)
    for row in reader:
        if not row:
            continue
        try:
            lengths = _count(row[context]), _count(row[generated])
            yield reader.line_num, time_of(row[when]), (*lengths, ())
        except (IndexError, ValueError) as error:
            problem = f"{len(row)} of {len(header)} columns" if isinstance(error, IndexError) else str(error)
            raise ConfigError(str(path), f"line {reader.line_num}", problem) from None


def _json_lines(path: Path, file: Any) -> Iterator[tuple[int, int, tuple[int, int, tuple[int, ...]]]]:
    for number, line in enumerate(file, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            if not isinstance(row, Mapping) or not set(_MOONCAKE) <= set(row):
                raise ValueError(f"{line.strip()[:120]!r}: {_FORMATS}")
            at, lengths = row["timestamp"], (_count(row["input_length"]), _count(row["output_length"]))
            if isinstance(at, bool) or not isinstance(at, int | float) or at < 0:
                raise ValueError(f"timestamp {at!r} is no number of milliseconds")
            yield number, round(at * 1e6), (*lengths, _blocks(row.get("hash_ids")))
        except ValueError as error:
            problem = f"not JSON: {error}" if isinstance(error, json.JSONDecodeError) else str(error)
            raise ConfigError(str(path), f"line {number}", problem) from None


def _blocks(given: object) -> tuple[int, ...]:
    if given is None:
        return ()
    if not isinstance(given, list) or not all(isinstance(each, int) and each >= 0 for each in given):
        raise ValueError(f"hash_ids {str(given)[:80]} is no list of whole numbers")
    return tuple(given)


def _count(written: object) -> int:
    try:
        value = float(written) if isinstance(written, str) else written
        if isinstance(value, bool) or not isinstance(value, int | float) or value < 0 or value != int(value):
            raise ValueError
    except (ValueError, OverflowError):
        raise ValueError(f"{written!r} is no number of tokens") from None
    return int(value)


def _seconds_ns(written: str) -> int:
    try:
        return round(float(written) * _NS)
    except (ValueError, OverflowError):
        raise ValueError(f"{written!r} is no number of seconds") from None


def _date_ns(written: str) -> int:
    """``2023-11-16 18:17:03.9799600``, exactly: a float has not the digits."""
    found = _TIME.match(written.strip())
    if not found:
        raise ValueError(f"{written!r} is no date and time such as 2023-11-16 18:17:03.9799600")
    whole, fraction, zone = found.groups()
    moment = datetime.fromisoformat(whole + (zone or "").replace("Z", "+00:00"))
    seconds = int((moment if zone else moment.replace(tzinfo=UTC)).timestamp())
    return seconds * _NS + int((fraction or "0").ljust(9, "0"))
