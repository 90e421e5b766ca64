"""GPUs through NVIDIA's management library: what they are, and their memory.

The only module that imports pynvml, and only when asked.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Final, Self, final

from pytest_llmperf.identity import Fact
from pytest_llmperf.samples import GpuSample

__all__ = ["GpuMemory", "gpu_facts"]

_GIB: Final = 2**30


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


def gpu_facts(gpus: Sequence[int] = ()) -> dict[str, Fact]:
    """Environment facts of the GPUs with the given NVML indices (none given: of all there are).

    ``gpu`` kind, ``gpu_count``, ``gpu_memory`` of each, ``driver``, and ``mig`` where a GPU is split. Never raises for
    a driver's sake: what it does not tell is absent, so that the identity says unknown.
    """
    try:
        import pynvml

        pynvml.nvmlInit()
    except ImportError:
        return {}
    except pynvml.NVMLError:
        return {}
    try:
        found = {"driver": _told(pynvml, pynvml.nvmlSystemGetDriverVersion)}
        try:
            indices = tuple(gpus) or range(pynvml.nvmlDeviceGetCount())
            handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in indices]
        except pynvml.NVMLError:
            handles = []
        if handles:
            found |= {
                "gpu": _alike(_told(pynvml, pynvml.nvmlDeviceGetName, handle) for handle in handles),
                "gpu_count": str(len(handles)),
                "gpu_memory": _alike(_told(pynvml, _memory_of, pynvml, handle) for handle in handles),
                "mig": "on" if any(_told(pynvml, _split, pynvml, handle) for handle in handles) else None,
            }
    finally:
        with suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()
    return {name: Fact(value=value, source="live") for name, value in found.items() if value}


def _told(nvml: Any, ask: Callable[..., Any], *arguments: Any) -> str | None:
    """The answer as text; None where there is none. Old bindings give bytes."""
    try:
        answer = ask(*arguments)
    except nvml.NVMLError:
        return None
    return answer.decode() if isinstance(answer, bytes) else str(answer or "")


def _memory_of(nvml: Any, handle: Any) -> str:
    """In whole GiB: what a driver counts as the total moves by some MiB from version to version."""
    return f"{nvml.nvmlDeviceGetMemoryInfo(handle).total / _GIB:.0f} GiB"


def _split(nvml: Any, handle: Any) -> str:
    """Not empty where the GPU is divided into instances (MIG) now."""
    current, _pending = nvml.nvmlDeviceGetMigMode(handle)
    return "on" if current == nvml.NVML_DEVICE_MIG_ENABLE else ""


def _alike(values: Iterable[str | None]) -> str | None:
    """The one value of all GPUs, or the different ones; None where any of them is not known."""
    found = list(values)
    known = [value for value in found if value]
    return " + ".join(sorted(set(known))) if len(known) == len(found) else None
