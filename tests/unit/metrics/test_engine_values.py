"""Metrics that the engine states of itself: recorded pages against numbers worked out by hand, scripted counters."""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made import SECOND, record, trial

from pytest_llmperf.catalog import metric
from pytest_llmperf.metrics import measure
from pytest_llmperf.metrics.engine import bucket_quantile, falls, growth
from pytest_llmperf.metrics.trial import MEASURED
from pytest_llmperf.records import Trial, Window
from pytest_llmperf.samples import Buckets, EngineSample, Quantity, Telemetry
from pytest_llmperf.telemetry.prometheus import Page

sys.path.insert(0, str(Path(__file__).parents[1] / "telemetry"))
from test_prometheus import PAGES, VLLM

LOOKED_AT = ("kv_usage_p95", "kv_capacity_tokens", "preemptions", "prefix_hit_rate", "acceptance_length")


def at(second: float, values: Mapping[Quantity, float], **histograms: Buckets) -> EngineSample:
    return EngineSample(round(second * SECOND), values, histograms)  # type: ignore[arg-type]


def load(samples: Sequence[EngineSample], *, start: float = 2, end: float = 4, **changes: object) -> Trial:
    """A load whose window goes from ``start`` to ``end`` seconds."""
    telemetry = Telemetry(engine=tuple(samples), **changes)  # type: ignore[arg-type]
    return trial([record(0)], start_ms=start * 1000, end_ms=end * 1000, telemetry=telemetry)


def recorded(name: str, second: float) -> EngineSample:
    lines = Page(VLLM).wanted((PAGES / f"vllm-0.26.0-llama8b-{name}.txt").read_bytes())
    assert lines is not None
    return Page(VLLM).read(round(second * SECOND), lines)


def test_what_real_vllm_counted_between_two_pages() -> None:
    found = measure([load([recorded("load-c64", 1), recorded("final", 5)])], None, [*MEASURED, "queue_wait_p87"])
    assert found["queue_wait_mean"].value == pytest.approx((42.962441395998894 - 0.015012113999631538) / 400)
    assert found["prefill_time_mean"].value == pytest.approx((165.957232725001 - 53.999139596999925) / 400)
    # Of 400 requests 339 waited 0.3 s or less, all 0.5 s or less.
    assert found["queue_wait_p50"].value is None
    assert found["queue_wait_p50"].note == "not known from the engine's buckets: at most 300 ms, its lowest bucket"
    assert found["queue_wait_p90"].value == pytest.approx(0.3 + 0.2 * (360 - 339) / 61)
    assert found["queue_wait_p87"].value == pytest.approx(0.3 + 0.2 * (348 - 339) / 61)
    # 178 were prefilled within 0.3 s, 392 within 0.5 s, 400 within 0.8 s.
    assert found["prefill_time_p50"].value == pytest.approx(0.3 + 0.2 * (200 - 178) / 214)
    assert found["prefill_time_p99"].value == pytest.approx(0.5 + 0.3 * (396 - 392) / 8)
    assert found["prefill_time_p99"].note == "from buckets; over 4 s around the window of 2 s"
    assert {found[name].n for name in ("queue_wait_mean", "queue_wait_p90", "prefill_time_p99")} == {400}
    assert (found["preemptions"].value, found["kv_capacity_tokens"].value) == (0, 553712)


def test_what_the_prefix_cache_of_real_vllm_found_between_two_pages() -> None:
    pages = [recorded("prefix-on-load-c64", 1), recorded("prefix-on-final", 5)]
    found = measure([load(pages)], None, LOOKED_AT)["prefix_hit_rate"]
    assert found.value == (385408 - 218752) / (425984 - 253952)
    assert found.note == "by the engine's counters; over 4 s around the window of 2 s"


def test_without_pages_nothing_is_measured_and_the_reason_is_said() -> None:
    why = "the engine's metrics: http://h/metrics: HTTP 404"
    found = measure([load([], notes=(why, "other"))], None, [*LOOKED_AT, "queue_wait_mean", "prefill_time_p99"])
    told = {name: value.note for name, value in found.items() if name != "prefix_hit_rate"}
    assert set(told.values()) == {f"no metrics of the engine were read; {why}"}
    assert all(value.value is None and value.n == 0 for value in found.values())


def test_what_pages_do_not_state_is_not_measured() -> None:
    found = measure([load([at(1, {"running": 1}), at(5, {"running": 1})])], None, [*LOOKED_AT, "queue_wait_mean"])
    assert {v.note for n, v in found.items() if n != "prefix_hit_rate"} == {"the engine's metrics do not state it"}
    assert found["prefix_hit_rate"].value is None


def test_kv_usage_is_that_of_pages_inside_the_window() -> None:
    pages = [at(s, {"kv_usage": usage}) for s, usage in ((0, 1), (2, 0.1), (2.5, 0.2), (3, 0.3), (4, 0.5), (5, 1))]
    found = measure([load(pages)], None, LOOKED_AT)["kv_usage_p95"]
    assert (found.value, found.n) == (pytest.approx(0.3 + 0.85 * 0.2), 4)  # numpy's: h = 3 * 0.95
    short = measure([load([pages[0], pages[-1]])], None, LOOKED_AT)["kv_usage_p95"]
    assert (short.value, short.note) == (None, "none of the engine's pages fell into the window: make the load longer")


def test_rates_are_taken_around_the_window_and_preemptions_over_the_whole_load() -> None:
    counted = ((0, 0, 0), (1, 50, 0), (3, 70, 30), (5, 150, 60), (6, 150, 999))
    pages = [
        at(s, {"prefix_hits": hits, "prefix_queries": 100 * s, "drafts": 10 * s, "accepted_tokens": taken,
               "preemptions": s})
        for s, hits, taken in counted
    ]  # fmt: skip
    found = measure([load(pages)], None, LOOKED_AT)
    assert found["prefix_hit_rate"].value == (150 - 50) / (500 - 100)
    assert found["acceptance_length"].value == 1 + 60 / 40
    assert (found["preemptions"].value, found["preemptions"].note) == (6, None)


def test_replays_are_pooled_by_sums_and_preemptions_are_those_of_one_load() -> None:
    some = [at(s, {"prefix_hits": s, "prefix_queries": 10 * s, "preemptions": 4 * s}) for s in (0, 5)]
    more = [at(s, {"prefix_hits": 80 * s, "prefix_queries": 100 * s, "preemptions": 0}) for s in (0, 5)]
    found = measure([load(some), load(more), load([])], None, LOOKED_AT)
    assert found["prefix_hit_rate"].value == (5 + 400) / (50 + 500)
    assert found["preemptions"].value == 10
    assert found["preemptions"].note == "mean of 2 loads; not known of 1 of 3 loads"


def test_histograms_are_pooled_bucket_by_bucket() -> None:
    def pages(*counts: float, total: float, bounds: tuple[float, ...] = (1, 2, math.inf)) -> Trial:
        empty, full = Buckets(0, 0, bounds, (0,) * len(bounds)), Buckets(counts[-1], total, bounds, counts)
        return load([at(1, {}, queue_wait=empty), at(5, {}, queue_wait=full)])

    wanted = ["queue_wait_mean", "queue_wait_p75"]
    found = measure([pages(1, 2, 2, total=2), pages(1, 6, 6, total=10)], None, wanted)
    assert [value.value for value in found.values()] == [12 / 8, 1 + (6 - 2) / (8 - 2)]
    other = pages(1, 6, 6, total=10, bounds=(1, 3, math.inf))
    found = measure([pages(1, 2, 2, total=2), other], None, wanted)
    assert [value.value for value in found.values()] == [12 / 8, None]


def test_after_a_restart_counters_begin_at_zero() -> None:
    values = (100, 130, 10, 25)
    pages = [at(s, {"requests": n}, ttft=Buckets(n, n / 10)) for s, n in enumerate(values, 1)]
    found = growth(load(pages), ["requests"], whole=True)
    assert found is not None
    assert found.by == {"requests": 30 + 10 + 15}
    assert falls(pages) == 1


def test_pages_of_several_servers_are_nobodys() -> None:
    pages = [at(s, {"prefix_hits": n, "prefix_queries": n}) for s, n in enumerate((900, 20, 910, 25, 950))]
    found = measure([load(pages)], None, ["prefix_hit_rate", "acceptance_length"])
    assert found["prefix_hit_rate"].value is None
    assert "several servers answer" in (found["acceptance_length"].note or "")


def test_a_gauge_that_falls_is_no_restart() -> None:
    assert falls([at(1, {"running": 5, "kv_usage": 0.9}), at(2, {"running": 1, "kv_usage": 0.1})]) == 0


def test_the_requests_own_usage_goes_before_the_counters_and_a_difference_is_said() -> None:
    pages = [at(1, {"prefix_hits": 0, "prefix_queries": 0}), at(5, {"prefix_hits": 70, "prefix_queries": 100})]
    told = [record(i, prompt_tokens=10, cached_tokens=n) for i, n in enumerate((6, 8))]

    def rate(*records: object) -> tuple[float | None, str | None]:
        made = trial(list(records), start_ms=2000, end_ms=4000, telemetry=Telemetry(engine=tuple(pages)))  # type: ignore[arg-type]
        found = measure([made], None, LOOKED_AT)["prefix_hit_rate"]
        return found.value, found.note

    assert rate(*told) == (0.7, None)
    assert rate(told[0]) == (
        0.6,
        "by the requests' usage; the engine's counters say 0.7, over 4 s around the window of 2 s",
    )
    assert rate(told[0], record(1)) == (0.7, "by the engine's counters; over 4 s around the window of 2 s")


def test_a_cache_that_was_never_asked_has_no_hit_rate_and_no_drafts_no_length() -> None:
    values: dict[Quantity, float] = {"prefix_hits": 0, "prefix_queries": 0, "drafts": 0, "accepted_tokens": 0}
    found = measure([load([at(1, values), at(5, values)])], None, LOOKED_AT)
    assert found["prefix_hit_rate"].value is None
    odd = [at(1, {"prefix_hits": 0, "prefix_queries": 0}), at(5, {"prefix_hits": 9, "prefix_queries": 3})]
    assert measure([load(odd)], None, LOOKED_AT)["prefix_hit_rate"].value is None
    length = found["acceptance_length"]
    assert (length.value, length.note) == (None, "no draft was verified: it does not decode speculatively")


def test_a_length_that_is_stated_is_taken_where_accepted_tokens_are_not_counted() -> None:
    def stating(*lengths: float) -> list[EngineSample]:
        return [at(s, {"drafts": 10 * s, "acceptance_length": length}) for s, length in enumerate(lengths, 1)]

    stated = measure([load(stating(9, 2.5, 3.0, 3.5, 9))], None, LOOKED_AT)["acceptance_length"]
    assert (stated.value, stated.n, stated.note) == (3.0, 3, "mean of what its pages state")
    idle = measure([load(stating(0, 0, 3.0, 3.5, 0))], None, LOOKED_AT)["acceptance_length"]
    assert (idle.value, idle.n) == (3.25, 2)
    silent = measure([load([at(s, {"drafts": 10 * s}) for s in (1, 5)])], None, LOOKED_AT)["acceptance_length"]
    assert (silent.value, silent.note) == (None, "drafts were verified, but how many were accepted is not stated")


def test_where_no_counter_tells_the_lines_of_the_log_are_counted() -> None:
    found = measure([load([], preemption_warnings=3)], None, LOOKED_AT)["preemptions"]
    assert (found.value, found.note) == (3, "lines of the server's log that say so")


def test_no_finished_request_is_no_waiting_time() -> None:
    same = Buckets(5, 2.0, (1, math.inf), (5, 5))
    found = measure([load([at(1, {}, queue_wait=same), at(5, {}, queue_wait=same)])], None, ["queue_wait_mean"])
    assert found["queue_wait_mean"].value is None
    assert "finished no request" in (found["queue_wait_mean"].note or "")


@given(st.floats(0.02, 0.98), st.integers(2, 40), st.integers(1, 5))
def test_quantiles_of_an_even_spread_are_those_of_the_formula(q: float, buckets: int, each: int) -> None:
    """Uniform on [0, buckets]: the q-quantile is q * buckets; the lowest bucket alone is not told."""
    bounds = (*map(float, range(1, buckets + 1)), math.inf)
    counts = (*(float(each * n) for n in range(1, buckets + 1)), float(each * buckets))
    value, limit = bucket_quantile(Buckets(each * buckets, 0, bounds, counts), q)
    if q * buckets > 1 + 1e-9:
        assert value == pytest.approx(q * buckets)
    elif q * buckets < 1 - 1e-9:
        assert (value, limit) == (None, "at most 1.00 s, its lowest bucket")


def test_quantiles_lie_in_the_bucket_of_the_true_one() -> None:
    draw = random.Random(3)
    seen = sorted(draw.lognormvariate(-1, 1) for _ in range(5000))
    bounds = (0.01, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, math.inf)
    buckets = Buckets(5000, math.fsum(seen), bounds, tuple(sum(v <= bound for v in seen) for bound in bounds))
    for q in (0.1, 0.5, 0.9, 0.95, 0.99):
        true = seen[math.ceil(q * 5000) - 1]
        value, _ = bucket_quantile(buckets, q)
        assert value is not None
        bucket = next(at for at, bound in enumerate(bounds) if true <= bound)
        assert bounds[bucket - 1] < value <= bounds[bucket]


def test_a_quantile_above_the_highest_bound_is_no_number() -> None:
    found = bucket_quantile(Buckets(10, 99, (1, 2, math.inf), (1, 5, 10)), 0.9)
    assert found == (None, "more than 2.00 s")
    assert bucket_quantile(Buckets(10, 99), 0.9)[0] is None


def test_every_metric_of_the_engine_is_measured_by_name() -> None:
    assert {*LOOKED_AT, "queue_wait_p95", "prefill_time_mean"} <= set(MEASURED)
    assert all(metric(name) for name in MEASURED)


def test_the_window_may_begin_before_the_first_page() -> None:
    found = growth(load([at(3, {"requests": 1}), at(3.5, {"requests": 3})]), ["requests"])
    assert found is not None
    assert (found.by["requests"], found.seconds) == (2, 0.5)
    assert growth(load([at(3, {"requests": 1})]), ["requests"]) is None
    assert load([]).window == Window(2 * SECOND, 4 * SECOND)
