"""A server's log file: facts of its start, and what was written to it while a load ran."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import Final, final

from pytest_llmperf.engines import Engine
from pytest_llmperf.engines.engine import LogFact
from pytest_llmperf.engines.loglines import plain_lines
from pytest_llmperf.engines.redact import hide, redact, secrets, spec_secrets
from pytest_llmperf.plan import ServerSpec
from pytest_llmperf.records import Endpoint
from pytest_llmperf.samples import EngineSample, Gauge, Quantity, StartUp

__all__ = ["LogWatch", "log_facts", "start_facts"]

_MOST_BYTES: Final = 16 * 1024 * 1024
_PIECE: Final = 1024 * 1024
_LONGEST_LINE: Final = 65536
_ERRORS_KEPT: Final = 5
_SHOWN: Final = 300
_COUNTED: Final[frozenset[LogFact]] = frozenset({"preempted", "would_tell", "error"})


def log_facts(lines: Iterable[str], patterns: Mapping[LogFact, tuple[str, ...]]) -> dict[LogFact, float]:
    """The numbers that ``lines`` state. Of several statements of one fact (one a worker, say) the largest."""
    compiled = {fact: [re.compile(p) for p in given] for fact, given in patterns.items() if fact not in _COUNTED}
    found: dict[LogFact, float] = {}
    for line in lines:
        for fact, expressions in compiled.items():
            said = _first(expressions, line)
            value = None if said is None else _number(said)
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
        max_concurrency=told.get("max_concurrency") if start.max_concurrency is None else start.max_concurrency,
    )


@final
class LogWatch:
    """What is appended to ``path`` between ``begin`` and ``end``. Never raises for the file's sake.

    ``hidden`` are secrets that no line may show. At most 16 MiB are read.
    """

    def __init__(
        self,
        path: Path,
        patterns: Mapping[LogFact, tuple[str, ...]],
        hidden: Collection[str] = (),
        series: Mapping[Gauge, tuple[str, ...]] | None = None,
    ) -> None:
        self.preempted: int | None = None
        """Requests preempted, as far as lines say so; None where no line does and nothing shows that one would."""
        self.errors: tuple[str, ...] = ()
        """The first lines that report an error, without secrets."""
        self.samples: tuple[EngineSample, ...] = ()
        """What the engine stated of itself every so often."""
        self.notes: tuple[str, ...] = ()
        self._path, self._hidden = path, tuple(hidden)
        self._preempted = [re.compile(pattern) for pattern in patterns.get("preempted", ())]
        self._would_tell, self._error = (_any_of(patterns.get(fact, ())) for fact in ("would_tell", "error"))
        self._series = {quantity: [re.compile(each) for each in given] for quantity, given in (series or {}).items()}
        self._offset = 0
        self._looks: list[tuple[int, int]] = []

    @classmethod
    def of(cls, engine: Engine, path: Path | None, spec: ServerSpec, endpoint: Endpoint) -> LogWatch | None:
        """None for a server whose log is not ours, or where nothing is known of its lines."""
        if path is None or not (engine.log_patterns.keys() & _COUNTED or engine.log_series):
            return None
        sent = {secret for value in endpoint.headers.values() for secret in (value, value.rpartition(" ")[2])}
        hidden = sent | secrets((), os.environ) | spec_secrets(spec, os.environ)
        return cls(path, engine.log_patterns, hidden, engine.log_series)

    def begin(self) -> None:
        self._offset = self._size() or 0

    def look(self, t_ns: int) -> None:
        """Note how long the log is, so that its lines have times: what it writes of the time has many forms."""
        size = self._size() if self._series else None
        if size is not None and size > (self._looks[-1][0] if self._looks else self._offset):
            self._looks.append((size, t_ns))

    def end(self) -> None:
        """Read what is new and set ``preempted``, ``errors``, ``samples`` and ``notes``."""
        self.look(time.monotonic_ns())
        size = self._size()
        if size is None or size < self._offset:
            self.notes = ("the server's log is gone or was cut: what it said while the load ran is not known",)
            return
        if size - self._offset > _MOST_BYTES:
            grown = f"the server's log grew by {(size - self._offset) >> 20} MiB while the load ran"
            self.notes = (f"{grown}: only the first {_MOST_BYTES >> 20} MiB were read",)
        preempted: int | None = None
        errors: list[str] = []
        samples: list[EngineSample] = []
        try:
            for end, line in self._new_lines(min(size, self._offset + _MOST_BYTES)):
                if (said := _first(self._preempted, line)) is not None:
                    count = _number(said)
                    preempted = (preempted or 0) + (1 if count is None else round(count))
                elif preempted is None and self._would_tell is not None and self._would_tell.search(line):
                    preempted = 0
                wrong = self._error.search(line) if self._error is not None and len(errors) < _ERRORS_KEPT else None
                if wrong is not None:
                    errors.append(self._shown(line if wrong.lastindex is None else wrong[wrong.lastindex]))
                if (sample := self._sample(end, line)) is not None:
                    samples.append(sample)
        except OSError as error:
            self.notes = (f"the server's log cannot be read: {error.strerror}",)
            return
        self.preempted, self.errors, self.samples = preempted, tuple(errors), tuple(samples)

    def _sample(self, end: int, line: str) -> EngineSample | None:
        """What ``line`` says, stamped with the first look that found it."""
        told = {quantity: text for quantity, each in self._series.items() if (text := _first(each, line)) is not None}
        if "running" not in told or "waiting" not in told:
            return None
        seen = next((t_ns for size, t_ns in self._looks if size >= end), None)
        numbers = ((quantity, _number(text)) for quantity, text in told.items())
        values: dict[Quantity, float] = {quantity: value for quantity, value in numbers if value is not None}
        return None if seen is None else EngineSample(seen, values, logged=True)

    def _size(self) -> int | None:
        try:
            return self._path.stat().st_size
        except OSError:
            return None

    def _new_lines(self, end: int) -> Iterator[tuple[int, str]]:
        """Each line, and where in the file it ends."""
        rest, at = b"", self._offset
        with self._path.open("rb") as file:
            file.seek(at)
            while piece := file.read(min(_PIECE, end - at)):
                at += len(piece)
                *whole, rest = (rest + piece).split(b"\n")
                lengths = [len(line) + 1 for line in whole]
                first = at - len(rest) - sum(lengths)
                for behind, raw in zip(accumulate(lengths, initial=first), whole, strict=False):
                    yield from ((behind + len(raw) + 1, line) for line in plain_lines(raw.decode(errors="replace")))
                rest = rest[-_LONGEST_LINE:]
        yield from ((end, line) for line in plain_lines(rest.decode(errors="replace")))

    def _shown(self, line: str) -> str:
        [line] = redact([hide(line, self._hidden)])
        return " ".join(redact(line.split()))[:_SHOWN]  # again by words: the value of a flag is a word of its own


def _any_of(patterns: tuple[str, ...]) -> re.Pattern[str] | None:
    return re.compile("|".join(f"(?:{pattern})" for pattern in patterns)) if patterns else None


def _first(expressions: Iterable[re.Pattern[str]], line: str) -> str | None:
    """The first group of the first expression that is found in ``line``."""
    return next((match[1] for each in expressions if (match := each.search(line))), None)


def _number(text: str) -> float | None:
    try:
        return float(text[:-1]) / 100 if text.endswith("%") else float(text.replace(",", ""))
    except ValueError:
        return None
