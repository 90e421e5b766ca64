"""Metrics that the engine states of itself: recorded pages against numbers worked out by hand, scripted counters."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence

import pytest
from engine_pages import recorded
from hypothesis import given
from hypothesis import strategies as st
from made import SECOND, record, trial

from pytest_llmperf.catalog import metric
from pytest_llmperf.metrics import measure
from pytest_llmperf.metrics.engine import Bucketed, bucket_quantile
from pytest_llmperf.metrics.growth import falls, growth, mean_growth
from pytest_llmperf.metrics.trial import MEASURED
from pytest_llmperf.records import Trial, Window
from pytest_llmperf.samples import Buckets, EngineSample, Quantity, Telemetry

LOOKED_AT = ("kv_usage_p95", "kv_capacity_tokens", "preemptions", "prefix_hit_rate", "acceptance_length")


def at(second: float, values: Mapping[Quantity, float], **histograms: Buckets) -> EngineSample:
    return EngineSample(round(second * SECOND), values, histograms)  # type: ignore[arg-type]


def load(samples: Sequence[EngineSample], *, start: float = 2, end: float = 4, **changes: object) -> Trial:
    """A load whose window goes from ``start`` to ``end`` seconds."""
    telemetry = Telemetry(engine=tuple(samples), **changes)  # type: ignore[arg-type]
    return trial([record(0)], start_ms=start * 1000, end_ms=end * 1000, telemetry=telemetry)


def test_what_real_vllm_counted_between_two_pages() -> None:
    found = measure([load([recorded("load-c64", 1), recorded("final", 5)])], None, [*MEASURED, "queue_wait_p87"])
    assert found["queue_wait_mean"].value == pytest.approx((42.962441395998894 - 0.015012113999631538) / 400)
    assert found["prefill_time_mean"].value == pytest.approx((165.957232725001 - 53.999139596999925) / 400)
    # Of 400 requests 339 waited 0.3 s or less, all 0.5 s or less.
    assert found["queue_wait_p50"].value == pytest.approx(0.3 * 200 / 339)
    assert (found["queue_wait_p50"].lower, found["queue_wait_p50"].upper) == (0, 0.3)
    assert found["queue_wait_p50"].note == "≤ 300 ms by the engine's buckets; over 4 s around the window of 2 s"
    assert (found["queue_wait_p90"].lower, found["queue_wait_p90"].upper) == (0.3, 0.5)
    assert found["queue_wait_p90"].value == pytest.approx(0.3 + 0.2 * (360 - 339) / 61)
    assert found["queue_wait_p87"].value == pytest.approx(0.3 + 0.2 * (348 - 339) / 61)
    # 178 were prefilled within 0.3 s, 392 within 0.5 s, 400 within 0.8 s.
    assert found["prefill_time_p50"].value == pytest.approx(0.3 + 0.2 * (200 - 178) / 214)
    assert found["prefill_time_p99"].value == pytest.approx(0.5 + 0.3 * (396 - 392) / 8)
    assert found["prefill_time_p99"].note == (
        "500 ms..800 ms by the engine's buckets; over 4 s around the window of 2 s"
    )
    assert (found["queue_wait_mean"].lower, found["queue_wait_mean"].upper) == (None, None)
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


def test_a_counter_that_is_made_when_it_first_counts_began_at_zero() -> None:
    preempted = load(
        [at(0, {"running": 0}), at(1, {"running": 4}), at(3, {"preemptions": 5}), at(5, {"preemptions": 5})]
    )
    # The counter tells more than the lines of the log do.
    counted = load(preempted.telemetry.engine, preemption_warnings=2)
    assert measure([counted], None, LOOKED_AT)["preemptions"].value == 5
    hits = [at(0, {"prefix_queries": 100}), at(2, {"prefix_queries": 5100, "prefix_hits": 2000}),
            at(5, {"prefix_queries": 10100, "prefix_hits": 2100})]  # fmt: skip
    found = measure([load(hits, start=1)], None, LOOKED_AT)["prefix_hit_rate"]
    assert found.value == pytest.approx(2100 / 10_000)
    assert found.definition == "prefix_hit_rate/1:engine-counters"


def test_a_counter_that_no_page_states_is_not_known() -> None:
    assert growth(load([at(0, {"requests": 1}), at(5, {"requests": 9})]), ["preemptions"], whole=True) is None


def test_a_counter_that_first_counts_after_the_window_did_not_grow_in_it() -> None:
    pages = [at(1, {"requests": 1}), at(4, {"requests": 3}), at(6, {"requests": 5, "preemptions": 7})]
    found = growth(load(pages), ["preemptions"])
    assert found is not None
    assert found.by == {"preemptions": 0}


def test_a_counter_that_a_restarted_engine_has_not_made_yet_begins_at_zero_too() -> None:
    rows: list[dict[Quantity, float]] = [
        {"requests": 90, "preemptions": 4}, {"requests": 95, "preemptions": 6}, {"requests": 3},
        {"requests": 9, "preemptions": 5},
    ]  # fmt: skip
    found = growth(load([at(s, values) for s, values in enumerate(rows)]), ["preemptions", "requests"], whole=True)
    assert found is not None
    assert found.by == {"preemptions": 2 + 5, "requests": 5 + 9}


def test_a_histogram_that_is_made_with_its_first_observation_began_empty() -> None:
    bounds = (1, 2, math.inf)
    pages = [at(1, {"requests": 1}), at(5, {"requests": 9}, queue_wait=Buckets(8, 6.0, bounds, (4, 8, 8)))]
    found = measure([load(pages)], None, ["queue_wait_mean", "queue_wait_p75"])
    assert [value.value for value in found.values()] == [6 / 8, 1.5]


def processes(second: float, *counts: float) -> EngineSample:
    """A sample of as many processes as there are counts."""
    apart = tuple(at(second, {"requests": n}, ttft=Buckets(n, n / 10)) for n in counts)
    total = sum(counts)
    return EngineSample(round(second * SECOND), {"requests": total}, {"ttft": Buckets(total, total / 10)}, pages=apart)


def test_one_of_two_processes_that_restarts_is_seen_although_the_sum_grows() -> None:
    pages = [processes(0, 100, 900), processes(3, 1050, 5), processes(6, 1060, 25)]
    assert falls(pages) == 1
    found = growth(load(pages), ["requests"], whole=True)
    assert found is not None
    assert found.by == {"requests": 960 + 25}
    assert mean_growth(load(pages), "ttft") == pytest.approx(0.1)
    assert falls([processes(0, 100, 900), processes(3, 5, 7)]) == 1  # both at once: one server, restarted once


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
    half = measure([load([at(1, {"drafts": 0}), at(5, {"drafts": 900})])], None, LOOKED_AT)["acceptance_length"]
    assert (half.value, half.note) == (None, "it counts drafts, and not what was accepted")
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
    assert (silent.value, silent.note) == (None, "it counts drafts, and not what was accepted")


def test_where_there_is_no_page_the_lines_of_the_log_tell_of_the_cache() -> None:
    lines = [
        EngineSample(round(s * SECOND), {"running": 8, "kv_usage": usage}, logged=True)
        for s, usage in ((1, 0.9), (2.5, 0.2), (3.5, 0.4))
    ]
    found = measure([load(lines)], None, LOOKED_AT)["kv_usage_p95"]
    assert (found.value, found.n, found.note) == (pytest.approx(0.39), 2, "by lines of the server's log")
    assert found.definition == "kv_usage_p95/1:log"
    both = measure([load([*lines, at(3, {"kv_usage": 0.7})])], None, LOOKED_AT)["kv_usage_p95"]
    assert (both.value, both.n, both.note) == (0.7, 1, None)
    assert "no metrics of the engine were read" in (measure([load(lines)], None, LOOKED_AT)["preemptions"].note or "")


def test_where_no_counter_tells_the_lines_of_the_log_are_counted() -> None:
    found = measure([load([], preemption_warnings=3)], None, LOOKED_AT)["preemptions"]
    assert (found.value, found.note) == (3, "as the server's log counts them")
    assert found.definition == "preemptions/1:log"


def test_no_finished_request_is_no_waiting_time() -> None:
    same = Buckets(5, 2.0, (1, math.inf), (5, 5))
    found = measure([load([at(1, {}, queue_wait=same), at(5, {}, queue_wait=same)])], None, ["queue_wait_mean"])
    assert found["queue_wait_mean"].value is None
    assert "finished no request" in (found["queue_wait_mean"].note or "")


@given(st.floats(0.02, 0.98), st.integers(2, 40), st.integers(1, 5))
def test_quantiles_of_an_even_spread_are_those_of_the_formula(q: float, buckets: int, each: int) -> None:
    """Uniform on [0, buckets]: the q-quantile is q * buckets, in the lowest bucket too."""
    bounds = (*map(float, range(1, buckets + 1)), math.inf)
    counts = (*(float(each * n) for n in range(1, buckets + 1)), float(each * buckets))
    found = bucket_quantile(Buckets(each * buckets, 0, bounds, counts), q)
    assert found is not None
    assert found.upper is not None
    assert found.value == pytest.approx(q * buckets)
    assert found.lower - 1e-9 <= q * buckets <= found.upper + 1e-9
    assert found.upper - found.lower == 1


def test_quantiles_lie_in_the_bucket_of_the_true_one() -> None:
    draw = random.Random(3)
    seen = sorted(draw.lognormvariate(-1, 1) for _ in range(5000))
    bounds = (0.01, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, math.inf)
    buckets = Buckets(5000, math.fsum(seen), bounds, tuple(sum(v <= bound for v in seen) for bound in bounds))
    for q in (0.1, 0.5, 0.9, 0.95, 0.99):
        true = seen[math.ceil(q * 5000) - 1]
        found = bucket_quantile(buckets, q)
        assert found is not None
        bucket = next(at for at, bound in enumerate(bounds) if true <= bound)
        assert (found.lower, found.upper) == ((0.0, *bounds)[bucket], bounds[bucket])
        assert found.lower < found.value <= bounds[bucket]


def test_a_quantile_above_the_highest_bound_is_known_to_lie_above_it_only() -> None:
    found = bucket_quantile(Buckets(10, 99, (1, 2, math.inf), (1, 5, 10)), 0.9)
    assert found == Bucketed(2, 2, None)
    assert bucket_quantile(Buckets(10, 99), 0.9) is None


def test_quantiles_are_those_of_the_documented_function() -> None:
    """prometheus/docs, querying/functions, histogram_quantile: "linear interpolation within a bucket", "the lower bound
    of the lowest bucket is 0" where its upper bound is positive, "the upper bound of the second highest bucket is
    returned" in the highest one."""
    buckets = Buckets(20, 10.0, (0.3, 0.5, 1.0, math.inf), (2, 10, 18, 20))
    wanted = {0.05: (0.15, 0, 0.3), 0.1: (0.3, 0, 0.3), 0.3: (0.4, 0.3, 0.5), 0.7: (0.75, 0.5, 1), 0.95: (1, 1, None)}
    for q, (value, lower, upper) in wanted.items():
        found = bucket_quantile(buckets, q)
        assert found is not None
        assert (found.value, found.lower, found.upper) == (pytest.approx(value), lower, upper)


def test_every_metric_of_the_engine_is_measured_by_name() -> None:
    assert {*LOOKED_AT, "queue_wait_p95", "prefill_time_mean"} <= set(MEASURED)
    assert all(metric(name) for name in MEASURED)


def test_the_window_may_begin_before_the_first_page() -> None:
    found = growth(load([at(3, {"requests": 1}), at(3.5, {"requests": 3})]), ["requests"])
    assert found is not None
    assert (found.by["requests"], found.seconds) == (2, 0.5)
    assert growth(load([at(3, {"requests": 1})]), ["requests"]) is None
    assert load([]).window == Window(2 * SECOND, 4 * SECOND)


def test_a_load_that_its_pages_leave_in_the_middle_leaves_all_unknown() -> None:
    """Two loads: one watched to its end, without a preemption; the other's pages end early, and had seen seven."""

    def pages(until: int, preempted: float) -> Trial:
        buckets = [Buckets(s, 2.0 * s, (4, math.inf), (s, s)) for s in range(until)]
        return load([at(s, {"preemptions": preempted * s, "prefix_hits": s, "prefix_queries": 2 * s,
                            "drafts": s, "accepted_tokens": s}, queue_wait=buckets[s])
                     for s in range(until)], start=0, end=20)  # fmt: skip

    names = ("preemptions", "prefix_hit_rate", "acceptance_length", "queue_wait_mean", "queue_wait_p95")
    assert None not in [each.value for each in measure([pages(21, 0), pages(21, 1)], None, names).values()]
    found = measure([pages(21, 0), pages(5, 1)], None, names)
    assert [each.value for each in found.values()] == [None] * len(names)
    assert "not seen for 16.0 s after the last sample" in (found["preemptions"].note or "")


def test_preemptions_after_the_window_are_those_of_the_load_too() -> None:
    late = record(0, sent_ms=0, chunks_ms=(10, 19_900))
    seen = load([at(s, {"preemptions": 0}) for s in range(6)], start=0, end=5)
    whole = Trial(**{**{name: getattr(seen, name) for name in seen.__slots__}, "records": (late,)})
    assert measure([seen], None, ("preemptions",))["preemptions"].value == 0
    assert measure([whole], None, ("preemptions",))["preemptions"].value is None
