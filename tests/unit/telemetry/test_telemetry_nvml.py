"""GPU memory, against a stand-in for the driver's library."""

from __future__ import annotations

import os
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from made import trial

from pytest_llmperf.identity import Fact
from pytest_llmperf.metrics import measure
from pytest_llmperf.plan import ServerSpec
from pytest_llmperf.samples import GpuSample
from pytest_llmperf.telemetry.machine import machine_facts
from pytest_llmperf.telemetry.nvml import GpuMemory, gpu_facts
from pytest_llmperf.telemetry.recorder import record


class NVMLError(Exception):
    pass


class Driver(ModuleType):
    """Two GPUs; the processes of each are (pid, bytes)."""

    NVMLError = NVMLError
    NVML_DEVICE_MIG_ENABLE = 1

    def __init__(
        self, *, init_fails: bool = False, processes: dict[int, list[tuple[int, int | None]]] | None = None
    ) -> None:
        super().__init__("pynvml")
        self.init_fails = init_fails
        self.processes = processes or {}
        self.lost: set[int] = set()
        self.names: list[str | bytes] = ["NVIDIA H200", b"NVIDIA H200"]
        self.split: set[int] | None = set()
        self.open = 0

    def nvmlInit(self) -> None:  # noqa: N802
        if self.init_fails:
            raise NVMLError("Driver Not Loaded")
        self.open += 1

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.open -= 1

    def nvmlDeviceGetHandleByIndex(self, gpu: int) -> int:  # noqa: N802
        if gpu > 1:
            raise NVMLError("Invalid Argument")
        return gpu

    def nvmlDeviceGetMemoryInfo(self, gpu: int) -> Any:  # noqa: N802
        if gpu in self.lost:
            raise NVMLError("GPU is lost")
        return SimpleNamespace(used=1000 * (gpu + 1), total=150_000_000_000)

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return 2

    def nvmlSystemGetDriverVersion(self) -> str:  # noqa: N802
        return "580.95.05"

    def nvmlDeviceGetName(self, gpu: int) -> str | bytes:  # noqa: N802
        return self.names[gpu]

    def nvmlDeviceGetMigMode(self, gpu: int) -> list[int]:  # noqa: N802
        if self.split is None:
            raise NVMLError("Not Supported")
        return [int(gpu in self.split), 0]

    def nvmlDeviceGetComputeRunningProcesses(self, gpu: int) -> list[Any]:  # noqa: N802
        return [SimpleNamespace(pid=pid, usedGpuMemory=size) for pid, size in self.processes.get(gpu, [])]


def install(monkeypatch: pytest.MonkeyPatch, driver: Driver) -> Driver:
    monkeypatch.setitem(sys.modules, "pynvml", driver)
    return driver


def test_memory_of_the_servers_own_processes_is_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = install(monkeypatch, Driver(processes={0: [(7, 300), (8, 200), (99, 400)], 1: [(99, 50)]}))
    with GpuMemory([0, 1]) as memory:
        assert memory.sample(5, {7, 8}) == (GpuSample(5, 0, 1000, 500), GpuSample(5, 1, 2000, None))
    assert memory.note is None
    assert driver.open == 0


def test_processes_that_the_driver_does_not_size_are_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, Driver(processes={0: [(7, None)]}))
    with GpuMemory([0]) as memory:
        assert memory.sample(5, {7})[0].server_bytes is None


def test_no_driver_is_a_note_and_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, Driver(init_fails=True))
    with record(None, gpus=[0]) as recorder:
        pass
    assert recorder.telemetry.gpu == ()
    assert any("no NVIDIA driver" in note for note in recorder.telemetry.notes)


def test_no_library_is_a_note_and_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with GpuMemory([0]) as memory:
        assert memory.sample(0, ()) == ()
    assert "not installed" in (memory.note or "")


def test_a_gpu_that_does_not_exist_is_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, Driver())
    with GpuMemory([5]) as memory:
        assert memory.sample(0, ()) == ()
    assert "GPU 5: Invalid Argument" in (memory.note or "")


def test_a_gpu_that_is_lost_leaves_the_other_and_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = install(monkeypatch, Driver())
    with GpuMemory([0, 1]) as memory:
        driver.lost.add(0)
        assert [sample.gpu for sample in memory.sample(0, ())] == [1]
    assert "GPU is lost" in (memory.note or "")


def test_without_gpus_the_library_is_not_even_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "pynvml", raising=False)
    with GpuMemory([]) as memory:
        pass
    assert memory.note is None
    assert "pynvml" not in sys.modules


@pytest.mark.parametrize("fault", ["no driver", "no such GPU", "lost"])
def test_peak_memory_of_a_gpu_server_is_not_measured_without_the_driver_and_never_host_memory(
    monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    driver = install(monkeypatch, Driver(init_fails=fault == "no driver", processes={0: [(os.getpid(), 500)]}))
    if fault == "lost":
        driver.lost.add(1)
    with record(os.getpid(), gpus=[0, 5 if fault == "no such GPU" else 1]) as recorder:
        pass
    found = measure([trial([], telemetry=recorder.telemetry)], None, ["peak_memory"])["peak_memory"]
    assert recorder.telemetry.host
    assert found.value is None
    assert found.note is not None
    assert "host memory does not stand in for that of GPUs" in found.note
    reasons = {"no driver": "no NVIDIA driver (Driver Not Loaded)", "no such GPU": "GPU 5: ", "lost": "GPU is lost"}
    assert reasons[fault] in found.note


def test_peak_memory_of_a_gpu_server_is_that_of_its_processes_on_the_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, Driver(processes={0: [(os.getpid(), 500)], 1: [(os.getpid(), 70)]}))
    with record(os.getpid(), gpus=[0, 1]) as recorder:
        pass
    assert measure([trial([], telemetry=recorder.telemetry)], None, ["peak_memory"])["peak_memory"].value == 570


def test_a_gpu_server_whose_gpus_nobody_named_has_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "pynvml", raising=False)
    with record(os.getpid(), gpus=[]) as recorder:
        pass
    found = measure([trial([], telemetry=recorder.telemetry)], None, ["peak_memory"])["peak_memory"]
    assert found.value is None
    assert "gpus does not say which GPUs the server has" in (found.note or "")


def told(found: dict[str, Fact]) -> dict[str, str]:
    assert {fact.source for fact in found.values()} <= {"live"}
    return {name: fact.value for name, fact in found.items()}


def test_what_the_gpus_are(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = install(monkeypatch, Driver())
    # 150e9 B / 2^30 = 139.70 GiB
    alike = {"driver": "580.95.05", "gpu": "NVIDIA H200", "gpu_memory": "140 GiB"}
    assert told(gpu_facts()) == {**alike, "gpu_count": "2"}
    assert told(gpu_facts([1])) == {**alike, "gpu_count": "1"}
    driver.split = {1}
    assert told(gpu_facts()) == {**alike, "gpu_count": "2", "mig": "on"}
    assert told(gpu_facts([0])) == {**alike, "gpu_count": "1"}
    driver.split = None
    driver.names[1] = "NVIDIA L4"
    assert told(gpu_facts())["gpu"] == "NVIDIA H200 + NVIDIA L4"
    assert driver.open == 0


def test_what_the_driver_does_not_tell_is_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = install(monkeypatch, Driver())
    driver.lost = {1}
    assert told(gpu_facts()) == {"driver": "580.95.05", "gpu": "NVIDIA H200", "gpu_count": "2"}
    assert told(gpu_facts([5])) == {"driver": "580.95.05"}
    install(monkeypatch, Driver(init_fails=True))
    assert gpu_facts() == {}
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert gpu_facts() == {}


def test_the_machine_is_that_of_a_server_that_is_started_here(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, Driver())
    on_gpu = ServerSpec(name="s", engine="vllm", gpus=(0,))
    facts = machine_facts(on_gpu, "h200-a")
    assert (facts["gpu_count"].value, facts["pool"].value, facts["pool"].source) == ("1", "h200-a", "configured")
    assert "pool" not in machine_facts(on_gpu, None)
    assert list(machine_facts(ServerSpec(name="s", engine="embedded"), "p")) == ["pool"]
    assert machine_facts(ServerSpec(name="s", engine="vllm", url="http://127.0.0.1:1"), "p") == {}
