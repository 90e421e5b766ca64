"""What must hold of every recorded trial, whatever the server did.

A violation is a fault of ours: INVALID.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Final

from pytest_llmperf.metrics.chunks import credit, flatten
from pytest_llmperf.metrics.rates import tokens_between
from pytest_llmperf.metrics.trial import counts, in_flight
from pytest_llmperf.records import FAILURES, Outcome, RequestRecord, Trial

__all__ = ["check_invariants"]

CLOCK_TOLERANCE_NS: Final = 2_000_000
"""Sends carry the monotonic clock, receives may carry kernel stamps mapped to it.

They may disagree by a little.
"""
_SHOWN: Final = 3
_PARTS: Final = 16


def check_invariants(trial: Trial) -> tuple[str, ...]:
    """The invariants of measurement.md §0 that ``trial`` violates, each with the request; empty if none."""
    broken: list[str] = []
    indexes = [record.index for record in trial.records]
    if len(set(indexes)) != len(indexes):
        broken.append("two records have the same index")
    if trial.window.end_ns < trial.window.start_ns:
        broken.append("the window ends before it starts")
    broken += _sums(trial)
    chunks = _chunks(trial)
    found = [
        f"request {record.index}: {problem}"
        for record, problems in zip(trial.records, chunks, strict=True)
        for problem in (*problems, *_record(record))
    ]
    if len(found) > _SHOWN:
        found = [*found[:_SHOWN], f"and {len(found) - _SHOWN} more"]
    return (*broken, *found)


def _sums(trial: Trial) -> Iterator[str]:
    """What holds of the trial as a whole, each side of it computed on a way of its own."""
    count, flying, window = counts(trial), in_flight(trial), trial.window
    if count.attempted != count.ok + count.failed + count.cut:
        yield f"attempted {count.attempted} != ok {count.ok} + failed {count.failed} + cut {count.cut}"
    if flying.lowest < 0:
        yield f"{flying.lowest} requests in flight"
    if flying.mean > flying.maximum * (1 + 1e-9):
        yield f"{flying.mean:g} requests in flight on average, {flying.maximum} at most"
    if window.end_ns > window.start_ns:
        peak, mean = _peak_and_mean(trial)
        if peak < mean * (1 - 1e-9):
            yield f"the peak output rate of {peak:g} tok/s is below the mean of {mean:g} tok/s"


def _peak_and_mean(trial: Trial) -> tuple[float, float]:
    """The highest output rate among equal parts of the window, and the throughput that is reported."""
    import numpy as np

    window = trial.window
    credited = credit(trial.records)
    span = (window.start_ns, window.end_ns)
    parts, _ = np.histogram(credited.stamps, _PARTS, span, weights=credited.shares)
    mean = tokens_between(trial.records, *span).tokens / window.seconds
    return float(parts.max()) * _PARTS / window.seconds, mean


def _chunks(trial: Trial) -> list[list[str]]:
    """Problems of each record's chunk times, asked of the gaps that ICL is made of."""
    import numpy as np

    problems: list[list[str]] = [[] for _ in trial.records]
    flat = flatten(trial.records)
    gaps, starts = flat.gaps_ns()
    for number in np.unique(np.searchsorted(starts, np.flatnonzero(gaps < 0), side="right") - 1):
        problems[number].append("chunk times run backwards")
    sums = np.concatenate([np.zeros(1, np.int64), np.cumsum(gaps)])
    sizes = np.diff(flat.starts)
    some = np.flatnonzero(sizes > 0)
    first, last = flat.stamps[flat.starts[some]], flat.stamps[flat.starts[some + 1] - 1]
    added = sums[starts[some + 1]] - sums[starts[some]]
    off = (added != last - first) | (np.diff(starts)[some] != sizes[some] - 1)
    for number in some[off]:
        problems[number].append("the gaps between chunks do not add up to last - first")
    return problems


def _record(record: RequestRecord) -> Iterator[str]:
    stamps = record.chunk_ns
    if record.outcome not in FAILURES and record.outcome not in (Outcome.OK, Outcome.CUT):
        yield f"outcome {record.outcome!r} is none of ok, failed and cut"
    if len(stamps) and (stamps[0] != record.first_output_ns or stamps[-1] != record.last_output_ns):
        yield "the first or last chunk is not the first or last output"
    lone = record.last_output_ns is not None and record.streamed
    if not len(stamps) and (record.first_output_ns is not None or lone):
        yield "output without a chunk"
    if len(stamps) and not record.streamed:
        yield "chunks of a reply that was not streamed"
    if record.chunk_tokens is not None and len(record.chunk_tokens) != len(stamps):
        yield f"{len(record.chunk_tokens)} token counts for {len(stamps)} chunks"
    if record.chunk_tokens is not None and min(record.chunk_tokens, default=0) < 0:
        yield "a chunk of a negative number of tokens"
    if record.outcome is Outcome.OK:
        if not len(stamps) and (record.streamed or record.last_output_ns is None):
            yield "ok without output"
        if record.sent_ns is None:
            yield "ok without a send"
    yield from _order(record)


def _order(record: RequestRecord) -> Iterator[str]:
    """Each stage at or after the one before it; in flight can then never be negative."""
    stages = (
        ("connect_start", record.connect_start_ns),
        ("connected", record.connected_ns),
        ("sent", record.sent_ns),
        ("first_byte", record.first_byte_ns),
        ("first_output", record.first_output_ns),
        ("last_output", record.last_output_ns),
        ("closed", record.closed_ns),
    )
    known = [(name, stamp) for name, stamp in stages if stamp is not None]
    for (before, earlier), (after, later) in pairwise(known):
        if later < earlier - CLOCK_TOLERANCE_NS:
            yield f"{after} is {(earlier - later) / 1e6:.3f} ms before {before}"
    answer, first, last = record.first_answer_ns, record.first_output_ns, record.last_output_ns
    if answer is not None and (first is None or last is None or not first <= answer <= last):
        yield "the first answer is not among the outputs"
