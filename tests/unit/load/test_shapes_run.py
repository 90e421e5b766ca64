"""What a server really sees of each load shape: order, caps, levels and prompts, from its own log."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
from loading import CALIBRATION, check, endpoint
from truth_server import Served, TruthServer

from pytest_llmperf.load.arrivals import schedule
from pytest_llmperf.load.driver import Drive, Stop, begin, drive
from pytest_llmperf.load.request import PreparedRequest, body, encode
from pytest_llmperf.load.texts import prompt_of
from pytest_llmperf.plan import LoadProfile, TimeLimits, Workload
from pytest_llmperf.records import Endpoint, Outcome, Phase

MS = 1_000_000


def requests(target: Endpoint, workload: Workload, load: LoadProfile) -> Iterator[PreparedRequest]:
    """The plan as bytes; ``user`` tells the server's log which request is which."""
    for arrival in schedule(workload, load, 0):
        prompt = prompt_of(arrival, CALIBRATION, 0, "s", chat=workload.api == "chat")
        sampling = {**workload.sampling_of(arrival.part), "user": str(arrival.index)}
        fields = body(
            target.model, workload, prompt, arrival.output_tokens, stream=arrival.stream, sampling=sampling
        )  # fmt: skip
        wire = encode(target, workload.api, fields, stream=arrival.stream)
        yield PreparedRequest(arrival, wire, stream=arrival.stream)


def run(server: TruthServer, workload: dict[str, Any], load: dict[str, Any], clients: int = 0) -> Drive:
    """Drive the load here, or from ``clients`` processes."""
    shape, profile = Workload.model_validate({"name": "w", **workload}), LoadProfile.model_validate(load)
    target = endpoint(server)
    if clients:
        stop = Stop()
        plan = requests(target, shape, profile)
        result = begin(target, plan, profile, TimeLimits(), stop=stop, clients=clients).result()
        stop.close()
    else:
        result = drive(target, requests(target, shape, profile), profile, TimeLimits())
    check(result)
    return result


def served(server: TruthServer, count: int) -> dict[int, Served]:
    """The server's view by index of the plan."""
    log = {int(one.body["user"]): one for one in server.wait_log(count)}
    assert len(log) == count
    return log


def most_at_once(log: dict[int, Served]) -> int:
    """By the server's clock; an end and an arrival less than 2 ms apart may be a request and its successor."""
    events = sorted(
        (at, step) for one in log.values() for at, step in ((one.arrived_ns, 1), (one.sends[-1] - 2 * MS, -1))
    )
    level = peak = 0
    for _, step in events:
        level += step
        peak = max(peak, level)
    return peak


FIXED = {"input": 30, "output": 10}
TALK = {"input": {"uniform": [20, 40]}, "output": {"uniform": [4, 8]}, "turns": 3, "think_time": "60 ms"}


@pytest.mark.parametrize("clients", [0, 2])
def test_a_cap_holds_and_latency_counts_from_the_timetable(clients: int) -> None:
    """Twice as much comes as the cap lets through: the line grows, in order, and no request is lost."""
    with TruthServer(ttft=20, gap=2) as server:
        load = {"request_rate": 200, "arrival": "constant", "max_concurrency": 4, "requests": 60, "warmup": 4}
        result = run(server, FIXED, load, clients)
        log = served(server, 64)
    assert most_at_once(log) == 4
    assert {record.outcome for record in result.records} == {Outcome.OK}
    records = {record.index: record for record in result.records}
    gaps = {b.scheduled_ns - a.scheduled_ns for a, b in pairwise(result.records)}  # type: ignore[operator]
    assert gaps == {5 * MS}
    waits = [record.cap_wait_ns for record in result.records]
    assert waits[-1] > 100 * MS
    assert waits[0] == 0
    for index, one in log.items():
        record = records[index]
        assert record.sent_ns is not None
        assert record.scheduled_ns is not None
        assert one.arrived_ns - record.scheduled_ns >= record.cap_wait_ns
    own = [
        sorted((log[i].arrived_ns, i) for i in log if i % max(1, clients) == part) for part in range(max(1, clients))
    ]
    assert all([index for _, index in each] == sorted(index for _, index in each) for each in own)
    assert result.client.slip_p99_ns is not None
    assert result.client.slip_p99_ns < max(waits) / 2


def test_a_cap_that_is_never_reached_changes_nothing() -> None:
    with TruthServer(ttft=10, gap=1) as server:
        result = run(server, FIXED, {"request_rate": 50, "arrival": "constant", "max_concurrency": 30, "requests": 30})
    assert [record.cap_wait_ns for record in result.records] == [0] * len(result.records)


@pytest.mark.parametrize(
    ("load", "clients"),
    [({"concurrency": 3}, 0), ({"concurrency": 3}, 2), ({"request_rate": 20}, 0), ({"request_rate": 20}, 2)],
)
def test_a_turn_comes_after_the_answer_before_it_and_the_time_to_think(load: dict[str, Any], clients: int) -> None:
    with TruthServer(ttft=15, gap=2) as server:
        result = run(server, TALK, {**load, "requests": 24, "warmup": 2}, clients)
        log = served(server, 30)
    assert len(result.records) == 30
    for before, after in pairwise(result.records):
        if after.turn == 0:
            continue
        assert after.conversation == before.conversation
        first, second = log[before.index], log[after.index]
        assert second.arrived_ns - first.sends[-1] >= 60 * MS
        said, more = first.body["messages"], second.body["messages"]
        assert more[: len(said)] == said
        assert len(more) == len(said) + 2
        if "request_rate" in load:
            assert after.scheduled_ns is not None
            assert before.closed_ns is not None
            assert after.scheduled_ns - before.closed_ns >= 60 * MS
        else:
            assert after.scheduled_ns is None
    if "concurrency" in load:
        assert most_at_once(log) <= 3
    measured = [record for record in result.records if record.phase is Phase.MEASURED]
    assert len(measured) == 24


def test_conversations_end_with_a_window_of_a_duration() -> None:
    with TruthServer(ttft=10, gap=1) as server:
        load = {"request_rate": 20, "duration": "600 ms", "warmup": 1}
        result = run(server, {**TALK, "turns": 50}, load)
    assert max(record.turn for record in result.records) < 20
    for record in result.records:
        assert record.scheduled_ns is not None
        assert record.scheduled_ns < result.window.end_ns


def test_the_first_requests_of_a_closed_loop_begin_evenly_spread() -> None:
    with TruthServer(ttft=400, gap=1) as server:
        result = run(server, FIXED, {"concurrency": 8, "requests": 8, "stagger": "400 ms"})
        together = run(server, FIXED, {"concurrency": 8, "requests": 8, "stagger": "0 s"})
    sent = sorted(record.sent_ns - result.monotonic_start_ns for record in result.records)[:8]  # type: ignore[operator]
    for slot, at in enumerate(sent):
        assert at >= slot * 50 * MS
    at_once = sorted(record.sent_ns - together.monotonic_start_ns for record in together.records)  # type: ignore[operator]
    assert at_once[7] - at_once[0] < (sent[7] - sent[0]) / 2


@pytest.mark.parametrize("clients", [0, 2])
def test_a_ramp_of_concurrency_is_what_the_server_sees(clients: int) -> None:
    with TruthServer(ttft=10, gap=2) as server:
        load = {"concurrency": 2, "ramp": [[1, "500 ms"], [6, "500 ms"]], "duration": "1300 ms", "warmup": 0}
        result = run(server, FIXED, load, clients)
        log = server.wait_log(len(result.records))
    start = result.monotonic_start_ns

    def most(low_ms: int, high_ms: int) -> int:
        low, high = start + low_ms * MS, start + high_ms * MS
        among = {n: one for n, one in enumerate(log) if one.sends[-1] > low and one.arrived_ns < high}
        return most_at_once(among)

    assert most(50, 450) == 1
    assert most(600, 950) == 6
    assert most(1200, 1300) == 2


def test_a_run_outlives_a_pause_in_its_ramp() -> None:
    with TruthServer(ttft=5, gap=1) as server:
        load = {"concurrency": 2, "ramp": [[2, "200 ms"], [0, "300 ms"]], "duration": "900 ms", "warmup": 0}
        result = run(server, FIXED, load)
    sent = [record.sent_ns - result.monotonic_start_ns for record in result.records if record.sent_ns is not None]
    assert not [at for at in sent if 260 * MS < at < 499 * MS]
    assert [at for at in sent if at > 500 * MS]
    assert [at for at in sent if at < 200 * MS]


def test_a_ramp_that_outlasts_its_requests_does_not_hold_the_run() -> None:
    with TruthServer(ttft=5, gap=1) as server:
        load = {"concurrency": 4, "ramp": {"from": 1, "over": "1 min"}, "requests": 10, "warmup": 0}
        result = run(server, FIXED, load)
    assert len(result.records) == 10
    assert result.client.wall_seconds < 40  # of 60


def test_a_reply_that_is_not_streamed_is_asked_for_without_stream_options() -> None:
    with TruthServer() as server:
        run(server, {**FIXED, "stream_share": 0.5}, {"concurrency": 1, "requests": 20, "warmup": 0})
        log = served(server, 20)
    streamed = [one for one in log.values() if one.body["stream"]]
    whole = [one for one in log.values() if not one.body["stream"]]
    assert streamed
    assert whole
    assert all("stream_options" in one.body for one in streamed)
    assert all("stream_options" not in one.body for one in whole)
    assert {one.headers["accept"] for one in whole} == {"application/json"}


def test_parts_of_a_mix_have_their_own_sampling_and_lengths() -> None:
    mixed = [
        {"input": 20, "output": 3, "sampling": {"temperature": 1}},
        {"input": 200, "output": 9, "weight": 2},
    ]
    with TruthServer(ttft=3, gap=1) as server:
        run(server, {"mixed": mixed, "sampling": {"top_p": 0.5}}, {"concurrency": 2, "requests": 20, "warmup": 0})
        log = served(server, 20)
    kinds = {(one.body["max_tokens"], one.body.get("temperature"), one.body["top_p"]) for one in log.values()}
    assert kinds == {(3, 1, 0.5), (9, None, 0.5)}
