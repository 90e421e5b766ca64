"""Samples: exact, small, the same bytes every time, and no way to fill a memory."""

from __future__ import annotations

import gzip
import json
import math
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_llmperf.baseline import samples
from pytest_llmperf.baseline.samples import LaunchSamples, decode_samples, encode_samples, lines_of, samples_of
from pytest_llmperf.catalog import metric
from pytest_llmperf.errors import BaselineError
from pytest_llmperf.stats.value import MetricValue

SECONDS = st.lists(st.one_of(st.integers(0, 10**12).map(lambda ns: ns / 1e9), st.just(math.inf)))


@given(SECONDS)
def test_values_of_requests_come_back_to_the_nanosecond(values: list[float]) -> None:
    lines = lines_of("e", "s", [LaunchSamples(1, {"ttft": values})])
    [back] = decode_samples(encode_samples(lines), "x")
    assert [round(each * 1e9) if each < math.inf else each for each in back.seconds()] == sorted(
        round(each * 1e9) if each < math.inf else each for each in values
    )


@given(st.lists(st.floats(1e-9, 100), min_size=1))
def test_gaps_come_back_within_half_a_thousandth(values: list[float]) -> None:
    [back] = decode_samples(encode_samples(lines_of("e", "s", [LaunchSamples(0, {"icl": values})])), "x")
    for stored, value in zip(back.seconds(), sorted(values), strict=True):
        assert stored == pytest.approx(value, rel=0.0005, abs=0.51e-9)


def test_equal_samples_are_equal_bytes_in_any_order() -> None:
    lines = lines_of("e", "s", [LaunchSamples(order, {"ttft": [0.2, 0.1], "e2e": [1.0]}) for order in range(3)])
    assert encode_samples(lines) == encode_samples(reversed(lines))


def test_gaps_of_a_launch_take_little_room() -> None:
    draw = random.Random(1)
    gaps = [draw.gauss(0.02, 0.001) for _ in range(25_600)]
    assert len(encode_samples(lines_of("e", "s", [LaunchSamples(0, {"icl": gaps})]))) < 25_600 / 2


def test_samples_are_taken_from_measured_percentiles() -> None:
    measured = [
        MetricValue(metric("ttft_mean"), 0.1, 2),
        MetricValue(metric("ttft_p50"), 0.1, 2, values=(0.05, math.inf)),
        MetricValue(metric("ttft_p95"), 0.1, 2, values=(0.05, math.inf)),
        MetricValue(metric("output_throughput"), 10.0, 2),
    ]
    assert samples_of(3, measured) == LaunchSamples(3, {"ttft": (0.05, math.inf)})


LINE = {"entry": "e", "session": "s", "order": 0, "family": "ttft", "ns": [1, 2], "counts": None, "failed": 0}


@pytest.mark.parametrize(
    "changes",
    [
        {"ns": [-1]}, {"ns": [1.5]}, {"ns": [True]}, {"ns": "12"}, {"counts": [1]}, {"counts": [10**12, 1]},
        {"failed": 10**12}, {"failed": -1}, {"order": "0"}, {"entry": 3}, {"session": None},
    ],
)  # fmt: skip
def test_a_line_that_is_no_launch_is_refused(changes: dict[str, Any]) -> None:
    data = gzip.compress(f"{json.dumps(LINE)}\n{json.dumps({**LINE, **changes})}\n".encode())
    with pytest.raises(BaselineError, match="there: line 2: not samples of a launch"):
        decode_samples(data, "there")


@pytest.mark.parametrize("text", ["nonsense", "[]", "[" * 100_000, '{"ns": [1]}'])
def test_other_text_is_refused(text: str) -> None:
    with pytest.raises(BaselineError, match="line 1: not samples"):
        decode_samples(gzip.compress(text.encode()), "there")


@pytest.mark.parametrize(
    "data",
    [b"", b"plain", gzip.compress(b"x")[:-1], gzip.compress(b"{}") + b"more"],
    ids=["empty", "plain", "cut", "more"],
)
def test_other_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(BaselineError, match="there: "):
        decode_samples(data, "there")


def test_a_bomb_is_not_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(samples, "LARGEST", 1 << 20)
    with pytest.raises(BaselineError, match="unpacks to more than 1 MiB"):
        decode_samples(gzip.compress(b"0" * (1 << 22)), "there")
