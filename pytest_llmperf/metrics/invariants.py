"""What must hold of every recorded trial, whatever the server did.

A violation is a fault of ours: INVALID.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Final

from pytest_llmperf.metrics.request import icl_gaps
from pytest_llmperf.records import FAILURES, Outcome, RequestRecord, Trial

__all__ = ["check_invariants"]

CLOCK_TOLERANCE_NS: Final = 2_000_000
"""Sends carry the monotonic clock, receives may carry kernel stamps mapped to it.

They may disagree by a little.
"""
_SHOWN: Final = 3


def check_invariants(trial: Trial) -> tuple[str, ...]:
    """The invariants of measurement.md §0 that ``trial`` violates, each with the request; empty if none."""
    broken: list[str] = []
    indexes = [record.index for record in trial.records]
    if len(set(indexes)) != len(indexes):
        broken.append("two records have the same index")
    if trial.window.end_ns < trial.window.start_ns:
        broken.append("the window ends before it starts")
    found = [f"request {record.index}: {problem}" for record in trial.records for problem in _record(record)]
    if len(found) > _SHOWN:
        found = [*found[:_SHOWN], f"and {len(found) - _SHOWN} more"]
    return (*broken, *found)


def _record(record: RequestRecord) -> Iterator[str]:
    stamps = record.chunk_ns
    if record.outcome not in FAILURES and record.outcome not in (Outcome.OK, Outcome.CUT):
        yield f"outcome {record.outcome!r} is none of ok, failed and cut"
    if any(later < earlier for earlier, later in pairwise(stamps)):
        yield "chunk times run backwards"
    if stamps and (stamps[0] != record.first_output_ns or stamps[-1] != record.last_output_ns):
        yield "the first or last chunk is not the first or last output"
    if not stamps and (record.first_output_ns is not None or (record.streamed and record.last_output_ns is not None)):
        yield "output without a chunk"
    if stamps and not record.streamed:
        yield "chunks of a reply that was not streamed"
    if stamps:
        gaps = icl_gaps(record)
        if len(gaps) != len(stamps) - 1 or abs(sum(gaps) - (stamps[-1] - stamps[0]) / 1e9) > 1e-6:
            yield "the gaps between chunks do not add up to last - first"
    if record.chunk_tokens is not None and len(record.chunk_tokens) != len(stamps):
        yield f"{len(record.chunk_tokens)} token counts for {len(stamps)} chunks"
    if record.chunk_tokens is not None and min(record.chunk_tokens, default=0) < 0:
        yield "a chunk of a negative number of tokens"
    if record.outcome is Outcome.OK:
        if not stamps and (record.streamed or record.last_output_ns is None):
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
