"""The GPUs of this machine, each as its driver describes it now; and as facts of a server's identity."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import psutil

from pytest_llmperf.cards import Card, GpuProcess
from pytest_llmperf.identity import Fact
from pytest_llmperf.telemetry.nvml import GpuLostError, Library, NoDriverError, opened

__all__ = ["gpu_facts", "memory_of", "read_cards"]

_GIB: Final = 2**30


def read_cards(gpus: Sequence[int] = ()) -> tuple[Card, ...]:
    """The GPUs with the given NVML indices (none given: all there are). Takes some 10 ms for each.

    Raises NoDriverError, and LookupError for an index that there is no GPU of. A GPU that is lost has no figures.
    """
    with opened() as library:
        indices = tuple(gpus) or range(library.demand("nvmlDeviceGetCount"))
        driver = library.text("nvmlSystemGetDriverVersion")
        return tuple(_card(library, index, driver) for index in indices)


def memory_of(library: Library, handle: Any) -> tuple[int, int, int, int | None]:
    """Total, used and free bytes, and what the driver keeps for itself (None: too old to tell, it counts as used).

    Raises GpuLostError, and LookupError where it does not tell.
    """
    try:
        version = getattr(library.binding, "nvmlMemory_v2", None)
        if version is None:
            raise LookupError
        memory = library.demand("nvmlDeviceGetMemoryInfo", handle, version)
        return int(memory.total), int(memory.used), int(memory.free), int(memory.reserved)
    except LookupError:
        memory = library.demand("nvmlDeviceGetMemoryInfo", handle)
        return int(memory.total), int(memory.used), int(memory.free), None


def _card(library: Library, index: int, driver: str | None) -> Card:
    try:
        handle = library.demand("nvmlDeviceGetHandleByIndex", index)
    except GpuLostError:
        return Card(index, f"index-{index}", driver=driver)
    except LookupError as error:
        count = library.ask("nvmlDeviceGetCount")
        raise LookupError(f"there is no GPU {index} (the driver knows {count or 'none'}): {error}") from None
    uuid = library.text("nvmlDeviceGetUUID", handle) or f"index-{index}"
    name = library.text("nvmlDeviceGetName", handle)
    try:
        return Card(index, uuid, name, driver, **_figures(library, handle))
    except GpuLostError:
        return Card(index, uuid, name, driver)


def _figures(library: Library, handle: Any) -> dict[str, Any]:
    ask, constant = library.ask, library.constant
    sm, memory = constant("NVML_CLOCK_SM", 1), constant("NVML_CLOCK_MEM", 2)
    found: dict[str, Any] = {
        "processes": _processes(library, handle),
        "utilization": _scaled(getattr(ask("nvmlDeviceGetUtilizationRates", handle), "gpu", None), 100),
        "power_w": _scaled(ask("nvmlDeviceGetPowerUsage", handle), 1000),
        "power_limit_w": _scaled(ask("nvmlDeviceGetEnforcedPowerLimit", handle), 1000),
        "energy_j": _scaled(ask("nvmlDeviceGetTotalEnergyConsumption", handle), 1000),
        "temperature_c": ask("nvmlDeviceGetTemperature", handle, constant("NVML_TEMPERATURE_GPU", 0)),
        "slowdown_c": ask(
            "nvmlDeviceGetTemperatureThreshold", handle, constant("NVML_TEMPERATURE_THRESHOLD_SLOWDOWN", 1)
        ),
        "sm_clock_mhz": ask("nvmlDeviceGetClockInfo", handle, sm),
        "sm_clock_max_mhz": ask("nvmlDeviceGetMaxClockInfo", handle, sm),
        "memory_clock_mhz": ask("nvmlDeviceGetClockInfo", handle, memory),
        "memory_clock_max_mhz": ask("nvmlDeviceGetMaxClockInfo", handle, memory),
        "throttle": clock_reasons(library, handle),
        "persistence": _flag(ask("nvmlDeviceGetPersistenceMode", handle)),
        "mig": _flag(ask("nvmlDeviceGetMigMode", handle)),
        "ecc": _flag(ask("nvmlDeviceGetEccMode", handle)),
        "ecc_errors": ask("nvmlDeviceGetTotalEccErrors", handle, 1, 0),  # uncorrected, since the driver was loaded
        "gpm": _flag(getattr(ask("nvmlGpmQueryDeviceSupport", handle), "isSupportedDevice", None)),
    }
    try:
        total, used, free, reserved = memory_of(library, handle)
    except LookupError:
        return found
    return found | {"total_bytes": total, "used_bytes": used, "free_bytes": free, "reserved_bytes": reserved}


def clock_reasons(library: Library, handle: Any) -> int | None:
    """NVML's clock event reasons by their new or their old name. Raises GpuLostError."""
    mask = library.ask("nvmlDeviceGetCurrentClocksEventReasons", handle)
    if mask is None:
        mask = library.ask("nvmlDeviceGetCurrentClocksThrottleReasons", handle)
    return None if mask is None else int(mask)


def _processes(library: Library, handle: Any) -> tuple[GpuProcess, ...] | None:
    running = library.ask("nvmlDeviceGetComputeRunningProcesses", handle)
    return None if running is None else tuple(_process(each.pid, each.usedGpuMemory) for each in running)


def _process(pid: int, used: int | None) -> GpuProcess:
    try:
        process = psutil.Process(pid)
        return GpuProcess(pid, used, process.username(), process.name())
    except (psutil.Error, KeyError):  # gone, of another namespace, or of a user without a name
        return GpuProcess(pid, used)


def _scaled(value: float | None, by: int) -> float | None:
    return None if value is None else value / by


def _flag(value: Any) -> bool | None:
    """Of a mode; where there are a current and a pending one, the current."""
    if value is None:
        return None
    return bool(value[0] if isinstance(value, list | tuple) else value)


def gpu_facts(gpus: Sequence[int] = ()) -> dict[str, Fact]:
    """Environment facts of the GPUs with the given NVML indices (none given: of all there are).

    ``gpu`` kind, ``gpu_count``, ``gpu_memory`` of each, ``driver``, and ``mig`` where a GPU is split. Never raises for
    a driver's sake: what it does not tell is absent, so that the identity says unknown.
    """
    found: dict[str, str | None] = {}
    try:
        with opened() as library:
            found["driver"] = library.text("nvmlSystemGetDriverVersion")
            indices = tuple(gpus) or range(library.demand("nvmlDeviceGetCount"))
            handles = [library.demand("nvmlDeviceGetHandleByIndex", index) for index in indices]
            if handles:
                found |= {
                    "gpu": _alike(library.text("nvmlDeviceGetName", handle) for handle in handles),
                    "gpu_count": str(len(handles)),
                    "gpu_memory": _alike(_size(library, handle) for handle in handles),
                    "mig": "on" if any(_split(library, handle) for handle in handles) else None,
                }
    except (NoDriverError, GpuLostError, LookupError):
        pass  # what was told before counts
    return {name: Fact(value=value, source="live") for name, value in found.items() if value}


def _size(library: Library, handle: Any) -> str | None:
    """In whole GiB: what a driver counts as the total moves by some MiB from version to version."""
    try:
        return f"{memory_of(library, handle)[0] / _GIB:.0f} GiB"
    except (GpuLostError, LookupError):
        return None


def _split(library: Library, handle: Any) -> bool:
    """Whether it is divided into instances (MIG) now."""
    try:
        return bool(_flag(library.ask("nvmlDeviceGetMigMode", handle)))
    except GpuLostError:
        return False


def _alike(values: Iterable[str | None]) -> str | None:
    """The one value of all GPUs, or the different ones; None where any of them is not known."""
    found = list(values)
    known = [value for value in found if value]
    return " + ".join(sorted(set(known))) if len(known) == len(found) else None
