"""GPU memory through NVIDIA's management library.

The only module that imports pynvml, and only when asked.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Self, final

from pytest_llmperf.records import GpuSample

__all__ = ["GpuMemory"]


@final
class GpuMemory:
    """Memory of the GPUs with the given NVML indices. A context manager; never raises for a driver's sake.

    ``note`` says why there are no samples, e.g. that there is no NVIDIA driver.
    """

    def __init__(self, gpus: Sequence[int]) -> None:
        self.note: str | None = None
        self._gpus = tuple(gpus)
        self._handles: dict[int, Any] = {}
        self._nvml: Any = None

    def __enter__(self) -> Self:
        if self._gpus:
            self.note = self._open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._nvml is not None:
            with suppress(self._nvml.NVMLError):
                self._nvml.nvmlShutdown()
            self._nvml, self._handles = None, {}

    def sample(self, t_ns: int, pids: Collection[int]) -> tuple[GpuSample, ...]:
        """Every GPU that answers, stamped ``t_ns``.

        ``server_bytes`` is the memory of those of ``pids`` on it.
        """
        found = []
        for gpu, handle in self._handles.items():
            try:
                used = int(self._nvml.nvmlDeviceGetMemoryInfo(handle).used)
            except self._nvml.NVMLError as error:
                self.note = f"GPU {gpu} does not answer: {error}"
                continue
            found.append(GpuSample(t_ns, gpu, used, self._of(handle, pids)))
        return tuple(found)

    def _open(self) -> str | None:
        try:
            import pynvml
        except ImportError:
            return "GPU memory not measured: nvidia-ml-py is not installed"
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            return f"GPU memory not measured: no NVIDIA driver ({error})"
        self._nvml = pynvml
        for gpu in self._gpus:
            try:
                self._handles[gpu] = pynvml.nvmlDeviceGetHandleByIndex(gpu)
            except pynvml.NVMLError as error:
                return f"GPU memory not measured: GPU {gpu}: {error}"
        return None

    def _of(self, handle: Any, pids: Collection[int]) -> int | None:
        """None where the driver names no process of ours: in a container it may list other pids, or none."""
        try:
            running = self._nvml.nvmlDeviceGetComputeRunningProcesses(handle)
        except self._nvml.NVMLError:
            return None
        ours = [process.usedGpuMemory for process in running if process.pid in pids]
        return sum(ours) if ours and all(used is not None for used in ours) else None
