"""Flat arrays against the formulas on one request, whatever holds the times."""

from __future__ import annotations

import dataclasses
from array import array
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made import MS, record

from pytest_llmperf.metrics.chunks import credit, flatten, gaps, gaps_per_token
from pytest_llmperf.metrics.rates import spread_tokens, tokens_between
from pytest_llmperf.metrics.request import icl_gaps, itl_gaps, longest_gap
from pytest_llmperf.records import RequestRecord


def as_arrays(records: Sequence[RequestRecord]) -> list[RequestRecord]:
    """The same with the compact storage of the load generator."""
    stored: list[Any] = [array("q", r.chunk_ns) for r in records]
    return [dataclasses.replace(r, chunk_ns=chunks) for r, chunks in zip(records, stored, strict=True)]


@st.composite
def requests(draw: st.DrawFn) -> RequestRecord:
    steps = draw(st.lists(st.integers(0, 50), max_size=6))
    chunks, at = [], 100
    for step in steps:
        at += step
        chunks.append(at)
    tokens = draw(st.none() | st.lists(st.integers(0, 4), min_size=len(chunks), max_size=len(chunks)).map(tuple))
    total = draw(st.none() | st.integers(0, 20))
    return record(draw(st.integers(0, 9)), chunks_ms=chunks, chunk_tokens=tokens, output_tokens=total)


@given(st.lists(requests(), max_size=6))
def test_flat_arrays_say_what_the_formulas_on_one_request_say(records: list[RequestRecord]) -> None:
    for some in (records, as_arrays(records)):
        flat = flatten(some)
        assert [list(flat.stamps[a:b]) for a, b in zip(flat.starts, flat.starts[1:], strict=False)] == [
            list(r.chunk_ns) for r in records
        ]
        found, numbers = gaps(some)
        assert list(found) == pytest.approx([gap for r in records for gap in icl_gaps(r)])
        assert list(numbers) == [len(icl_gaps(r)) for r in records]
        found, numbers = gaps_per_token(some)
        assert list(found) == pytest.approx(sorted(gap for r in records for gap in itl_gaps(r) or ()))
        assert list(numbers) == [len(itl_gaps(r) or ()) for r in records]
        credited = credit(some)
        spread = [pair for r in records for pair in spread_tokens(r) or ()]
        assert list(credited.stamps) == [stamp for stamp, _ in spread]
        assert list(credited.shares) == pytest.approx([share for _, share in spread])
        assert [longest_gap(r) for r in some] == [max(icl_gaps(r), default=None) for r in records]


@given(st.lists(requests(), max_size=6), st.integers(0, 400), st.integers(0, 400))
def test_tokens_between_two_times_are_those_of_the_chunks_there(
    records: list[RequestRecord], start: int, end: int
) -> None:
    low, high = start * MS, end * MS
    having = [r for r in records if r.chunk_ns and r.chunk_ns[-1] >= low and r.chunk_ns[0] <= high]
    spread = [spread_tokens(r) for r in having]
    found = tokens_between(records, low, high)
    expected = sum(share for pairs in spread for at, share in pairs or () if low <= at <= high)
    assert found.tokens == pytest.approx(expected)
    assert found.unknown == spread.count(None)
    assert found.counted == len(spread) - found.unknown
