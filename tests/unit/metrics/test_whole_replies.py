"""Replies that were not streamed: an end and tokens, but nothing of what only a stream shows."""

from __future__ import annotations

from typing import Any

import pytest
from made import MS, record, trial

from pytest_llmperf.metrics import LoadFacts, assess, measure
from pytest_llmperf.records import RequestRecord


def whole(index: int, *, sent_ms: float, end_ms: float, **changes: Any) -> RequestRecord:
    end = round(end_ms * MS)
    facts = {
        "streamed": False,
        "output_tokens": 50,
        "requested_output_tokens": 50,
        "first_byte_ns": end,
        "last_output_ns": end,
        "closed_ns": end,
    }
    return record(index, sent_ms=sent_ms, chunks_ms=(), **(facts | changes))


def test_tokens_are_credited_at_the_end_and_latencies_of_streams_are_not_made_up() -> None:
    made = trial([whole(0, sent_ms=0, end_ms=400), whole(1, sent_ms=500, end_ms=1200)])
    found = measure([made], None)
    assert found["e2e_mean"].value == pytest.approx((0.4 + 0.7) / 2)
    assert found["output_throughput"].value == pytest.approx(50)  # the second ended after the window
    assert found["total_throughput"].value == pytest.approx(60)
    assert found["request_throughput"].value == pytest.approx(1)
    for name in ("ttft_p50", "tpot_p50", "icl_p50", "itl_p50"):
        assert found[name].value is None
    assert found["ttft_p50"].note == "2 of 2 requests were not streamed"
    assert assess(made, LoadFacts()).valid


def test_they_take_nothing_from_the_streams_beside_them() -> None:
    mixed = measure([trial([record(0), whole(1, sent_ms=0, end_ms=400)])], None)
    assert (mixed["ttft_p50"].value, mixed["ttft_p50"].n) == (pytest.approx(0.1), 1)
    assert mixed["output_throughput"].value == pytest.approx(53)


def test_an_impossible_one_is_our_fault() -> None:
    assert not assess(trial([whole(0, sent_ms=0, end_ms=400, last_output_ns=None)]), LoadFacts()).valid
    assert not assess(trial([record(0, streamed=False)]), LoadFacts()).valid
