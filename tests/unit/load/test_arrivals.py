"""The plan of a load: deterministic, and with the statistics it promises."""

from __future__ import annotations

import math
from itertools import islice, pairwise
from statistics import fmean, pvariance

import pytest

from pytest_llmperf.load.arrivals import schedule
from pytest_llmperf.plan import Fixed, LoadProfile, Lognormal, SharedPrefix, Uniform, Workload
from pytest_llmperf.records import Phase


def workload(**changes: object) -> Workload:
    return Workload(**{"name": "w", "input": Fixed(tokens=100), "output": Fixed(tokens=10), **changes})  # type: ignore[arg-type]


def test_warm_up_comes_first_and_indices_count_on() -> None:
    plan = list(schedule(workload(), LoadProfile(concurrency=4, requests=10), 0))
    assert [arrival.index for arrival in plan] == list(range(18))
    assert [arrival.phase for arrival in plan] == [Phase.WARMUP] * 8 + [Phase.MEASURED] * 10
    assert {arrival.offset_ns for arrival in plan} == {None}


def test_equal_arguments_give_equal_plans_and_seeds_differ() -> None:
    mixed = workload(input=Uniform(low=10, high=900), output=Lognormal(median=50, sigma=0.7))
    load = LoadProfile(request_rate=50, requests=200)
    assert list(schedule(mixed, load, 1)) == list(schedule(mixed, load, 1))
    assert list(schedule(mixed, load, 1)) != list(schedule(mixed, load, 2))


def test_neither_load_nor_the_other_length_changes_a_length() -> None:
    mixed = workload(input=Uniform(low=10, high=900), output=Uniform(low=1, high=99))
    slow = list(schedule(mixed, LoadProfile(request_rate=5, requests=50, warmup=0), 3))
    closed = list(schedule(mixed, LoadProfile(concurrency=5, requests=50, warmup=0), 3))
    fixed = list(schedule(workload(input=mixed.input), LoadProfile(concurrency=5, requests=50, warmup=0), 3))
    assert [a.output_tokens for a in slow] == [a.output_tokens for a in closed]
    assert [a.input_tokens for a in slow] == [a.input_tokens for a in closed] == [a.input_tokens for a in fixed]
    other = list(schedule(workload(), LoadProfile(request_rate=5, requests=50, warmup=0), 3))
    assert [a.offset_ns for a in slow] == [a.offset_ns for a in other]


def test_constant_arrivals_are_evenly_spaced_through_warm_up_and_window() -> None:
    plan = list(schedule(workload(), LoadProfile(request_rate=3, arrival="constant", requests=3000, warmup=7), 0))
    assert all(
        arrival.offset_ns is not None and abs(arrival.offset_ns - arrival.index * 1e9 / 3) < 1 for arrival in plan
    )


def test_poisson_gaps_have_mean_and_variance_of_the_exponential() -> None:
    rate, n = 40.0, 20_000
    plan = list(schedule(workload(), LoadProfile(request_rate=rate, requests=n, warmup=0), 11))
    times = [0.0, *((arrival.offset_ns or 0) / 1e9 for arrival in plan)]
    gaps = [b - a for a, b in pairwise(times)]
    assert min(gaps) >= 0
    # mean 1/rate with standard error 1/(rate sqrt n); variance 1/rate^2 with sqrt(8/n)/rate^2; five of them
    assert fmean(gaps) == pytest.approx(1 / rate, rel=5 / math.sqrt(n))
    assert pvariance(gaps) == pytest.approx(1 / rate**2, rel=5 * math.sqrt(8 / n))
    # P(gap > 1/rate) = 1/e
    share = sum(gap > 1 / rate for gap in gaps) / n
    assert share == pytest.approx(math.exp(-1), abs=5 * math.sqrt(math.exp(-1) / n))


def test_an_open_loop_of_a_duration_ends_with_it() -> None:
    load = LoadProfile(request_rate=10, arrival="constant", duration=2.0, warmup=5)
    plan = list(schedule(workload(), load, 0))
    assert sum(arrival.phase is Phase.MEASURED for arrival in plan) == 20
    poisson = list(schedule(workload(), LoadProfile(request_rate=200, duration=5.0, warmup=5), 0))
    first, last = poisson[5].offset_ns, poisson[-1].offset_ns
    assert first is not None
    assert last is not None
    assert 4.5e9 < last - first < 5e9


def test_a_closed_loop_of_a_duration_is_endless() -> None:
    plan = schedule(workload(), LoadProfile(concurrency=1, duration=1.0), 0)
    assert len(list(islice(plan, 5000))) == 5000


def test_lengths_keep_to_their_bounds_and_median() -> None:
    drawn = workload(input=Uniform(low=5, high=7), output=Lognormal(median=100, sigma=1.0, low=20, high=400))
    plan = list(schedule(drawn, LoadProfile(concurrency=1, requests=4000), 5))
    assert {arrival.input_tokens for arrival in plan} == {5, 6, 7}
    outputs = sorted(arrival.output_tokens for arrival in plan)
    assert outputs[0] == 20
    assert outputs[-1] == 400
    assert outputs[len(outputs) // 2] == pytest.approx(100, rel=0.1)


def test_prefix_groups_take_turns_and_leave_a_token_of_its_own() -> None:
    shared = workload(input=Uniform(low=1, high=80), shared_prefix=SharedPrefix(groups=3, tokens=50))
    plan = list(schedule(shared, LoadProfile(concurrency=1, requests=300), 0))
    assert [arrival.prefix_group for arrival in plan[:6]] == [0, 1, 2, 0, 1, 2]
    assert all(0 <= arrival.prefix_tokens < arrival.input_tokens for arrival in plan)
    assert max(arrival.prefix_tokens for arrival in plan) == 50
