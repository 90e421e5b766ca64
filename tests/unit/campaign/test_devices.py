"""The GPUs of a campaign, around its launches; against a stand-in for the driver."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
from driver import Driver, Gpu

from pytest_llmperf.campaign import devices as module
from pytest_llmperf.campaign import rig as rig_module
from pytest_llmperf.campaign.devices import Devices
from pytest_llmperf.campaign.rig import Observer, Rig
from pytest_llmperf.engines import ENGINES
from pytest_llmperf.errors import InfraError
from pytest_llmperf.identity import Fact, Identity
from pytest_llmperf.plan import ServerSpec
from pytest_llmperf.records import Endpoint
from pytest_llmperf.samples import StartUp
from pytest_llmperf.server.gpu_memory import require_room
from pytest_llmperf.server.gpus import FOLDER_VARIABLE, holder_of
from pytest_llmperf.server.launch import Launch

GIB = 2**30


@pytest.fixture(autouse=True)
def locks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "locks"))
    return tmp_path / "locks"


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    return Driver(Gpu("GPU-a", used=5), Gpu("GPU-b", used=3), Gpu("GPU-c", used=4)).install(monkeypatch)


@pytest.fixture
def devices() -> Iterator[Devices]:
    found = Devices()
    yield found
    found.release()


def spec(**changes: Any) -> ServerSpec:
    return ServerSpec(name="s", engine="vllm", gpu_wait=0, **changes)


def acquire(devices: Devices, wanted: ServerSpec) -> ServerSpec:
    return devices.acquire(wanted, lambda *_: None)


def test_any_becomes_the_gpus_that_were_free_and_stays_them(driver: Driver, devices: Devices) -> None:
    wanted = spec(gpus="any:2")
    assert (wanted.gpus, wanted.any_gpus, wanted.gpu_count) == ((), 2, 2)
    first = acquire(devices, wanted)
    assert (first.gpus, first.gpu_count) == ((1, 2), 2)
    assert devices.environment["CUDA_VISIBLE_DEVICES"] == "GPU-b,GPU-c"
    driver.gpus[1].used = 90
    assert acquire(devices, wanted).gpus == (1, 2)
    assert holder_of("GPU-a") is None
    assert holder_of("GPU-b") is not None
    devices.release()
    assert holder_of("GPU-b") is None
    assert devices.environment == {}


def test_the_memory_that_the_engine_takes_by_default_must_be_free(
    driver: Driver, devices: Devices, monkeypatch: pytest.MonkeyPatch
) -> None:
    """vLLM takes 92 % since 0.20, 90 % before, and starts with no less; SGLang takes its share of what is free."""
    at_once = partial(require_room, patience_s=0)
    monkeypatch.setattr(module, "require_room", at_once)
    whole = driver.gpus[0].total
    driver.gpus[0].used = round(0.09 * whole)
    with pytest.raises(InfraError, match=r"GPU 0 has .* free, and 92 % are needed"):
        acquire(devices, spec(gpus=(0,)))
    acquire(devices, spec(gpus=(0,), version="0.19.1"))
    acquire(devices, spec(gpus=(0,), gpu_memory_utilization=0.5))
    driver.gpus[0].used = round(0.4 * whole)
    with pytest.raises(InfraError, match="90 % are needed"):
        acquire(devices, spec(gpus=(0,), gpu_shared=True, version="0.19.1"))
    taking = {"gpus": (0,), "gpu_wait": 0, "gpu_memory_utilization": 0.9}
    with pytest.raises(InfraError, match="90 % are needed"):
        acquire(devices, ServerSpec(name="s", engine="sglang", **taking))
    assert acquire(devices, ServerSpec(name="s", engine="sglang", gpu_shared=True, **taking)).gpus == (0,)


def test_two_campaigns_do_not_share_a_gpu(driver: Driver, devices: Devices) -> None:
    other = Devices()
    acquire(devices, spec(gpus=[1]))
    assert acquire(other, spec(gpus="any:1")).gpus == (2,)
    with pytest.raises(InfraError, match="GPU 1 is held by pid "):
        acquire(other, spec(gpus=[1]))
    assert holder_of("GPU-c") is None  # what it had before is given up first
    other.release()


def test_a_server_without_gpus_takes_none(devices: Devices, locks: Path) -> None:
    for wanted in (
        ServerSpec(name="s", engine="embedded", gpus=(0,)),  # those of an xdist worker
        spec(),
        ServerSpec(name="s", engine="vllm", url="http://127.0.0.1:1", gpus=(0,)),
    ):
        assert acquire(devices, wanted) is wanted
    assert devices.environment == {}
    assert not locks.exists()


def test_without_a_driver_named_gpus_are_locked_by_index_and_any_is_infra(
    monkeypatch: pytest.MonkeyPatch, devices: Devices
) -> None:
    Driver(init_fails=True).install(monkeypatch)
    assert acquire(devices, spec(gpus=[1])).gpus == (1,)
    assert devices.environment["CUDA_VISIBLE_DEVICES"] == "1"
    assert holder_of("index-1") is not None
    devices.returned()
    with pytest.raises(InfraError, match="'any:2' needs NVIDIA's driver to choose: no NVIDIA driver"):
        acquire(devices, spec(gpus="any:2"))


def test_a_gpu_that_is_not_there_is_infra(driver: Driver, devices: Devices) -> None:
    with pytest.raises(InfraError, match=r"there is no GPU 7 \(the driver knows 3\)"):
        acquire(devices, spec(gpus=[7]))


def test_clocks_are_held_from_the_first_launch_to_the_end(
    monkeypatch: pytest.MonkeyPatch, driver: Driver, devices: Devices
) -> None:
    held: list[str] = []

    class Clocks:
        def __init__(self, uuids: list[str], mhz: int, look: Any) -> None:
            self._name = f"{'+'.join(uuids)} {mhz}"
            held.append(self._name)

        def release(self) -> None:
            held.remove(self._name)

    monkeypatch.setattr(module, "ClockLock", Clocks)
    wanted = spec(gpus=[0, 1], lock_clocks=1500)
    for _ in range(2):
        acquire(devices, wanted)
        assert held == ["GPU-a+GPU-b 1500"]
    acquire(devices, spec(gpus=[0, 1], lock_clocks=1200))
    assert held == ["GPU-a+GPU-b 1200"]
    devices.release()
    assert held == []


class Silent:
    def idle(self) -> None:
        pass

    def starting(self, *_: object) -> None:
        pass


class Process:
    """A server's process that gives its GPU memory back, or keeps it, when it ends."""

    exit_code = None

    def __init__(self, gpu: Gpu, keeps: int) -> None:
        self._gpu, self._keeps = gpu, keeps

    def stop(self, grace: float) -> tuple[int, ...]:
        self._gpu.used, self._gpu.processes = self._keeps, []
        return ()


@pytest.mark.parametrize("keeps", [5, 60 * GIB])
def test_a_launch_is_given_its_gpus_watched_while_it_starts_and_must_give_memory_back(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, driver: Driver, keeps: int
) -> None:
    monkeypatch.setattr(module, "require_returned", lambda *a: _returned(*a, patience_s=0))
    given: dict[str, Any] = {}

    def launch(
        spec: ServerSpec, *, devices: Mapping[str, str], watch: Any, environment: Mapping[str, Fact], **_: Any
    ) -> Launch:
        given.update(devices=devices, gpus=spec.gpus, count=environment["gpu_count"].value)
        watching: AbstractContextManager[object] = watch(7)
        with watching:
            driver.gpus[1].used, driver.gpus[1].processes = 70 * GIB, [(7, 69 * GIB)]
        endpoint = Endpoint("http://127.0.0.1:1", "127.0.0.1", 1, False, "m", "vllm")
        process = cast(Any, Process(driver.gpus[1], keeps))
        start = StartUp(time_to_ready_s=1.0)
        return Launch(spec, ENGINES["vllm"], endpoint, Identity(), ("s",), start=start, pid=7, _process=process)

    class Tree:
        """Of a process that needs not exist."""

        pids = (7,)

        def __init__(self, pid: int) -> None:
            assert pid == 7

        def sample(self, t_ns: int) -> None:
            return None

    monkeypatch.setattr(rig_module, "launch", launch)
    monkeypatch.setattr("pytest_llmperf.telemetry.recorder.ProcessTree", Tree)
    monkeypatch.setattr("pytest_llmperf.telemetry.gpu.SELDOM_NS", 0)
    rig = Rig(tmp_path, cast(Observer, Silent()), None, {"NVIDIA H200": 3.5})
    live = rig.start(spec(gpus="any:1"))
    assert given == {"devices": {"CUDA_VISIBLE_DEVICES": "GPU-b", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, "gpus": (1,),
                     "count": "1"}  # fmt: skip
    assert live.start == StartUp(time_to_ready_s=1.0, memory_bytes=69 * GIB)
    assert rig.launches()[0].gpus == 1
    assert holder_of("GPU-b") is not None
    driver.gpus[1].used = 3
    if keeps == 5:
        rig.close()
    else:
        with pytest.raises(InfraError, match=r"GPU 1 still has 60\.0 GiB in use after the server ended"):
            rig.close()
    assert len(rig.launches()) == 1
    assert holder_of("GPU-b") is None


_returned = module.require_returned


def test_a_server_has_the_price_of_all_its_gpus(tmp_path: Path) -> None:
    rig = Rig(tmp_path, cast(Observer, Silent()), None, {"NVIDIA H200": 3.5})

    def on(gpu: str, count: str) -> float | None:
        facts = {"gpu": Fact(value=gpu, source="live"), "gpu_count": Fact(value=count, source="live")}
        return rig.hourly(Identity(environment=facts))

    assert (on("NVIDIA H200", "2"), on("NVIDIA L4", "2"), rig.hourly(Identity())) == (7.0, None, None)
