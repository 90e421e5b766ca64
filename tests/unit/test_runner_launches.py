"""What the runner hands to the gate: the values of each launch apart, where a limit asks every launch."""

from __future__ import annotations

from made import record, trial
from reported import plan

from pytest_llmperf.measured import metrics_of
from pytest_llmperf.plan import LoadProfile, Sla
from pytest_llmperf.records import Trial
from pytest_llmperf.runner import planned

STRICT = Sla(metric="ttft_p95", limit=0.5, written="500 ms", confidence=0.95)
LOOSE = Sla(metric="tpot_p95", limit=0.5, written="500 ms")


def replay(launch: int, number: int, ttft_ms: int) -> Trial:
    records = [record(i, chunks_ms=(ttft_ms, ttft_ms + 10, ttft_ms + 20)) for i in range(3)]
    return trial(records, launch=launch, replay=number)


def test_replays_of_a_launch_are_pooled_and_launches_are_not() -> None:
    trials = [replay(0, 0, 100), replay(0, 1, 200), replay(3, 0, 300)]
    found = metrics_of(plan([STRICT, LOOSE]), trials, ())
    assert [[round(1000 * v) for v in one] for one in found["ttft_p95"].by_launch] == [
        [100, 100, 100, 200, 200, 200],
        [300, 300, 300],
    ]
    assert len(found["ttft_p95"].values or ()) == 9
    assert found["tpot_p95"].by_launch == ()


def test_an_open_loop_has_to_send_its_whole_timetable() -> None:
    made = plan([STRICT])
    timed = made.model_copy(update={"load": LoadProfile(request_rate=50, arrival="constant", duration="2 s", warmup=7)})
    assert planned(timed) == 100
    assert planned(made.model_copy(update={"load": LoadProfile(concurrency=5, duration="2 s")})) == 0
    assert planned(made.model_copy(update={"load": LoadProfile(concurrency=5, requests=9)})) == 9


def test_one_launch_is_what_is_pooled_already() -> None:
    found = metrics_of(plan([STRICT]), [replay(0, 0, 100), replay(0, 1, 200)], ())
    assert found["ttft_p95"].by_launch == ()
