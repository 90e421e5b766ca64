"""The GPUs of this machine, each as its driver describes it now."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import psutil

from pytest_llmperf.cards import Card, GpuProcess
from pytest_llmperf.telemetry.nvml import GpuLostError, Library, bounded, opened

__all__ = ["clock_reasons", "memory_of", "mode", "read_cards"]


def read_cards(gpus: Sequence[int] = ()) -> tuple[Card, ...]:
    """The GPUs with the given NVML indices (none given: all there are). Takes some 10 ms for each.

    Raises NoDriverError, DriverHangsError, and LookupError for an index that there is no GPU of. A GPU that is lost
    has no figures.
    """

    def look() -> tuple[Card, ...]:
        with opened() as library:
            indices = tuple(gpus) or range(library.demand("nvmlDeviceGetCount"))
            driver = library.text("nvmlSystemGetDriverVersion")
            return tuple(_card(library, index, driver) for index in indices)

    return bounded(look)


def memory_of(library: Library, handle: Any) -> tuple[int, int, int, int | None]:
    """Total, used and free bytes, and what the driver keeps for itself (None: too old to tell, it counts as used).

    Raises GpuLostError, and LookupError where it does not tell.
    """
    try:
        version = getattr(library.binding, "nvmlMemory_v2", None)
        if version is None:
            raise LookupError
        memory = library.demand("nvmlDeviceGetMemoryInfo", handle, version)
        return (*_sizes(memory), int(memory.reserved))
    except (LookupError, AttributeError, TypeError, ValueError):
        return (*_sizes(library.demand("nvmlDeviceGetMemoryInfo", handle)), None)


def _sizes(memory: Any) -> tuple[int, int, int]:
    """Total, used and free. Raises LookupError where they cannot be."""
    try:
        total, used, free = int(memory.total), int(memory.used), int(memory.free)
    except (AttributeError, TypeError, ValueError):
        raise LookupError("its memory is no number") from None
    if not 0 <= used <= total:
        raise LookupError(f"it tells {used} bytes in use of {total}")
    return total, used, free


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
    except (GpuLostError, TypeError, ValueError, AttributeError):  # the last three: no figures, but something else
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
        "persistence": mode(ask("nvmlDeviceGetPersistenceMode", handle)),
        "mig": mode(ask("nvmlDeviceGetMigMode", handle)),
        "ecc": mode(ask("nvmlDeviceGetEccMode", handle)),
        "ecc_errors": ask("nvmlDeviceGetTotalEccErrors", handle, 1, 0),  # uncorrected, since the driver was loaded
        "gpm": mode(getattr(ask("nvmlGpmQueryDeviceSupport", handle), "isSupportedDevice", None)),
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


def mode(value: Any) -> bool | None:
    """Of what can be on or off; where there are a current and a pending one, the current."""
    if value is None:
        return None
    return bool(value[0] if isinstance(value, list | tuple) else value)
