"""What the runner hands to the gate: the values of each launch apart, where a limit asks every launch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import cast

import pytest
from made import client, record, trial
from reported import plan

from pytest_llmperf import runner
from pytest_llmperf.engines import ENGINES
from pytest_llmperf.errors import InfraError, ServerDiedError
from pytest_llmperf.identity import Identity
from pytest_llmperf.load.drive import Drive
from pytest_llmperf.measured import metrics_of
from pytest_llmperf.plan import LoadProfile, ServerSpec, Sla
from pytest_llmperf.records import Endpoint, Trial, Window
from pytest_llmperf.runner import Calibrations, Interrupted, LoadObserver, planned, run_replay
from pytest_llmperf.samples import GPU_LOST, Telemetry
from pytest_llmperf.server.launch import Launch

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


class _Load:
    """A load that is done, or whose server died."""

    def __init__(self, death: ServerDiedError | None) -> None:
        self._death = death

    def check(self) -> None:
        if self._death is not None:
            raise self._death

    def join(self, seconds: float) -> bool:
        return self._death is None

    def result(self) -> Drive:
        return Drive((record(),), Window(0, 10**9), client(), 0, 1.7e9, complete=True)


@pytest.mark.parametrize("dies", [False, True])
@pytest.mark.parametrize("note", [f"{GPU_LOST}: XID 79 of GPU 0", "XID 31 of GPU 0"])
def test_a_gpu_that_failed_under_a_load_is_trouble_of_the_machine(
    monkeypatch: pytest.MonkeyPatch, note: str, dies: bool
) -> None:
    death = ServerDiedError("it ended", command=("s",), exit_code=-6, log_tail=(), log_path="log") if dies else None
    load = _Load(death)

    @contextmanager
    def recording(pid: int, gpus: tuple[int, ...], *, sources: object) -> Iterator[SimpleNamespace]:
        assert gpus == (3,)  # those of the launch
        assert sources is not None
        yield SimpleNamespace(telemetry=Telemetry(gpus=gpus, notes=(note,)))

    monkeypatch.setattr(runner, "record", recording)
    monkeypatch.setattr(runner, "begin", lambda *_, **__: load)
    monkeypatch.setattr(Launch, "check_alive", lambda _: load.check())
    endpoint = Endpoint("http://127.0.0.1:1", "127.0.0.1", 1, False, "m", "vllm")
    live = Launch(ServerSpec(name="s", engine="vllm", gpus=(3,)), ENGINES["vllm"], endpoint, Identity(), pid=1)

    def run() -> Trial:
        observer = cast(LoadObserver, SimpleNamespace(loading=lambda *_: None))
        calibrations = cast(Calibrations, SimpleNamespace(of=lambda *_: None))
        return run_replay(plan([]), live, 0, 0, "salt", calibrations, observer)

    if death is None and not note.startswith(GPU_LOST):
        assert run().telemetry.notes == (note,)
        return
    with pytest.raises(Interrupted) as ended:
        run()
    assert len(ended.value.trial.records) == 1
    if note.startswith(GPU_LOST):
        assert isinstance(ended.value.cause, InfraError)
        assert str(ended.value.cause).startswith(note)
    else:
        assert ended.value.cause is death
