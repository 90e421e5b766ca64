"""The pitfalls of public load generators, each with its right value out of the server's own log.

The numbers are those of the project's list of reported faults; the sources are issues and pull requests.

| # | what went wrong elsewhere | tested |
|--:|---|---|
| 1 | a role-only first delta taken for the first token (vllm#15106) | here |
| 2 | reasoning ignored, or counted twice under its two names (guidellm#737, inference-perf#559) | here |
| 3 | TTFT put among the gaps (vllm#7242, sglang#1005) | here |
| 4 | two clock reads for one event; the usage event stretched E2E (vllm#55508) | here |
| 5 | peak rate counted chunks: below the mean under speculative decoding (vllm#50677) | here |
| 6 | gaps of chunks called gaps of tokens (vllm#46652, #28183) | here |
| 7 | n - 1 divides although the first chunk holds several tokens (aiperf#1279) | here |
| 8 | a stream interval hides the first tokens (mlcommons/endpoints#380) | here |
| 9 | text counted again differs from the server's count (vllm#12288) | here, and tests/unit/test_recount.py |
| 10 | special tokens added to every piece (inference-perf#564) | tests/unit/test_recount.py |
| 11 | a foreign tokenizer, or reasoning text missing (llmperf PR 81) | here, and tests/unit/test_recount.py |
| 12 | missing usage replaced by the requested length (sglang#38868) | here |
| 13 | an error frame inside a 200 stream counted as success (vllm#57519) | here |
| 14 | an empty generation reported as 0 ms (sglang#12389) | here |
| 15 | waiting in the client in no percentile (vllm#54101, guidellm#1048) | here |
| 16 | relative sleeps miss the rate (vllm#21104) | test_load_truth.py, tests/unit/metrics/test_validity.py |
| 17 | a cap with a rate releases bursts (vllm#45502) | here, test_shapes_run.py |
| 18 | the client is the bottleneck (vllm#39963) | tests/unit/metrics/test_validity.py |
| 19 | UTF-8 or JSON cut by socket reads (vllm#38717, #39175) | here, test_sse.py, test_dialects.py |
| 20 | ``choices: []`` or a comment breaks the client (sglang#5451, triton#8082) | here |
| 21 | equal prompts hit the prefix cache (vllm#52884) | here, tests/unit/metrics/test_validity.py |
| 22 | the start-up herd inside the window (guidellm#1078) | test_load_truth.py |
| 23 | one repeated warm-up prompt covers no shapes (sglang#28706) | here |
| 24 | cutting at the end lowers the throughput (guidellm#529) | here |
| 25 | percentiles over the survivors look fine (guidellm#979) | here, tests/unit/metrics/test_measure.py |
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
from loading import CHAT, COMPLETIONS, MS, by_id, endpoint, requests, run
from made import client
from truth_server import Served, TruthServer

from pytest_llmperf.load.driver import Drive
from pytest_llmperf.metrics import LoadFacts, assess, measure
from pytest_llmperf.metrics.request import e2e, icl_gaps, itl_gaps, tpot, ttfot, ttft
from pytest_llmperf.metrics.validity import Validity
from pytest_llmperf.plan import Fixed, LoadProfile, TimeLimits, Uniform, Workload
from pytest_llmperf.records import Outcome, RequestRecord, TokenSource, Trial, Window
from pytest_llmperf.samples import Telemetry

ONE = LoadProfile(concurrency=1, requests=1, warmup=0)
N, GAP = 12, 6


@pytest.fixture(scope="module")
def server() -> Iterator[TruthServer]:
    with TruthServer(ttft=60, gap=GAP, n=N) as running:
        yield running


def ask(
    server: TruthServer, directive: str, workload: Workload = CHAT, *, keep_text: bool = False
) -> tuple[RequestRecord, Served]:
    """One request, as we and as the server saw it."""
    before = len(server.log())
    (record,) = run(server, ONE, workload, directive, keep_text=keep_text).records
    return record, server.wait_log(before + 1)[-1]


def trial(drive: Drive, **changes: Any) -> Trial:
    return Trial(0, 0, drive.records, len(drive.records), drive.window, drive.client, Telemetry(), 0.0, 0, **changes)


def judged(record: RequestRecord) -> Validity:
    window = Window(record.sent_ns or 0, (record.sent_ns or 0) + 10**9)
    return assess(Trial(0, 0, (record,), 1, window, client(), Telemetry(), 0.0, 0), LoadFacts())


def close(ours: float | None, truth_ns: float) -> bool:
    """Nearer to the truth than any of the mistakes is, which all are off by 30 ms or more, on a busy machine too."""
    return ours is not None and abs(ours - truth_ns / 1e9) < 0.020


def test_01_a_role_only_delta_is_no_first_token(server: TruthServer) -> None:
    record, served = ask(server, "role=1")
    assert close(ttft(record), served.sends[0] - served.arrived_ns)
    assert record.first_event_ns is not None
    assert record.sent_ns is not None
    assert record.first_event_ns < served.sends[0]  # the role came at once
    assert len(icl_gaps(record)) == N - 1


@pytest.mark.parametrize("spelling", ["reasoning", "reasoning_content", "reasoning+reasoning_content"])
def test_02_reasoning_is_output_once_under_whatever_name(server: TruthServer, spelling: str) -> None:
    record, served = ask(server, f"reasoning=5 spelling={spelling}", keep_text=True)
    assert close(ttft(record), served.sends[0] - served.arrived_ns)
    assert close(ttfot(record), served.sends[5] - served.arrived_ns)
    assert len(record.chunk_ns) == record.output_tokens == N
    assert record.texts == ("".join(f" w{index}" for index in range(N)),)


def test_03_the_time_to_the_first_token_is_no_gap(server: TruthServer) -> None:
    record, served = ask(server, "")
    gaps = icl_gaps(record)
    assert len(gaps) == len(served.sends) - 1
    assert sum(gaps) == pytest.approx((e2e(record) or 0) - (ttft(record) or 0))
    assert max(gaps) < (ttft(record) or 0)


def test_04_usage_and_finish_events_do_not_stretch_the_response(server: TruthServer) -> None:
    record, served = ask(server, "gap=20 comment=3")  # comments go on between the events
    assert close(e2e(record), served.sends[-1] - served.arrived_ns)
    assert record.closed_ns is not None
    assert record.last_output_ns is not None
    assert record.closed_ns >= record.last_output_ns
    # chunks of one read have one stamp, whatever they are
    record, _ = ask(server, f"joined={N}")
    assert set(record.chunk_ns) == {record.chunk_ns[0]}


def test_05_rates_weigh_chunks_by_their_tokens(server: TruthServer) -> None:
    before = len(server.log())
    result = run(server, LoadProfile(concurrency=2, requests=6, warmup=0), directive="merge=4 continuous=1")
    truth = {served.id: served for served in server.wait_log(before + 6)[before:]}
    found = measure([trial(result)], None, ["output_throughput"])["output_throughput"].value
    start, end = result.window.start_ns, result.window.end_ns
    assert found is not None
    assert found * (end - start) / 1e9 == pytest.approx(6 * N)
    assert {sum(truth[record.index].tokens) for record in result.records} == {N}
    # the rate within a response is at least the mean over it
    (record, *_) = result.records
    tokens = record.chunk_tokens or ()
    peak = max(n / max(1, b - a) for n, (a, b) in zip(tokens[1:], pairwise(record.chunk_ns), strict=True))
    assert peak >= sum(tokens[1:]) / (record.chunk_ns[-1] - record.chunk_ns[0])


def test_06_a_gap_of_chunks_is_no_gap_of_tokens(server: TruthServer) -> None:
    record, served = ask(server, "merge=4 continuous=1 n=16")
    assert len(icl_gaps(record)) == 3
    assert itl_gaps(record) == pytest.approx([gap / 4 for gap in icl_gaps(record) for _ in range(4)])
    assert served.tokens == [4, 4, 4, 4]
    uncounted, _ = ask(server, "merge=4 n=16")
    assert itl_gaps(uncounted) is None  # not told, so not guessed


def test_07_the_first_chunk_may_hold_several_tokens(server: TruthServer) -> None:
    record, served = ask(server, "merge=4 continuous=1 n=16")
    span = (served.sends[-1] - served.sends[0]) / 1e9
    assert close(12 * (tpot(record) or 0), span * 1e9)
    assert tpot(record) == pytest.approx(sum(icl_gaps(record)) / (16 - 4))
    assert record.chunk_tokens == tuple(served.tokens)


def test_08_tokens_that_are_held_back_are_no_silence(server: TruthServer) -> None:
    """Three chunks of tokens without text: no output, so that counts per chunk do not move TTFT; none is lost."""
    counted, served = ask(server, "blank=3 continuous=1 gap=20")
    assert close(ttft(counted), served.sends[3] - served.arrived_ns)
    assert counted.chunk_tokens == (4, *(1,) * (N - 4))
    blind, served = ask(server, "blank=3 gap=20")
    assert close(ttft(blind), served.sends[3] - served.arrived_ns)
    assert (len(blind.chunk_ns), blind.output_tokens) == (N - 3, N)


def test_09_and_11_the_servers_count_is_used_and_a_lie_is_not_hidden(server: TruthServer) -> None:
    honest, served = ask(server, "")
    assert honest.output_tokens == sum(served.tokens) == N
    lying, served = ask(server, "lie=10")
    assert (lying.output_tokens, sum(served.tokens)) == (N + 10, N)
    assert any("length mismatch" in note for note in judged(lying).notes)
    continuous, _ = ask(server, "lie=10 continuous=1")
    assert continuous.output_tokens == sum(continuous.chunk_tokens or ()) == N + 10


def test_12_no_usage_is_unknown_and_never_the_requested_length(server: TruthServer) -> None:
    record, _ = ask(server, "usage=0 n=3")
    assert record.requested_output_tokens == 16
    assert (record.output_tokens, record.token_source) == (None, TokenSource.UNKNOWN)
    assert any("no usage" in note for note in judged(record).notes)
    early, served = ask(server, "n=3")
    assert early.output_tokens == sum(served.tokens) == 3
    assert any("1 of 1 requests stopped early" in note for note in judged(early).notes)


@pytest.mark.parametrize("how", ["error_after=4", "error_after=4 badjson=1", "finish=0 done=0", "error_after=0"])
def test_13_an_error_in_a_good_stream_is_a_failure(server: TruthServer, how: str) -> None:
    record, served = ask(server, f"{how} message=out_of_memory")
    assert record.http_status == 200
    assert record.failed
    assert record.outcome is (Outcome.TRUNCATED if "finish" in how else Outcome.STREAM_ERROR)
    assert len(record.chunk_ns) == len(served.sends)
    if "error" in how:
        assert "out_of_memory" in (record.detail or "")


def test_14_an_empty_generation_is_a_failure_without_latencies(server: TruthServer) -> None:
    record, _ = ask(server, "n=-1")
    assert record.outcome is Outcome.NO_OUTPUT
    assert (ttft(record), tpot(record), e2e(record)) == (None, None, None)


def test_15_waiting_counts_from_the_planned_time() -> None:
    """One slot, and requests three times as fast as it serves: the queue grows, and is seen to grow."""
    with TruthServer(ttft=20, gap=10, n=5, slots=1) as slow:
        load = LoadProfile(request_rate=50, arrival="constant", requests=20, warmup=0)
        result = run(slow, load)
        truth = by_id(slow, 20)
    for record in result.records:
        assert record.scheduled_ns is not None
        assert close(ttft(record), truth[record.index].sends[0] - record.scheduled_ns)
    values = [ttft(record) or 0 for record in result.records]
    assert values[-1] > 5 * values[0]
    assert values[-1] > 0.5 * (result.window.end_ns - result.window.start_ns) / 1e9


def test_17_what_a_cap_holds_back_comes_in_a_burst_and_its_wait_is_latency() -> None:
    """The first two answers take the time of twelve planned requests, which go out as soon as the cap lets them."""
    every = 50 * MS
    load = LoadProfile(request_rate=20, arrival="constant", max_concurrency=2, requests=14, warmup=0)
    assert load.describe() == "hybrid, 20 req/s constant, at most 2 in flight"
    with TruthServer(ttft=1, gap=1, n=2) as server:
        result = run(server, load, directive=lambda index: "ttft=600" if index < 2 else "")
        log = by_id(server, 14)
    records = result.records
    assert {b.scheduled_ns - a.scheduled_ns for a, b in pairwise(records)} == {every}  # type: ignore[operator]
    # The burst is there: five requests in less than the time of four at the planned rate.
    arrived = sorted(served.arrived_ns for served in log.values())
    assert min(b - a for a, b in zip(arrived, arrived[4:], strict=False)) < 4 * every
    # It is neither hidden in a later start nor taken for a slow client: the wait is told apart and is latency.
    for record in records:
        served = log[record.index]
        assert record.scheduled_ns is not None
        assert close(record.cap_wait_ns / 1e9, served.arrived_ns - record.scheduled_ns)
        assert close(ttft(record), served.sends[0] - record.scheduled_ns)
    assert max(record.cap_wait_ns for record in records) > 6 * every
    assert (result.client.slip_p99_ns or 0) < every


@pytest.mark.parametrize("how", ["cuts=9 trickle=1", "cuts=5", "crlf=1 cuts=7", "packed=3", "joined=3", "giant=300000"])
@pytest.mark.parametrize("workload", [CHAT, COMPLETIONS], ids=["chat", "completions"])
def test_19_bytes_may_be_cut_and_joined_anywhere(server: TruthServer, how: str, workload: Workload) -> None:
    record, served = ask(server, f"{how} word=é🌍", workload, keep_text=True)
    assert record.outcome is Outcome.OK, record.detail
    assert len(record.chunk_ns) == len(served.sends) == N
    assert record.texts is not None
    assert record.texts[0].endswith(f" é🌍{N - 1}")
    assert "\ufffd" not in record.texts[0]
    assert all(came > sent - MS / 2 for came, sent in zip(record.chunk_ns, served.sends, strict=True))


@pytest.mark.parametrize("how", ["empty=1", "nulls=1", "comment=2", "empty=1 comment=2 crlf=1", "inline=1", "done=0"])
def test_20_frames_without_output_are_no_output_and_no_fault(server: TruthServer, how: str) -> None:
    record, served = ask(server, how)
    assert record.outcome is Outcome.OK, record.detail
    assert len(record.chunk_ns) == len(served.sends)
    assert record.output_tokens == N
    assert close(ttft(record), served.sends[0] - served.arrived_ns)


def test_20_several_choices_are_one_request(server: TruthServer) -> None:
    plain, _ = ask(server, "choices=3")
    assert (plain.output_tokens, plain.chunk_tokens) == (3 * N, None)
    counted, _ = ask(server, "choices=3 continuous=1", keep_text=True)
    assert (counted.output_tokens, len(counted.chunk_ns)) == (3 * N, 3 * N)
    assert counted.chunk_tokens == (1,) * (3 * N)  # each choice counts for itself
    assert counted.texts == ("".join(f" w{index}" for index in range(N)),) * 3


def test_21_no_two_prompts_begin_alike_and_hits_are_told(server: TruthServer) -> None:
    load = LoadProfile(concurrency=4, requests=20, warmup=4)
    log = len(server.log())
    result = run(server, load, directive="cached=30")
    prompts = [served.body["messages"][0]["content"] for served in server.wait_log(log + 24)[log:]]
    firsts = {" ".join(prompt.partition("]] ")[2].split()[:4]) for prompt in prompts}
    assert len(firsts) == 24
    assert any("prefix cache hits" in reason for reason in assess(trial(result), LoadFacts()).reasons)
    again = {request.wire for request in requests(endpoint(server), load, seed=1)}
    assert len(again) == 24


def test_23_the_warm_up_has_the_mix_of_the_load() -> None:
    mixed = Workload(name="w", input=Uniform(low=20, high=400), output=Uniform(low=2, high=40))
    with TruthServer(ttft=2, gap=0.2) as quick:
        result = run(quick, LoadProfile(concurrency=4, requests=30, warmup=12), mixed)
    warm = [record for record in result.records if record.phase == "warmup"]
    assert len({record.requested_output_tokens for record in warm}) > 6
    assert len({record.requested_input_tokens for record in warm}) > 6


def test_24_cutting_at_the_end_takes_nothing_from_the_rate(server: TruthServer) -> None:
    """Requests that never finish: all tokens that came count, as the server sent them."""
    long = Workload(name="w", input=Fixed(tokens=20), output=Fixed(tokens=5000))
    with TruthServer(ttft=10, gap=5, continuous=True) as endless:
        load = LoadProfile(concurrency=3, requests=3, warmup=0)
        result = run(endless, load, long, limits=TimeLimits(run=0.8))
        truth = by_id(endless, 3)
    assert {record.outcome for record in result.records} == {Outcome.CUT}
    start, end = result.window.start_ns, result.window.end_ns
    sent = sum(start <= at <= end for served in truth.values() for at in served.sends)
    found = measure([trial(result)], None, ["output_throughput", "error_rate"])
    rate = found["output_throughput"].value
    assert rate is not None
    assert sent > 100
    assert rate * (end - start) / 1e9 == pytest.approx(sent, abs=9)  # some were on their way
    assert found["error_rate"].value is None  # cut by us: neither good nor failed


def test_25_failures_are_in_every_percentile_and_in_the_share(server: TruthServer) -> None:
    load = LoadProfile(concurrency=2, requests=12, warmup=0)
    result = run(server, load, directive=lambda index: "status=503" if index % 3 else "")
    wanted = ["ttft_p50", "ttft_p90", "error_rate", "goodput_share", "tpot_p50"]
    found = measure([trial(result)], {"ttft": 60.0}, wanted)
    assert found["error_rate"].value == pytest.approx(8 / 12)
    assert found["goodput_share"].value == pytest.approx(4 / 12)
    assert found["ttft_p90"].value is None
    assert "8 of 12 requests failed" in (found["ttft_p90"].note or "")
    single, _ = ask(server, "n=1")
    assert tpot(single) is None  # n/a: a 0 would pass any ceiling


# --- ways to misbehave that have no number


@pytest.mark.parametrize(
    ("how", "outcome", "detail"),
    [
        ("coding=gzip", Outcome.PROTOCOL_ERROR, "the response is gzip"),
        ("raw=html", Outcome.PROTOCOL_ERROR, "not an event stream but text/html"),
        ("raw=json", Outcome.PROTOCOL_ERROR, "not an event stream but application/json"),
        ("kind=text/plain", Outcome.OK, None),  # the name is wrong, the stream is right
        ("interim=2", Outcome.OK, None),
        ("slow_head=90", Outcome.OK, None),
        ("status=429 retry_after=30", Outcome.HTTP_STATUS, "HTTP 429 Too Many Requests (Retry-After: 30): scripted"),
    ],
)
def test_answers_that_are_not_as_they_should_be(
    server: TruthServer, how: str, outcome: Outcome, detail: str | None
) -> None:
    record, served = ask(server, how)
    assert record.outcome is outcome, record.detail
    assert (record.detail or "").startswith(detail or "")
    if outcome is Outcome.OK:
        assert close(ttft(record), served.sends[0] - served.arrived_ns)
        assert len(record.chunk_ns) == N


def test_a_stream_that_never_ends_is_ended_by_the_limits(server: TruthServer) -> None:
    result = run(server, ONE, directive="raw=flood", limits=TimeLimits(request=0.4, run=20))
    (record,) = result.records
    assert record.outcome in (Outcome.DEADLINE, Outcome.PROTOCOL_ERROR)
    assert record.chunk_ns
