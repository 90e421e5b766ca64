"""How busy a GPU's multiprocessors and memory were between two times: GPM, Hopper or newer."""

from __future__ import annotations

import math
from contextlib import suppress
from typing import Any, Final, final

from pytest_llmperf.telemetry.nvml import GpuLostError, Library

__all__ = ["Activity"]

_SM_UTIL: Final = 2
_DRAM_BW_UTIL: Final = 10
"""NVML's numbers of the metrics, both in percent."""
_WHOLE: Final = 0xFFFFFFFF
"""The instance of a GPU that is not divided."""


@final
class Activity:
    """Of one GPU. To be closed: samples are memory of the library. To open it may raise GpuLostError."""

    def __init__(self, library: Library, handle: Any) -> None:
        self._library, self._handle = library, handle
        support = library.ask("nvmlGpmQueryDeviceSupport", handle)
        self._samples: list[Any] = []
        self._filled = False
        self._instance: int | None = None
        if getattr(support, "isSupportedDevice", 0):
            self._samples = [sample for _ in range(2) if (sample := library.ask("nvmlGpmSampleAlloc")) is not None]

    def close(self) -> None:
        for sample in self._samples:
            with suppress(GpuLostError):
                self._library.ask("nvmlGpmSampleFree", sample)
        self._samples = []

    def read(self, instance: int | None) -> tuple[float | None, float | None]:
        """Shares of time since the last read that multiprocessors (and how many of them) and memory bandwidth were in
        use; None the first time, and where GPM is not supported. ``instance``: of a divided GPU (MIG), the server's.

        Raises GpuLostError.
        """
        if len(self._samples) < 2:
            return None, None
        before, now = self._samples
        part = None if instance == _WHOLE else instance
        if part is None:
            taken = self._library.ask("nvmlGpmSampleGet", self._handle, now)
        else:
            taken = self._library.ask("nvmlGpmMigSampleGet", self._handle, part, now)
        comparable = self._filled and part == self._instance
        self._filled, self._instance = taken is not None, part
        self._samples = [now, before]
        return self._between(before, now) if taken is not None and comparable else (None, None)

    def _between(self, before: Any, now: Any) -> tuple[float | None, float | None]:
        wanted = (_SM_UTIL, _DRAM_BW_UTIL)
        request = self._library.binding.c_nvmlGpmMetricsGet_t()
        request.version = self._library.constant("NVML_GPM_METRICS_GET_VERSION", 1)
        request.numMetrics = len(wanted)
        request.sample1, request.sample2 = before, now
        for place, metric in enumerate(wanted):
            request.metrics[place].metricId = metric
        if self._library.ask("nvmlGpmMetricsGet", request) is None:
            return None, None
        sm, dram = (_share(request.metrics[place]) for place in range(len(wanted)))
        return sm, dram


def _share(metric: Any) -> float | None:
    value = float(metric.value)
    return None if metric.nvmlReturn != 0 or not math.isfinite(value) else value / 100
