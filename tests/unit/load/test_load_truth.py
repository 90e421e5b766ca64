"""What the client measures against what the server logged of its own sends."""

from __future__ import annotations

import gc

import pytest
from loading import CHAT, COMPLETIONS, MS, by_id, median, run
from truth_server import Served, TruthServer

from pytest_llmperf.load import polling, transport
from pytest_llmperf.load.clock import KernelStamps
from pytest_llmperf.load.driver import Drive, Progress
from pytest_llmperf.plan import LoadProfile, Uniform, Workload
from pytest_llmperf.records import Outcome, Phase, TokenSource

MIXED = Workload(name="w", input=Uniform(low=20, high=400), output=Uniform(low=2, high=40))


def agree(result: Drive, truth: dict[int, Served]) -> None:
    """TTFT, TPOT, gaps, E2E and token counts of every request against the log; times in ns."""
    ttft: list[float] = []
    tpot: list[float] = []
    gaps: list[float] = []
    e2e: list[float] = []
    for record in result.records:
        served = truth[record.index]
        assert record.outcome is Outcome.OK, record.detail
        assert record.sent_ns is not None
        assert record.first_output_ns is not None
        assert record.last_output_ns is not None
        assert len(record.chunk_ns) == len(served.sends)
        assert record.output_tokens == sum(served.tokens) == record.requested_output_tokens
        assert record.prompt_tokens == served.prompt_tokens
        # A chunk cannot arrive before it was sent; the clocks are one, the offset is good to some µs.
        assert all(came > left - MS / 2 for came, left in zip(record.chunk_ns, served.sends, strict=True))
        ttft.append(abs(record.first_output_ns - record.sent_ns - (served.sends[0] - served.arrived_ns)))
        e2e.append(abs(record.last_output_ns - record.sent_ns - (served.sends[-1] - served.arrived_ns)))
        came, left = record.chunk_ns, served.sends
        gaps += [abs((b - a) - (d - c)) for a, b, c, d in zip(came, came[1:], left, left[1:], strict=False)]
        if len(came) > 1:
            measured = (came[-1] - came[0]) / (sum(served.tokens) - served.tokens[0])
            tpot.append(abs(measured - (left[-1] - left[0]) / (sum(served.tokens) - served.tokens[0])))
    limit = 2 * MS if result.client.stamps == "kernel" else 10 * MS
    for errors in (ttft, e2e, gaps, tpot):
        assert median(errors) < limit


@pytest.mark.parametrize("workload", [CHAT, COMPLETIONS, MIXED], ids=["chat", "completions", "mixed"])
def test_a_closed_loop_agrees_with_the_server(workload: Workload) -> None:
    with TruthServer(ttft=30, gap=5) as server:
        progress = Progress()
        result = run(server, LoadProfile(concurrency=8, requests=24), workload, progress=progress)
        truth = by_id(server, 40)
    agree(result, truth)
    assert result.complete
    assert len(result.records) == 40
    assert (progress.sent, progress.finished, progress.failed, progress.in_flight) == (40, 40, 0, 0)
    # eight connections, opened before the clock started, carried everything
    assert {record.connection for record in result.records} == set(range(8))
    assert {served.request_number > 0 for served in truth.values()} == {False, True}
    opened = [record for record in result.records if record.connected_ns is not None]
    assert len(opened) == 8
    assert all(record.connected_ns <= result.monotonic_start_ns for record in opened if record.connected_ns)
    # never more in flight than slots, by the server's own log
    edges = sorted([(s.arrived_ns, 1) for s in truth.values()] + [(s.sends[-1], -1) for s in truth.values()])
    level, peak = 0, 0
    for _, step in edges:
        level += step
        peak = max(peak, level)
    assert peak <= 8
    assert all(record.token_source is TokenSource.USAGE for record in result.records)
    assert result.client.slip_p99_ns is None
    assert result.client.cpu_seconds > 0


def test_the_window_of_a_count_ends_with_the_last_output() -> None:
    with TruthServer(ttft=10, gap=3) as server:
        result = run(server, LoadProfile(concurrency=3, requests=9, warmup=4))
    measured = [record for record in result.records if record.phase is Phase.MEASURED]
    assert len(measured) == 9
    assert result.window.start_ns == min(record.sent_ns or 0 for record in measured)
    assert result.window.end_ns == max(record.last_output_ns or 0 for record in measured)
    # the warm-up does not drain before the window: the first measured request starts while others still run
    warm = [record for record in result.records if record.phase is Phase.WARMUP]
    assert result.window.start_ns < max(record.closed_ns or 0 for record in warm)


def test_an_open_loop_keeps_its_timetable() -> None:
    with TruthServer(ttft=40, gap=4) as server:
        load = LoadProfile(request_rate=60, requests=80, warmup=10)
        result = run(server, load)
        truth = by_id(server, 90)
    agree(result, truth)
    client = result.client
    assert client.slip_p99_ns is not None
    assert client.slip_max_ns is not None
    assert client.slip_p99_ns <= client.slip_max_ns
    slips = []
    for record in result.records:
        assert record.scheduled_ns is not None
        assert record.sent_ns is not None
        assert record.start_ns == record.scheduled_ns
        assert record.sent_ns >= record.scheduled_ns
        assert record.scheduled_ns >= result.monotonic_start_ns
        # its connection was open when it was due
        slips.append(float(record.sent_ns - record.scheduled_ns))
    assert median(slips) < 2 * MS
    first = next(record for record in result.records if record.phase is Phase.MEASURED)
    assert result.window.start_ns == first.scheduled_ns
    # connections are used again
    assert len({record.connection for record in result.records}) < 60


def test_an_open_loop_does_not_wait_for_a_slow_server() -> None:
    with TruthServer(ttft=400, gap=1, n=2) as server:
        load = LoadProfile(request_rate=100, arrival="constant", requests=30, warmup=0)
        result = run(server, load)
        truth = by_id(server, 30)
    assert all(record.outcome is Outcome.OK for record in result.records)
    assert max(s.arrived_ns for s in truth.values()) < min(s.ended_ns for s in truth.values())


def test_a_duration_ends_the_sending_and_cuts_nothing() -> None:
    with TruthServer(ttft=60, gap=5) as server:
        result = run(server, LoadProfile(concurrency=4, duration=0.5, warmup=4))
    assert result.complete
    assert result.window.end_ns - result.window.start_ns == 500 * MS
    measured = [record for record in result.records if record.phase is Phase.MEASURED]
    assert all(record.outcome is Outcome.OK for record in result.records)
    assert all(record.sent_ns is not None and record.sent_ns < result.window.end_ns for record in measured)
    assert any(record.closed_ns is not None and record.closed_ns > result.window.end_ns for record in measured)
    assert len(measured) >= 8


def test_an_open_loop_of_a_duration() -> None:
    with TruthServer(ttft=20, gap=2, n=4) as server:
        result = run(server, LoadProfile(request_rate=50, arrival="constant", duration=0.5, warmup=5))
    assert result.window.end_ns - result.window.start_ns == 500 * MS
    assert len(result.records) == 30


@pytest.mark.parametrize(
    "directive",
    ["framing=close", "framing=trailer", "framing=pieces", "close=1", "comment=4", "role=0", "done=0", "finish=0"],
)
def test_every_framing_of_a_good_answer(directive: str) -> None:
    with TruthServer(ttft=10, gap=4, n=16) as server:
        result = run(server, LoadProfile(concurrency=3, requests=9, warmup=3), directive=directive)
        truth = by_id(server, 12)
    agree(result, truth)
    if directive in ("framing=close", "close=1"):
        assert len({record.connection for record in result.records}) == 12
        assert all(record.connected_ns is not None for record in result.records)


def test_a_server_that_breaks_its_promise_of_keep_alive_costs_no_request() -> None:
    with TruthServer(ttft=5, gap=2, n=4, stale=True) as server:
        closed = run(server, LoadProfile(concurrency=3, requests=30, warmup=3))
        opened = run(server, LoadProfile(request_rate=60, requests=20, warmup=3))
    for result in (closed, opened):
        assert {record.outcome for record in result.records} == {Outcome.OK}
    assert len(closed.records) == 33


def test_tokens_per_chunk_come_from_running_usage() -> None:
    with TruthServer(ttft=10, gap=5, n=16, merge=3, continuous=True, cached=5) as server:
        result = run(server, LoadProfile(concurrency=2, requests=6))
    for record in result.records:
        assert record.chunk_tokens == (3, 3, 3, 3, 3, 1)
        assert record.token_source is TokenSource.CONTINUOUS_USAGE
        assert record.cached_tokens == 5


def test_without_usage_counts_are_unknown() -> None:
    with TruthServer(ttft=10, gap=2, n=4, usage=False) as server:
        result = run(server, LoadProfile(concurrency=2, requests=4))
    for record in result.records:
        assert record.outcome is Outcome.OK
        assert (record.output_tokens, record.chunk_tokens) == (None, None)
        assert record.token_source is TokenSource.UNKNOWN


def test_chunks_that_share_a_read_are_counted() -> None:
    with TruthServer(ttft=10, gap=8, n=12, joined=3) as server:
        result = run(server, LoadProfile(concurrency=2, requests=4, warmup=0))
    assert result.client.output_chunks == 48
    assert 4 * 8 <= result.client.shared_reads <= 4 * 11


def test_reasoning_and_tool_calls_are_output() -> None:
    with TruthServer(ttft=10, gap=5, n=6) as server:
        how = ["reasoning=3", "tools=1", ""]
        load = LoadProfile(concurrency=1, requests=3, warmup=0)
        thinking, tools, _ = run(server, load, directive=lambda index: how[index]).records
    assert thinking.first_answer_ns == thinking.chunk_ns[3]
    assert len(tools.chunk_ns) == 6
    assert tools.first_answer_ns == tools.first_output_ns


def test_a_long_request_goes_out_in_several_writes() -> None:
    with TruthServer(ttft=10, gap=2, n=3) as server:
        workload = Workload(name="w", input=Uniform(low=900_000, high=1_000_000), output=Uniform(low=3, high=3))
        result = run(server, LoadProfile(concurrency=1, requests=2, warmup=0), workload)
    assert {record.outcome for record in result.records} == {Outcome.OK}


def test_without_kernel_stamps_the_readers_clock_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(KernelStamps, "_probe", lambda _: False)
    with TruthServer(ttft=20, gap=5) as server:
        result = run(server, LoadProfile(concurrency=4, requests=12))
        agree(result, by_id(server, 20))
    assert result.client.stamps == "user"
    assert result.client.unstamped_reads == 0
    assert result.client.wake_lag_p99_ns is None


def test_the_selectors_of_other_systems(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "make_poller", polling.SelectorPoller)
    with TruthServer(ttft=20, gap=5) as server:
        agree(run(server, LoadProfile(concurrency=4, requests=12)), by_id(server, 20))
        result = run(server, LoadProfile(request_rate=50, requests=20))
    assert {record.outcome for record in result.records} == {Outcome.OK}


def test_the_collector_is_as_it_was_before() -> None:
    gc.disable()
    try:
        with TruthServer(n=2) as server:
            run(server, LoadProfile(concurrency=1, requests=1))
        assert not gc.isenabled()
    finally:
        gc.enable()
    with TruthServer(n=2) as server:
        run(server, LoadProfile(concurrency=1, requests=1))
    assert gc.isenabled()
    assert gc.get_freeze_count() == 0
