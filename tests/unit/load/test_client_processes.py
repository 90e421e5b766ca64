"""Loads in client processes: the same records as in one thread, one clock, one window, and no process left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import psutil
import pytest
from loading import MS, by_id, check, endpoint, median, requests
from truth_server import TruthServer

from pytest_llmperf.errors import InfraError, TargetError
from pytest_llmperf.load.clients import clients_for
from pytest_llmperf.load.driver import Drive, LoadThread, Progress, Stop, begin
from pytest_llmperf.metrics.trial import mean_in_flight
from pytest_llmperf.plan import Fixed, LoadProfile, Plan, ServerSpec, TimeLimits, Workload
from pytest_llmperf.records import Endpoint, Outcome, Phase


def started(
    target: Endpoint, load: LoadProfile, clients: int, progress: Progress | None = None
) -> tuple[LoadThread, Stop]:
    stop = Stop()
    wires = requests(target, load)
    return begin(target, wires, load, TimeLimits(), stop=stop, clients=clients, progress=progress), stop


def finished(server: TruthServer, load: LoadProfile, clients: int, progress: Progress | None = None) -> Drive:
    thread, stop = started(endpoint(server), load, clients, progress)
    result = thread.result()
    stop.close()
    check(result)
    return result


def children() -> list[psutil.Process]:
    return [p for p in psutil.Process().children(recursive=True) if any("child.py" in part for part in p.cmdline())]


@pytest.mark.parametrize("clients", [1, 3])
def test_a_closed_loop_is_split_and_merged(clients: int) -> None:
    with TruthServer(ttft=30, gap=5) as server:
        progress = Progress()
        result = finished(server, LoadProfile(concurrency=8, requests=24), clients, progress)
        truth = by_id(server, 40)
    assert result.complete
    assert [record.index for record in result.records] == list(range(40))
    assert {record.outcome for record in result.records} == {Outcome.OK}
    assert result.client.processes == clients
    assert result.client.cpu_total_seconds is not None
    assert result.client.cpu_total_seconds >= result.client.cpu_seconds > 0
    assert (progress.sent, progress.finished, progress.failed, progress.in_flight) == (40, 40, 0, 0)
    measured = [record for record in result.records if record.phase is Phase.MEASURED]
    assert result.window.start_ns == min(record.sent_ns or 0 for record in measured)
    assert result.window.end_ns == max(record.last_output_ns or 0 for record in measured)
    for record in result.records:  # one clock: that of the server, which is on the same machine
        assert all(came > left - MS / 2 for came, left in zip(record.chunk_ns, truth[record.index].sends, strict=True))
    edges = sorted([(s.arrived_ns, 1) for s in truth.values()] + [(s.sends[-1], -1) for s in truth.values()])
    level = peak = 0
    for _, step in edges:
        level += step
        peak = max(peak, level)
    assert peak <= 8
    assert not children()


@pytest.mark.parametrize(("slots", "lengths"), [(3, (8,)), (5, (8,)), (8, (2, 3, 5, 8, 13, 21))])
def test_a_finite_plan_keeps_all_slots_at_work_until_near_its_end(slots: int, lengths: tuple[int, ...]) -> None:
    """However the slots are split over two processes, and however long each answer is."""
    count, draw = 24 * slots, Random(5)
    how = [f"n={draw.choice(lengths)}" for _ in range(count)]
    stop, load = Stop(), LoadProfile(concurrency=slots, requests=count, warmup=0, stagger=0)
    with TruthServer(ttft=10, gap=3) as server:
        target = endpoint(server)
        wires = requests(target, load, directive=how.__getitem__)
        result = begin(target, wires, load, TimeLimits(), stop=stop, clients=2).result()
    stop.close()
    check(result)
    assert len(result.records) == count
    last_sent = max(record.sent_ns or 0 for record in result.records)
    assert mean_in_flight(result.records, result.window.start_ns, last_sent) > 0.85 * slots


def test_an_open_loop_has_one_timetable() -> None:
    with TruthServer(ttft=20, gap=4, n=4) as server:
        result = finished(server, LoadProfile(request_rate=60, arrival="constant", requests=40, warmup=6), 2)
    due = [record.scheduled_ns for record in result.records]
    gaps = [later - earlier for earlier, later in pairwise(due) if later and earlier]
    assert len(gaps) == 45
    assert max(gaps) - min(gaps) <= 2
    slips = [float(record.sent_ns - record.scheduled_ns) for record in result.records if record.sent_ns]
    assert min(slips) >= 0
    assert median(slips) < 5 * MS
    assert result.client.slip_p99_ns is not None


@pytest.mark.parametrize("clients", [1, 2])
def test_a_duration_ends_an_endless_plan(clients: int) -> None:
    with TruthServer(ttft=10, gap=2, n=4) as server:
        result = finished(server, LoadProfile(concurrency=4, duration=0.6, warmup=4), clients)
    assert result.complete
    assert result.window.end_ns - result.window.start_ns == 600 * MS
    indices = [record.index for record in result.records]
    assert len(indices) == len(set(indices)) > 20


def test_stop_cuts_every_process() -> None:
    with TruthServer(ttft=10, gap=20, n=500) as server:
        progress = Progress()
        thread, stop = started(endpoint(server), LoadProfile(concurrency=4, requests=100, warmup=2), 2, progress)
        while progress.sent < 4:
            assert not thread.join(0.01)
        time.sleep(0.2)
        stop.set()
        result = thread.result()
    stop.close()
    check(result)
    assert not result.complete
    assert [record.outcome for record in result.records] == [Outcome.CUT] * 4
    assert all(record.chunk_ns for record in result.records)


def test_stop_before_the_start_sends_nothing() -> None:
    with TruthServer() as server:
        target, load, stop = endpoint(server), LoadProfile(concurrency=2, requests=9), Stop()
        stop.set()
        result = begin(target, requests(target, load), load, TimeLimits(), stop=stop, clients=2).result()
    stop.close()
    assert result.records == ()
    assert not result.complete


def test_a_client_process_that_is_killed_is_infrastructure() -> None:
    with TruthServer(ttft=10, gap=20, n=500) as server:
        progress = Progress()
        thread, stop = started(endpoint(server), LoadProfile(concurrency=2, requests=10, warmup=0), 2, progress)
        while progress.sent < 2:
            assert not thread.join(0.01)
        children()[0].kill()
        with pytest.raises(InfraError, match="killed by signal 9"):
            thread.result()
    stop.close()
    assert not children()


def test_an_unknown_host_is_the_targets_error() -> None:
    target = Endpoint("http://no-such-host.invalid:1", "no-such-host.invalid", 1, False, "m", "openai")
    stop, load = Stop(), LoadProfile(concurrency=1, requests=1, warmup=0)
    with pytest.raises(TargetError, match="no-such-host"):
        begin(target, iter(()), load, TimeLimits(), stop=stop).result()
    stop.close()


def test_the_key_is_in_no_argument_and_no_environment_of_a_client() -> None:
    with TruthServer(ttft=10, gap=20, n=100, api_key="very-secret-key") as server:
        progress = Progress()
        target = endpoint(server, headers={"Authorization": "Bearer very-secret-key"})
        thread, stop = started(target, LoadProfile(concurrency=1, requests=1, warmup=0), 1, progress)
        while progress.sent < 1:
            assert not thread.join(0.01)
        (child,) = children()
        assert "very-secret-key" not in " ".join(child.cmdline())
        assert "very-secret-key" not in "".join(child.environ().values())
        stop.set()
        assert thread.result().records[0].chunk_ns
    stop.close()


PARENT = """
import sys
sys.path[:0] = {path!r}
from loading import *
from pytest_llmperf.load.driver import begin
target = Endpoint("http://127.0.0.1:{port}", "127.0.0.1", {port}, False, "truth", "openai")
load = LoadProfile(concurrency=2, requests=2, warmup=0)
thread = begin(target, requests(target, load), load, TimeLimits(), stop=Stop(), clients=2)
print("begun", flush=True)
thread.result()
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_clients_die_with_their_parent(number: signal.Signals) -> None:
    with TruthServer(ttft=10, gap=50, n=2000) as server:
        code = PARENT.format(path=[p for p in sys.path if p], port=server.port)
        parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"begun\n"
        while len(clients := psutil.Process(parent.pid).children()) < 2:
            time.sleep(0.01)
        parent.send_signal(number)
        parent.wait()
        parent.stdout.close()
        gone, alive = psutil.wait_procs(clients, timeout=10)
    assert not alive
    assert len(gone) == 2


def test_a_client_needs_the_standard_library_only() -> None:
    """Nothing of site-packages, and none of the validated models: it starts in a tenth of a second."""
    package = Path(__file__).parents[3]
    code = f"import sys; sys.path.append({str(package)!r}); import pytest_llmperf.load.child; print(*sys.modules)"
    command = [sys.executable, "-I", "-S", "-c", code]
    modules = subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ}).stdout.split()
    heavy = {"pydantic", "httpx", "scipy", "ssl", "asyncio", "subprocess", "pytest_llmperf.plan", "pytest"}
    assert heavy.isdisjoint(modules)


def plan(clients: Any = "auto", **load: Any) -> Plan:
    return Plan(
        nodeid="t", server=ServerSpec(name="s", engine="openai"), load=LoadProfile(**load), clients=clients,
        workload=Workload(name="w", input=Fixed(tokens=8), output=Fixed(tokens=200)),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("asked", "cores", "expected"),
    [
        (plan(concurrency=64, requests=9), 8, 1),
        (plan(concurrency=1024, requests=9), 8, 1),
        (plan(concurrency=4096, requests=9), 8, 4),
        (plan(concurrency=4096, requests=9), 2, 1),
        (plan(request_rate=100, requests=9), 8, 1),
        (plan(request_rate=600, requests=9), 8, 3),
        (plan(concurrency=64, requests=9, ramp={"from": 4096, "over": "9 s"}), 8, 4),
        (plan(concurrency=64, requests=9, ramp=[[8, "5 s"], [2048, "5 s"]]), 8, 2),
        (plan(concurrency=4096, requests=9, ramp={"from": 1, "over": "9 s"}), 8, 4),
        (plan(request_rate=100, requests=9, ramp={"from": 600, "over": "9 s"}), 8, 3),
        (plan(request_rate=100, requests=9, ramp=[[5, "5 s"], [600, "5 s"]]), 8, 3),
        (plan(request_rate=600, requests=9, ramp={"from": 0, "over": "9 s"}), 8, 3),
        (plan(5, concurrency=8, requests=9), 2, 5),
    ],
)
def test_as_many_processes_as_the_planned_rate_needs(asked: Plan, cores: int, expected: int) -> None:
    assert clients_for(asked, cores) == expected


def test_no_more_processes_than_streams() -> None:
    with TruthServer(ttft=5, gap=2, n=3) as server:
        result = finished(server, LoadProfile(concurrency=2, requests=6), 4)
    assert result.client.processes == 2
