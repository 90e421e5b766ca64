"""Formulas on one request (measurement.md §0), and the ways in which other tools got them wrong (§2)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made import MS, failure, record

from pytest_llmperf.metrics.rates import spread_tokens
from pytest_llmperf.metrics.request import (
    connect_time,
    e2e,
    first_chunk_known,
    icl_gaps,
    itl_gaps,
    known_tokens,
    tpot,
    ttfb,
    ttfot,
    ttft,
)
from pytest_llmperf.records import Outcome


def test_latencies_of_a_closed_loop_count_from_the_send() -> None:
    r = record(sent_ms=1000, chunks_ms=(100, 150, 300), first_byte_ns=1020 * MS, first_answer_ns=1150 * MS)
    assert ttfb(r) == pytest.approx(0.020)
    assert ttft(r) == pytest.approx(0.100)
    assert ttfot(r) == pytest.approx(0.150)
    assert e2e(r) == pytest.approx(0.300)


def test_latencies_of_an_open_loop_count_from_the_schedule() -> None:
    r = record(sent_ms=1000, chunks_ms=(100, 300), scheduled_ns=940 * MS)
    assert ttft(r) == pytest.approx(0.160)
    assert e2e(r) == pytest.approx(0.360)


def test_e2e_ends_at_the_last_output_and_not_at_the_close_of_the_stream() -> None:  # pitfall 4
    assert e2e(record(chunks_ms=(100, 200), closed_ns=900 * MS)) == pytest.approx(0.200)


def test_gaps_are_one_less_than_chunks_and_hold_no_ttft() -> None:  # pitfall 3
    r = record(chunks_ms=(500, 510, 530))
    assert icl_gaps(r) == pytest.approx([0.010, 0.020])
    assert icl_gaps(record(chunks_ms=(500,))) == []


@given(st.lists(st.integers(0, 10**10), min_size=1, max_size=50))
def test_gaps_add_up_to_last_minus_first(gaps_ns: list[int]) -> None:
    stamps = [1_000]
    for gap in gaps_ns:
        stamps.append(stamps[-1] + gap)
    r = record(chunks_ms=(1,), chunk_ns=tuple(stamps))
    assert len(icl_gaps(r)) == len(stamps) - 1
    assert sum(icl_gaps(r)) == pytest.approx((stamps[-1] - stamps[0]) / 1e9)


def test_itl_divides_each_gap_by_the_tokens_of_its_chunk() -> None:  # pitfall 6
    r = record(chunks_ms=(100, 130, 140), chunk_tokens=(5, 3, 1), output_tokens=9)
    assert itl_gaps(r) == pytest.approx([0.010, 0.010, 0.010, 0.010])
    assert sum(itl_gaps(r) or ()) == pytest.approx(sum(icl_gaps(r)))


def test_itl_gives_the_gap_of_a_chunk_without_tokens_to_the_next_one() -> None:
    r = record(chunks_ms=(100, 110, 130), chunk_tokens=(1, 0, 2), output_tokens=3)
    assert itl_gaps(r) == pytest.approx([0.015, 0.015])


def test_itl_is_undefined_without_counts_per_chunk() -> None:
    assert itl_gaps(record()) is None


def test_tpot_leaves_out_all_tokens_of_the_first_chunk() -> None:  # pitfall 7
    r = record(chunks_ms=(100, 200, 300), chunk_tokens=(6, 2, 2), output_tokens=10)
    assert tpot(r) == pytest.approx(0.200 / 4)
    assert first_chunk_known(r)


def test_tpot_takes_an_unknown_first_chunk_as_one_token_and_says_so() -> None:
    r = record(chunks_ms=(100, 200, 300), output_tokens=11)
    assert tpot(r) == pytest.approx(0.200 / 10)
    assert not first_chunk_known(r)


@pytest.mark.parametrize(
    "r",
    [
        record(chunks_ms=(100,), output_tokens=1),
        record(chunks_ms=(100,), output_tokens=8),  # one chunk: nothing was decoded between two stamps
        record(chunks_ms=(100, 200), chunk_tokens=(5, 0), output_tokens=5),
        record(chunks_ms=(100, 200), output_tokens=1),
        record(chunks_ms=(100, 200), output_tokens=0),
        record(chunks_ms=(100, 100), output_tokens=2),  # both chunks in one read
        record(chunks_ms=(100, 200), output_tokens=None),
    ],
)
def test_tpot_is_undefined_and_not_zero(r: object) -> None:  # pitfalls 14, 25
    assert tpot(r) is None  # type: ignore[arg-type]


def test_what_did_not_happen_has_no_latency() -> None:  # pitfall 14
    r = failure()
    assert (ttft(r), ttfb(r), ttfot(r), tpot(r), e2e(r), icl_gaps(r)) == (None, None, None, None, None, [])


def test_connect_time_is_that_of_a_connection_opened_for_the_request() -> None:
    assert connect_time(record(connect_start_ns=0, connected_ns=3 * MS, sent_ms=3)) == pytest.approx(0.003)
    assert connect_time(record()) is None


def test_tokens_are_never_counted_from_chunks_nor_from_the_request() -> None:  # pitfall 12
    r = record(output_tokens=None, requested_output_tokens=64)
    assert known_tokens(r) is None
    assert spread_tokens(r) is None


def test_a_request_that_broke_off_has_the_tokens_that_were_counted_so_far() -> None:
    r = record(outcome=Outcome.NO_PROGRESS, output_tokens=None, chunk_tokens=(2, 3, 1))
    assert known_tokens(r) == 6


@given(
    st.lists(st.tuples(st.integers(1, 1000), st.integers(0, 9)), min_size=1, max_size=40),
    st.one_of(st.none(), st.integers(0, 400)),
    st.booleans(),
)
def test_credited_tokens_add_up_to_the_servers_count(
    chunks: list[tuple[int, int]], total: int | None, counted: bool
) -> None:
    stamps = [sum(gap for gap, _ in chunks[: i + 1]) for i in range(len(chunks))]
    tokens = tuple(n for _, n in chunks) if counted else None
    r = record(chunks_ms=stamps, chunk_tokens=tokens, output_tokens=total)
    spread = spread_tokens(r)
    if total is None and not counted:
        assert spread is None
    else:
        assert spread is not None
        expected = total if total is not None else sum(tokens or ())
        assert sum(share for _, share in spread) == pytest.approx(expected)


def test_a_chunk_is_credited_with_its_own_tokens() -> None:  # pitfall 5
    r = record(chunks_ms=(100, 200, 300), chunk_tokens=(1, 7, 2), output_tokens=10)
    assert spread_tokens(r) == [(100 * MS, 1.0), (200 * MS, 7.0), (300 * MS, 2.0)]
