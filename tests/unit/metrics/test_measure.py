"""Metrics of whole trials against numpy and against numbers worked out by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made import MS, SECOND, client, failure, record, trial
from scipy.stats import theilslopes

from pytest_llmperf.metrics.chunks import Flat
from pytest_llmperf.metrics.invariants import check_invariants
from pytest_llmperf.metrics.rates import TokenCount, spread_tokens
from pytest_llmperf.metrics.trial import Counts, InFlight, counts, in_flight, measure, slowest
from pytest_llmperf.records import ClientStats, Outcome, Phase, RequestRecord, Trial, Window
from pytest_llmperf.samples import GpuSample, HostSample, Telemetry


def value(trials: Trial | list[Trial], name: str, slo: dict[str, float] | None = None) -> float | None:
    several = trials if isinstance(trials, list) else [trials]
    return measure(several, slo, [name])[name].value


def note(t: Trial, name: str, slo: dict[str, float] | None = None) -> str:
    return measure([t], slo, [name])[name].note or ""


# Latencies


@given(st.lists(st.integers(1, 5000), min_size=1, max_size=80))
def test_quantiles_and_mean_are_numpys(ttfts_ms: list[int]) -> None:
    t = trial([record(i, chunks_ms=(ms, ms + 10)) for i, ms in enumerate(ttfts_ms)])
    seconds = np.array(ttfts_ms) / 1000
    found = measure([t], None, ["ttft_mean", "ttft_p50", "ttft_p90", "ttft_p99_9"])
    assert found["ttft_mean"].value == pytest.approx(seconds.mean())
    for name, percent in (("ttft_p50", 50), ("ttft_p90", 90), ("ttft_p99_9", 99.9)):
        assert found[name].value == pytest.approx(np.percentile(seconds, percent))
    assert {m.n for m in found.values()} == {len(ttfts_ms)}


def test_warm_up_and_cut_requests_take_no_part_in_latencies() -> None:
    t = trial(
        [
            record(0, chunks_ms=(9000,), phase=Phase.WARMUP),
            record(1, chunks_ms=(100,)),
            record(2, chunks_ms=(7000,), outcome=Outcome.CUT),
        ]
    )
    found = measure([t], None, ["ttft_p50"])["ttft_p50"]
    assert (found.value, found.n) == (pytest.approx(0.1), 1)


def test_a_failed_request_is_slower_than_any_finished_one() -> None:  # pitfall 25
    t = trial([record(0, chunks_ms=(100,)), record(1, chunks_ms=(200,)), failure(2)])
    assert value(t, "ttft_p50") == pytest.approx(0.2)
    worst = measure([t], None, ["ttft_p95"])["ttft_p95"]
    assert worst.value is None
    assert worst.n == 3
    assert worst.note == "1 of 3 requests failed: the quantile lies among them"


def test_a_request_that_failed_after_fast_output_is_no_fast_request() -> None:
    t = trial([failure(i, Outcome.TRUNCATED, chunks_ms=(1, 2), first_byte_ns=MS) for i in range(3)])
    assert value(t, "ttft_p50") is None
    assert value(t, "icl_p50") is None
    assert value(t, "ttft_mean") is None


def test_sixty_five_percent_errors_leave_no_finite_median() -> None:  # pitfall 25
    records = [record(i, chunks_ms=(10, 20)) for i in range(7)] + [failure(i) for i in range(7, 20)]
    for family in ("ttft", "tpot", "e2e", "icl"):
        assert value(trial(records), f"{family}_p95") is None
    assert value(trial(records), "error_rate") == pytest.approx(0.65)


def test_the_mean_is_over_ok_requests_and_says_so() -> None:
    t = trial([record(0, chunks_ms=(100,)), record(1, chunks_ms=(300,)), failure(2)])
    found = measure([t], None, ["ttft_mean"])["ttft_mean"]
    assert (found.value, found.n) == (pytest.approx(0.2), 2)
    assert found.note == "1 of 3 requests failed and are not in the mean"


def test_requests_without_a_tpot_are_left_out_of_n_and_named() -> None:
    t = trial([record(0), record(1, chunks_ms=(5,), output_tokens=1), record(2, output_tokens=None)])
    found = measure([t], None, ["tpot_p50"])["tpot_p50"]
    assert (found.n, found.excluded, found.value) == (1, 2, pytest.approx(0.010))
    assert "1 of 3 requests have no token count" in (found.note or "")
    assert "1 of 3 requests have a single token or time stamp" in (found.note or "")


def test_a_tpot_of_nobody_is_none_and_not_zero() -> None:
    t = trial([record(i, chunks_ms=(5,), output_tokens=1) for i in range(3)])
    assert value(t, "tpot_p95") is None
    assert value(t, "tpot_mean") is None


def test_an_assumed_first_chunk_is_marked_and_a_counted_one_is_not() -> None:
    assert "taken as 1" in note(trial([record()]), "tpot_mean")
    assert note(trial([record(chunk_tokens=(1, 1, 1))]), "tpot_mean") == ""


def test_gaps_are_pooled_over_requests_and_tokens() -> None:
    t = trial(
        [
            record(0, chunks_ms=(100, 110, 130), chunk_tokens=(1, 1, 4), output_tokens=6),
            record(1, chunks_ms=(100, 140), chunk_tokens=(1, 1), output_tokens=2),
        ]
    )
    icl = measure([t], None, ["icl_p50", "icl_mean"])
    assert icl["icl_p50"].n == 3
    assert icl["icl_mean"].value == pytest.approx((10 + 20 + 40) / 3 / 1000)
    itl = measure([t], None, ["itl_p50"])["itl_p50"]
    assert itl.n == 6
    assert itl.value == pytest.approx(np.median([10, 5, 5, 5, 5, 40]) / 1000)


def test_itl_needs_counts_per_chunk_and_does_not_borrow_icl() -> None:  # pitfall 6
    assert value(trial([record()]), "itl_p50") is None
    assert value(trial([record()]), "icl_p50") is not None
    assert "no token count per chunk" in note(trial([record()]), "itl_p50")


def test_only_a_failure_to_connect_is_beyond_every_connect_time() -> None:
    opened = record(0, sent_ms=2, connect_start_ns=0, connected_ns=2 * MS)
    t = trial([opened, failure(1, Outcome.HTTP_STATUS), record(2)])
    assert measure([t], None, ["connect_time_p50"])["connect_time_p50"].values == (pytest.approx(0.002),)
    t = trial([opened, failure(1, Outcome.CONNECT_TIMEOUT)])
    assert value(t, "connect_time_p99") is None


def test_what_has_no_source_is_none_with_a_note_and_an_unknown_name_is_an_error() -> None:
    assert value(trial([record()]), "queue_wait_p50") is None
    assert value(trial([record()]), "kv_usage_p95") is None
    assert note(trial([record()]), "kv_usage_p95")
    with pytest.raises(KeyError, match="ttft_p95"):
        measure([trial([record()])], None, ["ttft_p95th"])


def test_an_empty_trial_measures_nothing_and_raises_nothing() -> None:
    found = measure([trial([])], {"ttft": 1.0})
    assert found["ttft_p50"].value is None
    assert found["error_rate"].value is None
    assert found["goodput_share"].value is None
    assert found["output_throughput"].value == 0


# Rates


def test_tokens_count_where_their_time_stamps_lie() -> None:  # pitfalls 22, 24
    straggler = record(0, sent_ms=-500, chunks_ms=(100, 600, 700), phase=Phase.WARMUP)  # -400, 100, 200 ms
    late = record(1, sent_ms=800, chunks_ms=(100, 300, 500))  # 900, 1100, 1300 ms
    t = trial([straggler, late])
    assert value(t, "output_throughput") == pytest.approx(2 + 1)


def test_cut_and_failed_requests_count_with_the_tokens_they_brought() -> None:  # pitfall 24
    cut = record(0, chunks_ms=(100, 200), outcome=Outcome.CUT, output_tokens=None, chunk_tokens=(3, 4))
    broken = record(1, chunks_ms=(100,), outcome=Outcome.CONNECTION_LOST, output_tokens=None, chunk_tokens=(5,))
    assert value(trial([cut, broken, record(2)]), "output_throughput") == pytest.approx(7 + 5 + 3)


def test_unknown_token_counts_are_left_out_and_said() -> None:  # pitfall 12
    t = trial([record(0), record(1, output_tokens=None, requested_output_tokens=1000)])
    assert value(t, "output_throughput") == pytest.approx(3)
    assert "lower bound: 1 of 2 requests" in note(t, "output_throughput")


def test_no_token_counts_at_all_is_not_measured() -> None:
    t = trial([record(i, output_tokens=None) for i in range(2)])
    for name in ("output_throughput", "total_throughput", "tpot_mean"):
        assert value(t, name) is None
        assert note(t, name)


def test_an_empty_reply_adds_no_throughput() -> None:  # pitfall 14
    t = trial([failure(i, Outcome.NO_OUTPUT) for i in range(4)])
    assert value(t, "output_throughput") == 0
    assert value(t, "ttft_p50") is None
    assert value(t, "request_throughput") == 0


def test_total_throughput_adds_prompts_when_their_first_output_came() -> None:
    inside = record(0, prompt_tokens=100)
    outside = record(1, sent_ms=950, prompt_tokens=1000)
    assert value(trial([inside, outside]), "total_throughput") == pytest.approx(103)


def test_request_throughput_counts_good_ends_inside_the_window() -> None:
    t = trial([record(0), record(1, sent_ms=950), failure(2), record(3, outcome=Outcome.CUT)], start_ms=0, end_ms=500)
    assert value(t, "request_throughput") == pytest.approx(1 / 0.5)


def test_pooled_rates_are_totals_over_total_time() -> None:
    short = trial([record(0)], end_ms=500)
    long = trial([record(i) for i in range(4)], end_ms=1500)
    assert value([short, long], "output_throughput") == pytest.approx((3 + 12) / 2.0)
    assert value([short, long], "request_throughput") == pytest.approx(5 / 2.0)


def test_the_rate_of_no_part_of_the_window_can_exceed_its_peak() -> None:  # pitfall 5
    records = [
        record(i, sent_ms=37 * i, chunks_ms=(20, 90, 95), chunk_tokens=(1, 12, 3), output_tokens=16) for i in range(20)
    ]
    t = trial(records, end_ms=1000)
    bins = [0.0] * 10
    for r in records:
        for stamp, share in spread_tokens(r) or ():
            if 0 <= stamp < SECOND:
                bins[stamp * 10 // SECOND] += share
    mean = value(t, "output_throughput")
    assert mean is not None
    assert max(bins) * 10 >= mean
    assert sum(bins) == pytest.approx(mean)


# Goodput


def test_goodput_wants_every_limit_kept() -> None:
    fast = record(0, chunks_ms=(100, 110, 120))
    slow_start = record(1, chunks_ms=(600, 610, 620))
    slow_tokens = record(2, chunks_ms=(100, 200, 300))
    slo = {"ttft": 0.5, "tpot": 0.03}
    t = trial([fast, slow_start, slow_tokens])
    assert value(t, "goodput", slo) == pytest.approx(1)
    assert value(t, "goodput_share", slo) == pytest.approx(1 / 3)


def test_failures_are_in_the_denominator_of_the_share_and_cut_requests_are_not() -> None:  # pitfall 25
    t = trial([record(0), record(1, outcome=Outcome.CUT), failure(2), failure(3)])
    assert value(t, "goodput_share", {"ttft": 1.0}) == pytest.approx(1 / 3)
    assert value(t, "error_rate") == pytest.approx(2 / 3)


def test_a_single_token_is_not_bound_by_tpot_but_an_unknown_count_is_no_pass() -> None:  # pitfall 25
    slo = {"tpot": 0.03}
    assert value(trial([record(0, chunks_ms=(10,), output_tokens=1)]), "goodput_share", slo) == 1
    t = trial([record(0, output_tokens=None)])
    assert value(t, "goodput_share", slo) is None
    assert value(t, "goodput", slo) is None
    assert "1 of 1 requests lack" in note(t, "goodput", slo)


def test_goodput_without_limits_is_not_measured() -> None:
    assert value(trial([record()]), "goodput") is None
    assert "slo=" in note(trial([record()]), "goodput")


# Resources


def with_host(*samples: tuple[int, int, float], **changes: object) -> Trial:
    host = tuple(HostSample(ms * MS, rss, cpu, 1) for ms, rss, cpu in samples)
    return trial([record()], telemetry=Telemetry(host=host), **changes)


def test_memory_of_a_cpu_engine_is_the_largest_rss() -> None:
    t = with_host((0, 100, 0.0), (500, 300, 1.0), (900, 200, 2.0))
    assert value(t, "peak_memory") == 300
    assert value([t, with_host((0, 700, 0.0), (1000, 500, 0.0))], "peak_memory") == 700


def test_memory_of_a_gpu_engine_is_summed_over_its_gpus_at_one_time() -> None:
    gpu = (
        GpuSample(0, 0, 50, 40),
        GpuSample(0, 1, 60, 50),
        GpuSample(1, 0, 90, 80),
        GpuSample(1, 1, 20, 10),
        GpuSample(SECOND, 0, 20, 20),
        GpuSample(SECOND, 1, 30, 30),
        GpuSample(SECOND + 1, 0, 99, 99),  # the other GPU did not answer: no sum
    )
    t = trial([record()], telemetry=Telemetry(host=(HostSample(0, 12345, 0.0, 1),), gpu=gpu, gpus=(0, 1)))
    assert value(t, "peak_memory") == 90


def test_host_memory_does_not_stand_in_for_that_of_gpus() -> None:
    host = tuple(HostSample(at * MS, 12345, 0.0, 1) for at in range(5))
    dark = trial([record()], telemetry=Telemetry(host, (), (0,), ("GPU memory not measured: no NVIDIA driver",)))
    for name in ("peak_memory", "memory_growth"):
        assert value(dark, name) is None
        assert note(dark, name) == (
            "host memory does not stand in for that of GPUs; GPU memory not measured: no NVIDIA driver"
        )
    half = tuple(GpuSample(at, 0, 50, 40) for at in range(5))
    one_of_two = trial([record()], telemetry=Telemetry(host, half, (0, 1), ("GPU 1 does not answer: lost",)))
    assert value(one_of_two, "peak_memory") is None
    assert "GPU 1 does not answer" in note(one_of_two, "peak_memory")


def test_where_the_driver_tells_no_processes_whole_cards_count_and_are_named() -> None:
    t = trial(
        [record()], telemetry=Telemetry(gpu=(GpuSample(0, 0, 50, None), GpuSample(SECOND, 0, 70, None)), gpus=(0,))
    )
    assert value(t, "peak_memory") == 70
    assert "whole GPUs" in note(t, "peak_memory")


SECONDS = 30.0


@pytest.mark.parametrize("seed", range(3))
def test_memory_growth_is_the_theil_sen_slope_inside_the_window(seed: int) -> None:
    generator = np.random.default_rng(seed)
    at = np.arange(-2000, 1000 * SECONDS + 2000, 200)
    sizes = (1e9 + 3000 * at / 1000 + generator.normal(0, 2000, len(at))).astype(int)
    sizes[at < 0] = 5  # what went before the window is no growth
    window = Window(0, round(SECONDS * 1e9))
    t = with_host(*((int(ms), int(size), 0.0) for ms, size in zip(at, sizes, strict=True)), window=window)
    inside = (at >= 0) & (at <= 1000 * SECONDS)
    assert value(t, "memory_growth") == pytest.approx(theilslopes(sizes[inside], at[inside] / 1000).slope)


def test_one_step_is_no_growth_and_a_leak_is() -> None:
    window = Window(0, round(SECONDS * 1e9))
    at = range(0, int(1000 * SECONDS) + 1, 200)
    step = with_host(*((ms, 1000 if ms < 5000 else 5000, 0.0) for ms in at), window=window)
    assert value(step, "memory_growth") == 0
    leak = with_host(*((ms, 1000 + 4096 * (ms // 2000), 0.0) for ms in at), window=window)
    assert value([step, leak], "memory_growth") == pytest.approx(2048, rel=0.1)


def test_a_short_window_has_no_slope() -> None:
    t = with_host(*((ms, ms, 0.0) for ms in range(0, 1000, 200)))
    assert value(t, "memory_growth") is None
    assert note(t, "memory_growth") == "a slope needs samples over 10 s of a window; measure for longer"


def test_cpu_seconds_and_tokens_are_taken_between_the_same_two_samples() -> None:
    # chunks at 100, 110 and 120 ms; the samples in the window lie at 105 and 500 ms: two tokens, 0.4 s.
    t = with_host((-50, 1, 0.0), (105, 1, 1.0), (500, 1, 1.4), (2000, 1, 9.0))
    assert value(t, "cpu_seconds_per_mtok") == pytest.approx(0.4 / 2 * 1e6)


def test_cpu_seconds_are_not_blamed_on_tokens_that_nobody_counted() -> None:
    host = (HostSample(0, 1, 0.0, 1), HostSample(900 * MS, 1, 1.0, 1))
    t = trial([record(0), record(1, output_tokens=None)], telemetry=Telemetry(host=host))
    assert value(t, "cpu_seconds_per_mtok") is None


def test_memory_without_samples_is_not_measured_and_never_zero() -> None:
    t = trial([record()], telemetry=Telemetry(notes=("no NVIDIA driver",)))
    assert value(t, "peak_memory") is None
    assert "no NVIDIA driver" in note(t, "peak_memory")


# Counts


def test_attempted_is_ok_failed_and_cut() -> None:
    warm_up, cut = record(0, phase=Phase.WARMUP), record(5, outcome=Outcome.CUT)
    t = trial([warm_up, record(1), failure(2), failure(3, Outcome.DEADLINE), failure(4), cut])
    c = counts(t)
    assert (c.attempted, c.ok, c.failed, c.cut, c.warmup) == (5, 1, 3, 1, 1)
    assert c.attempted == c.ok + c.failed + c.cut
    assert list(c.failures.items()) == [("connection_lost", 2), ("deadline", 1)]


@given(st.lists(st.tuples(st.integers(-500, 1500), st.integers(0, 900)), max_size=25))
def test_in_flight_is_never_negative_and_its_mean_is_the_area(spans: list[tuple[int, int]]) -> None:
    records = [
        record(i, sent_ms=start, chunks_ms=(), closed_ns=(start + length) * MS, outcome=Outcome.CUT)
        for i, (start, length) in enumerate(spans)
    ]
    found = in_flight(trial(records))
    area = sum(max(0, min(start + length, 1000) - max(start, 0)) for start, length in spans)
    assert found.mean == pytest.approx(area / 1000)
    assert found.maximum >= 0
    assert found.mean <= found.maximum + 1e-9


def test_in_flight_of_a_closed_loop_of_two_slots_is_two() -> None:
    records = [record(2 * i + slot, sent_ms=100 * i, chunks_ms=(50, 100)) for i in range(10) for slot in (0, 1)]
    found = in_flight(trial(records))
    assert (found.mean, found.maximum) == (pytest.approx(2.0), 2)


def test_slowest_names_the_extremes_and_one_example_of_each_failure() -> None:
    records = [record(i, chunks_ms=(10 * i + 1, 10 * i + 2)) for i in range(20)]
    records += [failure(20), failure(21), failure(22, Outcome.DEADLINE)]
    chosen: tuple[RequestRecord, ...] = slowest([trial(records)])
    assert {19, 18, 17, 16, 15, 20, 22} <= {r.index for r in chosen}
    assert 21 not in {r.index for r in chosen}


# Invariants


def test_a_sound_trial_violates_nothing() -> None:
    records = [
        record(0, phase=Phase.WARMUP),
        record(1, chunk_tokens=(1, 1, 1)),
        failure(2),
        record(3, outcome=Outcome.CUT, closed_ns=None),
    ]
    assert check_invariants(trial(records)) == ()


@pytest.mark.parametrize(
    ("broken", "complaint"),
    [
        (record(chunk_ns=(120 * MS, 110 * MS), first_output_ns=120 * MS, last_output_ns=110 * MS), "backwards"),
        (record(last_output_ns=130 * MS, closed_ns=130 * MS), "not the first or last output"),
        (record(chunk_tokens=(1, 1)), "2 token counts for 3 chunks"),
        (record(chunk_tokens=(1, -1, 3)), "negative number of tokens"),
        (record(chunks_ms=()), "ok without output"),
        (record(sent_ns=None), "ok without a send"),
        (record(sent_ms=500, first_byte_ns=100 * MS), "before sent"),
        (record(closed_ns=50 * MS), "before last_output"),
        (record(first_answer_ns=50 * MS), "first answer is not among"),
        (record(chunks_ms=(), first_output_ns=1, outcome=Outcome.TRUNCATED), "output without a chunk"),
    ],
)
def test_each_violation_is_named_with_its_request(broken: RequestRecord, complaint: str) -> None:
    found = check_invariants(trial([broken]))
    assert any(complaint in line and "request 0" in line for line in found), found


def test_clocks_that_disagree_by_a_hair_are_no_violation() -> None:
    assert check_invariants(trial([record(sent_ms=100, first_byte_ns=99 * MS)])) == ()


def test_many_violations_are_summed_up() -> None:
    found = check_invariants(trial([record(i, chunk_tokens=(1,)) for i in range(10)]))
    assert len(found) == 4
    assert found[-1] == "and 7 more"


def test_two_records_of_one_request_and_a_window_inside_out_are_violations() -> None:
    t = trial([record(0), record(0)], window=Window(10, 5))
    assert check_invariants(t) == ("two records have the same index", "the window ends before it starts")


def test_failures_beside_requests_without_a_value_are_no_measurement() -> None:
    t = trial([record(0), record(1), failure(2)])  # the server counts no tokens per chunk
    found = measure([t], None, ["itl_p50"])["itl_p50"]
    assert (found.value, found.values, found.n) == (None, None, 0)
    assert "no token count per chunk" in (found.note or "")


# Gaps between chunks that the client could not tell apart


@pytest.mark.parametrize("stats", [client(shared_reads=2), client(unstamped_reads=2)])
def test_reads_beyond_a_thousandth_make_icl_and_itl_invalid_and_nothing_else(stats: ClientStats) -> None:
    good = [record(i, chunk_tokens=(1, 1, 1)) for i in range(5)]
    sound, doubtful = measure([trial(good)], {"ttft": 1.0}), measure([trial(good, client=stats)], {"ttft": 1.0})
    for name, found in doubtful.items():
        if name.startswith(("icl", "itl")):
            assert (found.value, found.values) == (None, None)
            assert "(at most 0.1 %): give the client a CPU core of its own" in (found.invalid or "")
            assert found.n == sound[name].n
        else:
            assert found == sound[name]


def test_a_thousandth_itself_is_allowed_and_user_stamps_are_not_unstamped_reads() -> None:
    for stats in (
        client(shared_reads=1),
        client(unstamped_reads=1),
        client(stamps="user", unstamped_reads=1000),
        client(reads=0, output_chunks=0),
    ):
        assert measure([trial([record()], client=stats)], None, ["icl_p50"])["icl_p50"].invalid is None


def test_one_bad_replay_spoils_the_pooled_gaps() -> None:
    trials = [trial([record()]), trial([record()], replay=1, client=client(shared_reads=500))]
    found = measure(trials, None, ["icl_p50", "ttft_p50"])
    assert "50 % of the chunks came in one read" in (found["icl_p50"].invalid or "")
    assert found["ttft_p50"].value is not None


def test_goodput_with_a_limit_on_gaps_rests_on_them() -> None:
    bad = trial([record()], client=client(shared_reads=500))
    assert measure([bad], {"icl": 1.0}, ["goodput", "goodput_share"])["goodput"].invalid is not None
    assert measure([bad], {"ttft": 1.0}, ["goodput"])["goodput"].value == pytest.approx(1.0)


def test_what_was_not_measured_anyway_says_why_and_not_that_it_is_invalid() -> None:
    found = measure([trial([record()], client=client(shared_reads=500))], None, ["itl_p50"])["itl_p50"]
    assert (found.invalid, found.value) == (None, None)
    assert "no token count per chunk" in (found.note or "")


# Invariants of the whole trial


def test_a_request_that_touches_the_window_is_in_flight_for_no_time() -> None:
    """Its end sorts before its beginning; counted, it would take one from the requests in flight."""
    t = trial([record(0, chunks_ms=(100,)), record(1, sent_ms=100, chunks_ms=(200,))], start_ms=100, end_ms=200)
    found = in_flight(t)
    assert (found.mean, found.maximum, found.lowest) == (1.0, 1, 0)


def test_a_throughput_above_its_own_peak_is_a_violation(monkeypatch: pytest.MonkeyPatch) -> None:  # pitfall 5
    t = trial([record(i, sent_ms=100 * i) for i in range(9)])
    assert check_invariants(t) == ()
    # A peak of chunks beside a mean of tokens, as benchmarks have reported it under speculative decoding.
    monkeypatch.setattr("pytest_llmperf.metrics.invariants.tokens_between", lambda *_: TokenCount(1e6, 9, 0))
    (broken,) = check_invariants(t)
    assert "peak output rate" in broken


def test_requests_that_do_not_add_up_or_are_fewer_than_none_in_flight_are_violations(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    t = trial([record(0)])
    monkeypatch.setattr("pytest_llmperf.metrics.invariants.counts", lambda _: Counts(3, 1, 0, 1, 0, {}))
    monkeypatch.setattr("pytest_llmperf.metrics.invariants.in_flight", lambda _: InFlight(2.0, 1, -1))
    assert check_invariants(t) == (
        "attempted 3 != ok 1 + failed 0 + cut 1",
        "-1 requests in flight",
        "2 requests in flight on average, 1 at most",
    )


def test_the_gaps_asked_are_those_that_icl_is_made_of(monkeypatch: pytest.MonkeyPatch) -> None:
    """TTFT appended to the gaps, as in pitfall 3, would be seen."""
    honest = Flat.gaps_ns

    def off_by_one(flat: Flat) -> tuple[Any, Any]:
        found, starts = honest(flat)
        return found + 1, starts

    monkeypatch.setattr(Flat, "gaps_ns", off_by_one)
    assert check_invariants(trial([record(7)])) == ("request 7: the gaps between chunks do not add up to last - first",)


def test_absurd_counts_cost_neither_memory_nor_an_itl() -> None:
    absurd = record(chunk_tokens=(1, 1_000_000_000, 1_000_000_000), output_tokens=2_000_000_001)
    assert measure([trial([absurd])], None, ["itl_p95"])["itl_p95"].value is None


def test_the_prefix_hit_rate_is_cached_over_all_prompt_tokens_of_ok_requests() -> None:
    ok = [record(0, cached_tokens=8), record(1, cached_tokens=0, prompt_tokens=30)]
    lost = failure(2, cached_tokens=10, prompt_tokens=10)
    t = trial([*ok, lost, record(3, cached_tokens=10, phase=Phase.WARMUP)])
    found = measure([t], None, ["prefix_hit_rate"])["prefix_hit_rate"]
    assert (found.value, found.n, found.untold) == (8 / 40, 2, 0)


def test_a_prefix_hit_rate_that_the_server_keeps_to_itself_is_not_measured() -> None:
    silent = measure([trial([record(0), record(1)])], None, ["prefix_hit_rate"])["prefix_hit_rate"]
    assert (silent.value, silent.n) == (None, 0)
    assert "states no cached prompt tokens" in str(silent.note)
    half = measure([trial([record(0), record(1, cached_tokens=5)])], None, ["prefix_hit_rate"])["prefix_hit_rate"]
    assert (half.value, half.untold, half.note) == (0.5, 0.5, "1 of 2 requests have no count of cached prompt tokens")
    nobody = measure([trial([failure(0)])], None, ["prefix_hit_rate"])["prefix_hit_rate"]
    assert (nobody.value, nobody.note) == (None, "no request finished well")
