"""``<test>.samples.jsonl.gz`` beside a baseline: per launch and request family, what any quantile can be taken from.

One JSON object a line: ``entry`` (digest of the input), ``session``, ``order`` (of the launch), ``family``, ``ns``
(different values in ascending order: the first, then the difference to the one before), ``counts`` (how often each
occurs; null: once) and ``failed`` (requests that failed, slower than all). Values are integer ns; those of ``icl``
and ``itl``, one per chunk or token, have four significant digits, which changes no value by more than 0.05 %. Lines
are sorted and the gzip header carries no time, so equal samples give equal files.
"""

from __future__ import annotations

import gzip
import json
import math
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, Final

from pytest_llmperf.catalog import FAMILIES
from pytest_llmperf.errors import BaselineError
from pytest_llmperf.stats.value import MetricValue

__all__ = ["LARGEST", "LaunchSamples", "SampleLine", "decode_samples", "encode_samples", "lines_of", "samples_of"]

LARGEST: Final = 256 << 20
"""Bytes, compressed; the same number of characters is the most that may come out of it."""
_POOLED: Final = ("icl", "itl")
_MOST: Final = 50_000_000
"""Values that one line may stand for."""


@dataclass(frozen=True, slots=True)
class LaunchSamples:
    """The values of one launch."""

    order: int
    values: Mapping[str, Sequence[float]]
    """Family → seconds in any order; infinite for a failed request."""


@dataclass(frozen=True, slots=True, order=True)
class SampleLine:
    """One family of one launch as it is stored."""

    entry: str
    session: str
    order: int
    family: str
    ns: tuple[int, ...]
    """Different values, ascending."""
    counts: tuple[int, ...] | None
    failed: int

    def seconds(self) -> list[float]:
        """All values in ascending order, failed requests as infinity."""
        counts = self.counts or (1,) * len(self.ns)
        found = [value / 1e9 for value, count in zip(self.ns, counts, strict=True) for _ in range(count)]
        return found + [math.inf] * self.failed

    @property
    def place(self) -> tuple[str, str]:
        return self.entry, self.session


def samples_of(order: int, measured: Iterable[MetricValue]) -> LaunchSamples:
    """From the percentiles that were measured over one launch."""
    found = {each.metric.family.name: each.values for each in measured if each.values is not None}
    return LaunchSamples(order, {name: values for name, values in found.items() if name in FAMILIES})


def lines_of(entry: str, session: str, samples: Iterable[LaunchSamples]) -> list[SampleLine]:
    """As they are stored for a session of an entry."""
    return [
        _line(entry, session, launch.order, family, values)
        for launch in samples
        for family, values in launch.values.items()
    ]


def _line(entry: str, session: str, order: int, family: str, values: Sequence[float]) -> SampleLine:
    finite = [round(value * 1e9) for value in values if math.isfinite(value)]
    if family in _POOLED:
        finite = [round(value, 4 - len(str(abs(value)))) if value > 9999 else value for value in finite]
    counted = sorted(Counter(finite).items())
    counts = tuple(count for _, count in counted)
    once = all(count == 1 for count in counts)
    failed = len(values) - len(finite)
    return SampleLine(entry, session, order, family, tuple(ns for ns, _ in counted), None if once else counts, failed)


def encode_samples(lines: Iterable[SampleLine]) -> bytes:
    """The whole file."""
    body = "".join(f"{json.dumps(_to_json(line), separators=(',', ':'))}\n" for line in sorted(lines, key=_rank))
    return gzip.compress(body.encode(), compresslevel=6, mtime=0)


def _rank(line: SampleLine) -> tuple[str, str, int, str]:
    return line.entry, line.session, line.order, line.family


def _to_json(line: SampleLine) -> dict[str, Any]:
    deltas = [*line.ns[:1], *(later - earlier for earlier, later in pairwise(line.ns))]
    return {
        "entry": line.entry, "session": line.session, "order": line.order, "family": line.family, "ns": deltas,
        "counts": line.counts, "failed": line.failed,
    }  # fmt: skip


def decode_samples(data: bytes, where: str) -> list[SampleLine]:
    """The lines of a file. Raises BaselineError where it is truncated, not such a file, or absurdly large."""
    remedy = "restore it from version control, or delete it: the values per launch are in the file beside it"
    unpacker = zlib.decompressobj(wbits=31)
    try:
        body = unpacker.decompress(data, LARGEST)
        text = body.decode()
    except (zlib.error, UnicodeDecodeError) as error:
        raise BaselineError(where, f"not a gzip file of text: {error}", remedy) from None
    if unpacker.unconsumed_tail:
        raise BaselineError(where, f"unpacks to more than {LARGEST >> 20} MiB", remedy)
    if not unpacker.eof or unpacker.unused_data:
        raise BaselineError(where, "truncated" if not unpacker.eof else "something follows its end", remedy)
    found = []
    for number, written in enumerate(text.splitlines(), 1):
        try:
            found.append(_from_json(json.loads(written)))
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise BaselineError(where, f"line {number}: not samples of a launch: {error}"[:300], remedy) from None
    return found


def _from_json(written: dict[str, Any]) -> SampleLine:
    deltas, counts, failed = written["ns"], written["counts"], written["failed"]
    _naturals(deltas, "ns")
    _naturals([failed, written["order"]], "failed and order")
    if counts is not None:
        _naturals(counts, "counts")
        if len(counts) != len(deltas):
            raise ValueError(f"{len(counts)} counts of {len(deltas)} values")
    total = (len(deltas) if counts is None else sum(counts)) + failed
    if total > _MOST:
        raise ValueError(f"{total} values")
    if not all(isinstance(written[name], str) for name in ("entry", "session", "family")):
        raise TypeError("entry, session and family are texts")
    return SampleLine(
        written["entry"], written["session"], written["order"], written["family"], tuple(accumulate(deltas)),
        None if counts is None else tuple(counts), failed,
    )  # fmt: skip


def _naturals(values: Any, name: str) -> None:
    if not isinstance(values, list) or not all(type(each) is int and each >= 0 for each in values):
        raise ValueError(f"{name}: not integers from 0")
