"""A stand-in for NVIDIA's driver: GPUs whose figures a test sets, behind the functions of pynvml that we ask."""

# ruff: noqa: N801, N802, N815 - the names are NVML's
from __future__ import annotations

import gzip
import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

LOST, TIMED_OUT, NOT_SUPPORTED, NOT_FOUND = 15, 10, 3, 6
WHOLE = 0xFFFFFFFF
H200_RECORDING = Path(__file__).parent / "fixtures" / "nvml" / "vllm-0.26.0-llama8b-launch1-load.jsonl.gz"


class NVMLError(Exception):
    def __init__(self, value: int = NOT_SUPPORTED, text: str = "Not Supported") -> None:
        self.value = value
        super().__init__(text)


@dataclass
class Gpu:
    """One GPU; a figure that is None is not supported."""

    uuid: str
    name: str | bytes = "NVIDIA H200"
    total: int = 150_000_000_000
    used: int = 1000
    reserved: int | None = 600
    """None: a driver without the second version of the memory call."""
    processes: list[tuple[int, int | None]] | None = field(default_factory=list)
    instances: dict[int, int] = field(default_factory=dict)
    """pid → instance of a divided GPU."""
    utilization: int | None = 95
    power_mw: int | None = 500_000
    energy_mj: int | None = 1_000_000
    temperature: int | None = 50
    sm_mhz: int | None = 1980
    memory_mhz: int | None = 3201
    throttle: int | None = 0
    mig: int | None = 0
    persistence: int | None = 1
    ecc_errors: int | None = 0
    activity: tuple[float, float] | None = None
    """Percent of SM and DRAM activity; None: no GPM."""
    lost: bool = False
    locked: int | None = None
    """MHz that its clocks are locked at."""
    refuses: bool = False
    """To have them locked."""


class Driver(ModuleType):
    """What ``import pynvml`` gives. ``asked`` counts the questions by function."""

    NVMLError = NVMLError
    NVML_ERROR_GPU_IS_LOST = LOST
    NVML_ERROR_RESET_REQUIRED = 16
    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0
    nvmlMemory_v2 = 0x2000028

    def __init__(self, *gpus: Gpu, init_fails: bool = False) -> None:
        super().__init__("pynvml")
        self.gpus = list(gpus or (Gpu("GPU-a"), Gpu("GPU-b")))
        self.init_fails = init_fails
        self.open = 0
        self.allocated = 0
        self.xids: list[tuple[int, int]] = []
        """(GPU, XID) that the driver has to report."""
        self.asked: dict[str, int] = {}

    def install(self, monkeypatch: pytest.MonkeyPatch) -> Driver:
        monkeypatch.setitem(sys.modules, "pynvml", self)
        return self

    def _of(self, handle: int, function: str = "") -> Gpu:
        self.asked[function] = self.asked.get(function, 0) + 1
        gpu = self.gpus[handle]
        if gpu.lost:
            raise NVMLError(LOST, "GPU is lost")
        return gpu

    def nvmlInit(self) -> None:
        if self.init_fails:
            raise NVMLError(9, "Driver Not Loaded")
        self.open += 1

    def nvmlShutdown(self) -> None:
        self.open -= 1

    def nvmlSystemGetDriverVersion(self) -> str:
        return "580.95.05"

    def nvmlDeviceGetCount(self) -> int:
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, gpu: int) -> int:
        if not 0 <= gpu < len(self.gpus):
            raise NVMLError(2, "Invalid Argument")
        return gpu

    def nvmlDeviceGetUUID(self, gpu: int) -> str:
        return self.gpus[gpu].uuid

    def nvmlDeviceGetName(self, gpu: int) -> str | bytes:
        return self.gpus[gpu].name

    def nvmlDeviceGetMemoryInfo(self, handle: int, version: int | None = None) -> Any:
        gpu = self._of(handle, "memory")
        kept = gpu.reserved or 0
        if version is None:
            return SimpleNamespace(used=gpu.used + kept, total=gpu.total, free=gpu.total - gpu.used - kept)
        if gpu.reserved is None:
            raise NVMLError(13, "Function Not Found")
        return SimpleNamespace(used=gpu.used, total=gpu.total, free=gpu.total - gpu.used - kept, reserved=kept)

    def nvmlDeviceGetComputeRunningProcesses(self, handle: int) -> list[Any]:
        gpu = self._of(handle, "processes")
        found = told(gpu.processes)
        return [SimpleNamespace(pid=p, usedGpuMemory=n, gpuInstanceId=gpu.instances.get(p, WHOLE)) for p, n in found]

    def nvmlDeviceGetUtilizationRates(self, handle: int) -> Any:
        return SimpleNamespace(gpu=told(self._of(handle, "utilization").utilization), memory=20)

    def nvmlDeviceGetPowerUsage(self, handle: int) -> int:
        return told(self._of(handle, "power").power_mw)

    def nvmlDeviceGetEnforcedPowerLimit(self, handle: int) -> int:
        self._of(handle, "limit")
        return 700_000

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: int) -> int:
        return told(self._of(handle, "energy").energy_mj)

    def nvmlDeviceGetTemperature(self, handle: int, sensor: int) -> int:
        return told(self._of(handle, "temperature").temperature)

    def nvmlDeviceGetTemperatureThreshold(self, handle: int, which: int) -> int:
        self._of(handle, "threshold")
        return 89

    def nvmlDeviceGetClockInfo(self, handle: int, which: int) -> int:
        gpu = self._of(handle, "clock")
        return told(gpu.sm_mhz if which == self.NVML_CLOCK_SM else gpu.memory_mhz)

    def nvmlDeviceGetMaxClockInfo(self, handle: int, which: int) -> int:
        return 1980 if which == self.NVML_CLOCK_SM else 3201

    def nvmlDeviceGetCurrentClocksEventReasons(self, handle: int) -> int:
        return told(self._of(handle, "throttle").throttle)

    def nvmlDeviceGetPersistenceMode(self, handle: int) -> int:
        return told(self.gpus[handle].persistence)

    def nvmlDeviceGetMigMode(self, handle: int) -> list[int]:
        return [told(self.gpus[handle].mig), 0]

    def nvmlDeviceGetEccMode(self, handle: int) -> list[int]:
        return [1, 1]

    def nvmlDeviceGetTotalEccErrors(self, handle: int, kind: int, counter: int) -> int:
        return told(self.gpus[handle].ecc_errors)

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> int:
        found = [place for place, gpu in enumerate(self.gpus) if gpu.uuid == uuid]
        if not found:
            raise NVMLError(NOT_FOUND, "Not Found")
        return found[0]

    def nvmlDeviceSetGpuLockedClocks(self, handle: int, low: int, high: int) -> None:
        gpu = self._of(handle, "lock clocks")
        if gpu.refuses:
            raise NVMLError(4, "Insufficient Permissions")
        assert low == high
        gpu.locked = low

    def nvmlDeviceResetGpuLockedClocks(self, handle: int) -> None:
        self._of(handle, "free clocks").locked = None

    # --- activity counters: a sample is a list that remembers of which GPU it is

    class c_nvmlGpmMetricsGet_t:
        def __init__(self) -> None:
            self.version = self.numMetrics = 0
            self.sample1: list[Any] = []
            self.sample2: list[Any] = []
            self.metrics = [SimpleNamespace(metricId=0, nvmlReturn=0, value=0.0) for _ in range(8)]

    def nvmlGpmQueryDeviceSupport(self, handle: int) -> Any:
        return SimpleNamespace(isSupportedDevice=int(self._of(handle).activity is not None))

    def nvmlGpmSampleAlloc(self) -> list[Any]:
        self.allocated += 1
        return []

    def nvmlGpmSampleFree(self, sample: list[Any]) -> None:
        self.allocated -= 1

    def nvmlGpmSampleGet(self, handle: int, sample: list[Any]) -> list[Any]:
        if self._of(handle).mig:
            raise NVMLError
        sample[:] = [handle, None]
        return sample

    def nvmlGpmMigSampleGet(self, handle: int, instance: int, sample: list[Any]) -> list[Any]:
        sample[:] = [handle, instance]
        return sample

    def nvmlGpmMetricsGet(self, request: Any) -> Any:
        assert request.sample1 == request.sample2 != []
        sm, dram = told(self.gpus[request.sample1[0]].activity)
        for metric in request.metrics[: request.numMetrics]:
            metric.value = {2: sm, 10: dram}[metric.metricId]
        return request

    # --- events

    def nvmlEventSetCreate(self) -> list[int]:
        return []

    def nvmlDeviceRegisterEvents(self, handle: int, kinds: int, events: list[int]) -> None:
        assert kinds == 8
        events.append(handle)

    def nvmlEventSetWait_v2(self, events: list[int], timeout_ms: int) -> Any:
        if not self.xids:
            raise NVMLError(TIMED_OUT, "Timeout")
        gpu, xid = self.xids.pop(0)
        assert gpu in events
        return SimpleNamespace(device=gpu, eventData=xid)

    def nvmlEventSetFree(self, events: list[int]) -> None:
        events.clear()


def told(value: Any) -> Any:
    if value is None:
        raise NVMLError
    return value


def recorded() -> list[dict[str, Any]]:
    """30 s of a real H200 at 5 Hz while vLLM 0.26.0 was under load, see the README beside it."""
    with gzip.open(H200_RECORDING, "rt") as file:
        return [json.loads(line) for line in file]
