"""The one live launch: ended for sure, and noted once, whatever interrupts its end."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from driver import Driver, Gpu
from made import record, trial
from reported import plan

from pytest_llmperf.campaign import prefixcache
from pytest_llmperf.campaign import rig as module
from pytest_llmperf.campaign.prefixcache import KEPT, UNEMPTIED
from pytest_llmperf.campaign.rig import Observer, Rig
from pytest_llmperf.engines import ENGINES
from pytest_llmperf.errors import InfraError
from pytest_llmperf.identity import Identity
from pytest_llmperf.plan import DataFile, Plan, ServerSpec, Workload
from pytest_llmperf.records import Endpoint
from pytest_llmperf.result import TrialReport
from pytest_llmperf.server.disk import require_disk
from pytest_llmperf.server.gpu_memory import require_room
from pytest_llmperf.server.gpus import FOLDER_VARIABLE, holder_of
from pytest_llmperf.server.launch import Launch
from pytest_llmperf.server.process import ServerProcess

SPEC = ServerSpec(name="s", engine="embedded")


class Silent:
    def idle(self) -> None:
        pass


class Process:
    """A server's process whose end is interrupted by what is given, once for each."""

    exit_code = None

    def __init__(self, interruptions: list[BaseException], left: tuple[str, ...]) -> None:
        self.interruptions, self.left, self.stopped = interruptions, left, 0

    def stop(self, grace: float) -> tuple[int, ...]:
        if self.interruptions:
            raise self.interruptions.pop(0)
        self.stopped += 1
        return self.left


Start = Callable[..., tuple[Rig, Process]]


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Start:
    def made(*interruptions: BaseException, left: tuple[str, ...] = ()) -> tuple[Rig, Process]:
        process = Process(list(interruptions), left)
        endpoint = Endpoint("http://127.0.0.1:1", "127.0.0.1", 1, False, "m", "embedded")
        live = Launch(
            SPEC, ENGINES["embedded"], endpoint, Identity(), ("server",), _process=cast(ServerProcess, process)
        )
        monkeypatch.setattr(module, "launch", lambda *_, **__: live)
        monkeypatch.setattr(module, "machine_facts", lambda *_: {})
        rig = Rig(tmp_path, cast(Observer, Silent()), None)
        rig.start(SPEC)
        return rig, process

    return made


def test_a_launch_whose_end_was_interrupted_is_ended_by_the_next_call_and_noted_once(start: Start) -> None:
    rig, process = start(KeyboardInterrupt(), KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        rig.stop("the server died")
    assert (process.stopped, len(rig.launches())) == (0, 1)
    with pytest.raises(KeyboardInterrupt):
        rig.stop()
    rig.stop()
    rig.stop()
    assert process.stopped == 1
    assert rig.live is None
    [noted] = rig.launches()
    assert (noted.index, noted.error) == (0, "the server died")


def test_the_next_launch_waits_for_the_end_of_the_last(start: Start) -> None:
    rig, process = start(KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        rig.start(SPEC)
    assert [launch.index for launch in rig.launches()] == [0]
    rig.start(SPEC, "baseline")
    assert process.stopped == 1
    assert [(launch.index, launch.arm) for launch in rig.launches()] == [(0, "candidate"), (1, "baseline")]


def test_a_server_is_ours_to_end_from_the_moment_that_it_runs(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    rig, process = start()
    rig.stop()

    def fails(*_: object) -> None:
        raise OverflowError("of a kind that nobody thought of")

    monkeypatch.setattr(module, "observe_start", fails)
    with pytest.raises(OverflowError):
        rig.start(SPEC)
    assert process.stopped == 1
    rig.close()
    assert process.stopped == 2
    assert [launch.index for launch in rig.launches()] == [0, 1]


def test_nothing_is_launched_on_a_full_disk(start: Start, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("pytest_llmperf.server.disk.shutil.disk_usage", lambda _: SimpleNamespace(free=5 * 2**20))
    full = rf"the disk of the report, {tmp_path}, has 5 MiB free, and 100 MiB are needed"
    with pytest.raises(InfraError, match=full):
        start()
    with pytest.raises(InfraError, match=full):
        Rig(tmp_path, cast(Observer, Silent()), None).require([SPEC])


def test_compile_caches_need_room_where_the_engine_has_some(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("pytest_llmperf.server.disk.shutil.disk_usage", lambda _: SimpleNamespace(free=500 * 2**20))
    require_disk(tmp_path / "not" / "yet" / "there", SPEC)
    with pytest.raises(InfraError, match=r"the compile cache VLLM_CACHE_ROOT, .*, has 500 MiB free, and 1024 MiB are"):
        require_disk(tmp_path, ServerSpec(name="v", engine="vllm"))


def test_the_gpus_of_both_arms_are_seen_to_before_the_first_launch(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "locks"))
    monkeypatch.setattr(module, "provision", lambda _: None)
    monkeypatch.setattr("pytest_llmperf.server.gpu_memory._LEAVING_S", 0.0)
    monkeypatch.setattr("pytest_llmperf.campaign.devices.require_room", partial(require_room, patience_s=0))
    gib = 2**30
    Driver(Gpu("GPU-a", total=100 * gib, used=20 * gib, reserved=0)).install(monkeypatch)

    def arm(**fields: Any) -> ServerSpec:
        return ServerSpec(name="v", engine="vllm", gpu_wait=0, **fields)

    rig = Rig(tmp_path, cast(Observer, Silent()), None)
    modest = arm(gpus=[0], gpu_memory_utilization=0.5)
    rig.require([modest])
    assert holder_of("GPU-a") is not None
    with pytest.raises(InfraError, match=r"GPU 0 has 80\.0 GiB of 100\.0 GiB free, and 95 % are needed"):
        rig.require([modest, arm(gpus=[0], gpu_memory_utilization=0.95)])
    with pytest.raises(InfraError, match="there is no GPU 4"):
        rig.require([modest, arm(gpus=[4])])
    with pytest.raises(InfraError, match="any 2 GPUs were asked for, and this machine has 1"):
        rig.require([modest, arm(gpus="any:2")])
    rig.close()
    assert holder_of("GPU-a") is None


class Loads:
    """Replays on a launch whose server answers a reset as is told, time after time."""

    def __init__(self, rig: Rig, monkeypatch: pytest.MonkeyPatch, answers: list[str]) -> None:
        self._rig, self.answers, self.stored = rig, answers, list[TrialReport]()
        monkeypatch.setattr(prefixcache, "empty_prefix_cache", lambda *_, **__: self.answers.pop(0))
        monkeypatch.setattr(prefixcache, "_PAUSE_S", 0.0)
        monkeypatch.setattr(module.runner, "run_replay", lambda *_: trial([record()]))
        monkeypatch.setattr(module.Launch, "check_alive", lambda _: None)

    def run(self, asked: Plan) -> TrialReport:
        self._rig.replay(asked, 0, "salt")
        return self._rig.trials(asked)[-1]


def of_data_set(tmp_path: Path) -> Plan:
    (tmp_path / "rows.jsonl").write_text('{"prompt": "a b c", "output_tokens": 3}\n')
    workload = Workload(name="set", dataset=DataFile(path=str(tmp_path / "rows.jsonl"), digest="0" * 64))
    return plan().model_copy(update={"workload": workload})


def test_a_refused_reset_is_tried_again_then_noted_and_never_judged_where_texts_come_again(
    start: Start, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    rig, _ = start()
    loads = Loads(rig, monkeypatch, ["refused", "refused", "emptied"])
    first = loads.run(plan())
    assert (first.validity.valid, first.warnings) == (True, ())  # nothing had been there
    assert loads.run(plan()).warnings == ()
    assert loads.answers == []
    monkeypatch.setattr(prefixcache, "_RESET_S", 0.0)
    loads.answers += ["refused"] * 4
    kept = loads.run(plan())  # our own texts are new in every load
    assert (kept.validity.valid, kept.warnings) == (True, (KEPT,))
    alone = loads.run(of_data_set(tmp_path))
    assert (alone.validity.valid, alone.warnings) == (True, (KEPT,))
    rig.start(SPEC, "candidate", 3)
    loads.run(of_data_set(tmp_path))
    compared = loads.run(of_data_set(tmp_path))
    assert not compared.validity.valid
    assert compared.validity.reasons[-1].startswith(KEPT)
    loads.answers += ["not offered"]
    assert loads.run(of_data_set(tmp_path)).warnings == (UNEMPTIED,)


def test_what_even_sigkill_does_not_end_is_said_once(start: Start) -> None:
    rig, process = start(left=("pid 7",))
    with pytest.raises(InfraError, match="s could not be ended: pid 7; see pytest-llmperf doctor reap"):
        rig.stop()
    rig.stop()
    assert process.stopped == 1
    assert len(rig.launches()) == 1
