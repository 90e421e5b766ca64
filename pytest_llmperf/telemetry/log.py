"""A server's log file: facts of its start, and what was written to it while a load ran."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final, final

from pytest_llmperf.engines import Engine
from pytest_llmperf.engines.engine import LogFact
from pytest_llmperf.engines.loglines import plain_lines
from pytest_llmperf.engines.redact import HIDDEN, redact, secrets
from pytest_llmperf.plan import ServerSpec
from pytest_llmperf.records import Endpoint
from pytest_llmperf.samples import EngineSample, StartUp

__all__ = ["LogWatch", "log_facts", "start_facts"]

_MOST_BYTES: Final = 16 * 1024 * 1024
_PIECE: Final = 1024 * 1024
_LONGEST_LINE: Final = 65536
_ERRORS_KEPT: Final = 5
_SHOWN: Final = 300
_COUNTED: Final[frozenset[LogFact]] = frozenset({"preempted", "error"})


def log_facts(lines: Iterable[str], patterns: Mapping[LogFact, tuple[str, ...]]) -> dict[LogFact, float]:
    """The numbers that ``lines`` state. Of several statements of one fact (one a worker, say) the largest."""
    compiled = {fact: [re.compile(p) for p in given] for fact, given in patterns.items() if fact not in _COUNTED}
    found: dict[LogFact, float] = {}
    for line in lines:
        for fact, expressions in compiled.items():
            match = next((match for each in expressions if (match := each.search(line))), None)
            value = None if match is None else _number(match[1])
            if value is not None:
                found[fact] = max(value, found.get(fact, value))
    return found


def start_facts(start: StartUp, engine: Engine, log_text: str, sample: EngineSample | None) -> StartUp:
    """``start`` with what the log and the page of metrics tell of it; the page is the server's own word and goes first.

    What ``start`` has already stays.
    """
    told = log_facts(plain_lines(log_text), engine.log_patterns)
    capacity = None if sample is None else sample.values.get("kv_capacity_tokens")
    capacity = told.get("kv_capacity_tokens") if capacity is None else capacity
    return replace(
        start,
        compile_s=told.get("compile_s") if start.compile_s is None else start.compile_s,
        kv_capacity_tokens=capacity if start.kv_capacity_tokens is None else start.kv_capacity_tokens,
    )


@final
class LogWatch:
    """What is appended to ``path`` between ``begin`` and ``end``. Never raises for the file's sake.

    ``hidden`` are secrets that no line may show. At most 16 MiB are read.
    """

    def __init__(self, path: Path, patterns: Mapping[LogFact, tuple[str, ...]], hidden: Collection[str] = ()) -> None:
        self.preempted: int | None = None
        """Lines that say a request was preempted; None where the log is not there or never says so."""
        self.errors: tuple[str, ...] = ()
        """The first lines that report an error, without secrets."""
        self.notes: tuple[str, ...] = ()
        self._path, self._hidden = path, sorted(hidden, key=len, reverse=True)
        self._preempted, self._error = (_any_of(patterns.get(fact, ())) for fact in ("preempted", "error"))
        self._offset = 0

    @classmethod
    def of(cls, engine: Engine, path: Path | None, spec: ServerSpec, endpoint: Endpoint) -> LogWatch | None:
        """None for a server whose log is not ours, or where nothing is known of its lines."""
        if path is None or not engine.log_patterns.keys() & _COUNTED:
            return None
        sent = {secret for value in endpoint.headers.values() for secret in (value, value.rpartition(" ")[2])}
        return cls(path, engine.log_patterns, sent | secrets(spec.extra_args, {**os.environ, **spec.env}))

    def begin(self) -> None:
        self._offset = self._size() or 0

    def end(self) -> None:
        """Read what is new and set ``preempted``, ``errors`` and ``notes``."""
        size = self._size()
        if size is None or size < self._offset:
            self.notes = ("the server's log is gone or was cut: what it said while the load ran is not known",)
            return
        if size - self._offset > _MOST_BYTES:
            grown = f"the server's log grew by {(size - self._offset) >> 20} MiB while the load ran"
            self.notes = (f"{grown}: only the first {_MOST_BYTES >> 20} MiB were read",)
        preempted = 0
        errors: list[str] = []
        try:
            for line in self._new_lines(min(size, self._offset + _MOST_BYTES)):
                preempted += self._preempted is not None and self._preempted.search(line) is not None
                wrong = self._error.search(line) if self._error is not None and len(errors) < _ERRORS_KEPT else None
                if wrong is not None:
                    errors.append(self._shown(line if wrong.lastindex is None else wrong[wrong.lastindex]))
        except OSError as error:
            self.notes = (f"the server's log cannot be read: {error.strerror}",)
            return
        self.preempted = None if self._preempted is None else preempted
        self.errors = tuple(errors)

    def _size(self) -> int | None:
        try:
            return self._path.stat().st_size
        except OSError:
            return None

    def _new_lines(self, end: int) -> Iterator[str]:
        rest = b""
        with self._path.open("rb") as file:
            file.seek(self._offset)
            while piece := file.read(min(_PIECE, end - file.tell())):
                whole, _, rest = (rest + piece).rpartition(b"\n")
                yield from plain_lines(whole.decode(errors="replace"))
                rest = rest[-_LONGEST_LINE:]
        yield from plain_lines(rest.decode(errors="replace"))

    def _shown(self, line: str) -> str:
        for secret in self._hidden:
            line = line.replace(secret, HIDDEN)
        [line] = redact([line])
        return " ".join(redact(line.split()))[:_SHOWN]  # again by words: the value of a flag is a word of its own


def _any_of(patterns: tuple[str, ...]) -> re.Pattern[str] | None:
    return re.compile("|".join(f"(?:{pattern})" for pattern in patterns)) if patterns else None


def _number(text: str) -> float | None:
    try:
        return float(text.replace(",", ""))
    except ValueError:
        return None
