"""A GPU as its driver describes it at one time. Frozen; what the driver does not tell is None."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

__all__ = ["REASONS", "SLOWDOWNS", "STEP_MHZ", "Card", "GpuProcess", "gib", "reasons_in"]

REASONS: Final[dict[int, str]] = {
    0x1: "idle",
    0x2: "application clocks",
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x10: "sync boost",
    0x20: "thermal slowdown (software)",
    0x40: "thermal slowdown (hardware)",
    0x80: "power brake (hardware)",
    0x100: "display clocks",
}
"""NVML's clock event reasons, ``nvmlClocksEventReason…``: bit → what holds the clocks down."""
SLOWDOWNS: Final = 0x8 | 0x20 | 0x40 | 0x80
"""Those that no load ought to meet: heat, or the hardware's own brake. A power cap is normal."""
STEP_MHZ: Final = 15
"""SM clocks come in steps; a driver takes the nearest."""


def gib(size: int | None) -> str:
    """``size`` in bytes, for messages."""
    return "unknown" if size is None else f"{size / 2**30:.1f} GiB"


def reasons_in(mask: int) -> tuple[str, ...]:
    """The names of the bits that are set."""
    return tuple(text for bit, text in REASONS.items() if mask & bit)


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """A process that computes on a GPU."""

    pid: int
    """As the driver counts: in a container it may be that of the host."""
    used_bytes: int | None = None
    user: str | None = None
    command: str | None = None
    """Its name alone: arguments may hold secrets."""

    def __str__(self) -> str:
        return f"pid {self.pid}" + (f" ({self.command or 'process'} of {self.user})" if self.user else "")


@dataclass(frozen=True, slots=True)
class Card:
    """One GPU."""

    index: int
    """NVML's: in the order of the PCI bus, whatever CUDA_VISIBLE_DEVICES says."""
    uuid: str
    name: str | None = None
    driver: str | None = None
    total_bytes: int | None = None
    used_bytes: int | None = None
    reserved_bytes: int | None = None
    """What the driver keeps for itself; None: the driver is old and counts it as used."""
    free_bytes: int | None = None
    processes: tuple[GpuProcess, ...] | None = None
    utilization: float | None = None
    """Share of the driver's sampling period in which a kernel ran."""
    power_w: float | None = None
    power_limit_w: float | None = None
    energy_j: float | None = None
    temperature_c: float | None = None
    slowdown_c: float | None = None
    """Temperature at which the hardware slows down."""
    sm_clock_mhz: int | None = None
    sm_clock_max_mhz: int | None = None
    memory_clock_mhz: int | None = None
    memory_clock_max_mhz: int | None = None
    throttle: int | None = None
    """NVML's clock event reasons, a bit mask."""
    persistence: bool | None = None
    mig: bool | None = None
    """Divided into instances."""
    ecc: bool | None = None
    ecc_errors: int | None = None
    """Uncorrected since the driver was loaded."""
    gpm: bool | None = None
    """Whether the driver counts activity of multiprocessors and memory (Hopper or newer)."""

    @property
    def silent(self) -> bool:
        """Whether a driver that is there tells nothing at all of it: it is lost, or needs a reset."""
        told = (self.used_bytes, self.processes, self.utilization, self.power_w, self.temperature_c, self.sm_clock_mhz)
        return self.driver is not None and all(figure is None for figure in told)
