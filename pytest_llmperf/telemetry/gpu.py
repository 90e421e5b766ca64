"""Samples of GPUs while a load runs: what is cheap to ask every time, the rest once a second."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from types import TracebackType
from typing import Any, Final, Self, final

import psutil

from pytest_llmperf.errors import InfraError
from pytest_llmperf.plan import LAUNCH_VARIABLE
from pytest_llmperf.samples import GPU_LOST, GpuSample
from pytest_llmperf.telemetry.cards import clock_reasons, memory_of
from pytest_llmperf.telemetry.gpm import Activity
from pytest_llmperf.telemetry.nvml import GpuLostError, Library, require_answers
from pytest_llmperf.telemetry.xid import Faults

__all__ = ["GpuSampler"]

SELDOM_NS: Final = 1_000_000_000
"""Between two questions for what costs the driver more."""


@final
class GpuSampler:
    """The GPUs with the given NVML indices. A context manager; never raises for a driver's sake, and all of it may hang
    for a driver's sake: it belongs into a thread that nobody needs to wait for.

    Every sample has memory in use, SM clock and throttle reasons; about once a second it has everything that the
    driver tells: the server's own memory, foreign processes, utilization, power, energy, temperature, memory clock,
    activity of multiprocessors and memory since the second before. ``note`` says what is missing and why.
    """

    def __init__(self, gpus: Sequence[int]) -> None:
        self._gpus = tuple(gpus)
        self._library: Library | None = None
        self._cards: list[_Card] = []
        self._faults: Faults | None = None
        self._notes: dict[str, None] = {}
        self._kin = _Kin()

    def __enter__(self) -> Self:
        if not self._gpus:
            return self
        try:
            require_answers()
            self._library = Library.open()
        except InfraError as error:
            self._notes[f"GPU memory not measured: {error}"] = None
            return self
        for gpu in self._gpus:
            try:
                handle = self._library.demand("nvmlDeviceGetHandleByIndex", gpu)
                self._cards.append(_Card(self._library, gpu, handle, self._kin))
            except (GpuLostError, LookupError) as error:
                self._note(gpu, error, f"GPU memory not measured: GPU {gpu}: {error}")
        if self._cards:
            self._faults = Faults(self._library, {card.gpu: card.handle for card in self._cards})
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._library is not None:
            if self._faults is not None:
                self._notes |= dict.fromkeys(self._faults.read())
                self._faults.close()
            for card in self._cards:
                card.close()
            self._library.close()
            self._library, self._cards, self._faults = None, [], None

    @property
    def note(self) -> str | None:
        """What is missing and why; begins with ``samples.GPU_LOST`` where a GPU failed."""
        return "; ".join(sorted(self._notes, key=lambda note: not note.startswith(GPU_LOST))) or None

    def sample(self, t_ns: int, pids: Collection[int], *, whole: bool = False) -> tuple[GpuSample, ...]:
        """Every GPU that answers, stamped ``t_ns``. ``pids`` are the server's processes (none: not ours to see),
        ``whole``: with everything that the driver tells, whenever that was asked last."""
        found, seldom = [], False
        for card in self._cards:
            try:
                seldom |= whole or card.due(t_ns)
                found.append(card.read(t_ns, pids, whole=whole or card.due(t_ns)))
            except (GpuLostError, LookupError) as error:
                self._note(card.gpu, error, f"GPU {card.gpu} does not answer: {error}")
            except (AttributeError, TypeError, ValueError) as error:  # an answer of another form than NVML's
                self._note(card.gpu, error, f"GPU {card.gpu}: its driver's answer is not understood: {error}")
        if seldom and self._faults is not None:
            self._notes |= dict.fromkeys(self._faults.read())
        self._notes |= {card.note: None for card in self._cards if card.note is not None}
        return tuple(found)

    def _note(self, gpu: int, error: Exception, otherwise: str) -> None:
        self._notes[f"{GPU_LOST}: GPU {gpu}: {error}" if isinstance(error, GpuLostError) else otherwise] = None


@final
class _Card:
    """One GPU between two samples."""

    def __init__(self, library: Library, gpu: int, handle: Any, kin: _Kin) -> None:
        self._library, self.gpu, self.handle, self._kin = library, gpu, handle, kin
        self._asked_ns: int | None = None
        self._refused: set[str] = set()
        self._activity = Activity(library, handle)
        self._instance: int | None = None
        self.note: str | None = None

    def close(self) -> None:
        self._activity.close()

    def due(self, t_ns: int) -> bool:
        """Whether the next sample is one with everything."""
        return self._asked_ns is None or t_ns - self._asked_ns >= SELDOM_NS

    def read(self, t_ns: int, pids: Collection[int], *, whole: bool) -> GpuSample:
        """``whole``: with everything. Raises GpuLostError, and LookupError where it does not tell its memory."""
        library, handle = self._library, self.handle
        _, used, _, reserved = memory_of(library, handle)
        if reserved is None:
            self.note = f"memory in use of GPU {self.gpu} includes what its driver keeps for itself"
        often: dict[str, Any] = {
            "sm_clock_mhz": self._ask("nvmlDeviceGetClockInfo", library.constant("NVML_CLOCK_SM", 1)),
            "throttle": self._once("throttle", lambda: clock_reasons(library, handle)),
        }
        if not whole:
            return GpuSample(t_ns, self.gpu, used, None, **often)
        server, foreign = self._processes(pids)
        utilization = self._ask("nvmlDeviceGetUtilizationRates")
        sm, dram = self._activity.read(self._instance)
        found = GpuSample(
            t_ns,
            self.gpu,
            used,
            server,
            foreign_pids=foreign,
            utilization=None if utilization is None else utilization.gpu / 100,
            power_w=_thousandth(self._ask("nvmlDeviceGetPowerUsage")),
            energy_j=_thousandth(self._ask("nvmlDeviceGetTotalEnergyConsumption")),
            temperature_c=self._ask("nvmlDeviceGetTemperature", library.constant("NVML_TEMPERATURE_GPU", 0)),
            memory_clock_mhz=self._ask("nvmlDeviceGetClockInfo", library.constant("NVML_CLOCK_MEM", 2)),
            sm_activity=sm,
            dram_activity=dram,
            **often,
        )
        self._asked_ns = t_ns
        return found

    def _ask(self, function: str, *arguments: Any) -> Any:
        return self._once(f"{function}{arguments}", lambda: self._library.ask(function, self.handle, *arguments))

    def _once(self, name: str, ask: Callable[[], Any]) -> Any:
        """What is refused at the first question is not asked again: a refusal takes the driver's time too."""
        if name in self._refused:
            return None
        answer = ask()
        if answer is None and self._asked_ns is None:
            self._refused.add(name)
        return answer

    def _processes(self, pids: Collection[int]) -> tuple[int | None, tuple[int, ...] | None]:
        """Memory of the server's processes, and who else computes here.

        A driver may count processes as another namespace does: only where it has named one of the server's, on any
        of its GPUs, are the others strangers.
        """
        running = self._library.ask("nvmlDeviceGetComputeRunningProcesses", self.handle)
        if running is None:
            return None, None
        ours = [each for each in running if each.pid in pids or self._kin.related(each.pid, pids)]
        self._kin.seen |= bool(ours)
        if not self._kin.seen:
            return None, None
        sizes = [each.usedGpuMemory for each in ours]
        # Instances of a divided GPU (MIG) do not disturb one another.
        mine = {getattr(each, "gpuInstanceId", None) for each in ours}
        self._instance = mine.pop() if len(mine) == 1 else None
        strangers = [
            each
            for each in running
            if each not in ours and (self._instance is None or getattr(each, "gpuInstanceId", None) == self._instance)
        ]
        known = None if None in sizes else sum(sizes)
        return known, tuple(sorted({each.pid for each in strangers}))


@final
class _Kin:
    """Which processes came of the server's launch, although they hang below it no more."""

    def __init__(self) -> None:
        self.seen = False
        """Whether the driver has named a process of the server."""
        self._launches: dict[int, str | None] = {}

    def related(self, pid: int, pids: Collection[int]) -> bool:
        own = next((name for each in sorted(pids) if (name := self._launch(each)) is not None), None)
        return own is not None and self._launch(pid) == own

    def _launch(self, pid: int) -> str | None:
        """The launch that a process says it came of; None for a stranger, and for what may not be asked."""
        if pid not in self._launches:
            try:
                self._launches[pid] = psutil.Process(pid).environ().get(LAUNCH_VARIABLE)
            except (psutil.Error, OSError):
                self._launches[pid] = None
        return self._launches[pid]


def _thousandth(value: float | None) -> float | None:
    return None if value is None else value / 1000
