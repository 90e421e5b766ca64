"""What the driver and the locks tell of each GPU, in plain words."""

from __future__ import annotations

from pytest_llmperf.cards import SLOWDOWNS, Card, gib, reasons_in

__all__ = ["advice", "describe"]

_CLOSE_K = 5.0
"""To the temperature of the hardware's slowdown: too close to begin."""
_UNUSED = 0.9
"""Share of the memory that should be free where nobody is at work."""


def describe(card: Card, holder: str | None) -> list[str]:
    """Lines about one GPU; ``holder`` is who has its lock."""
    lines = [f"GPU {card.index}: {card.name or 'unknown'}, {card.uuid}"]
    if card.total_bytes is not None:
        reserved = "" if card.reserved_bytes is None else f", {gib(card.reserved_bytes)} kept by the driver"
        kept = " (with what the driver keeps)" if card.reserved_bytes is None else ""
        memory = f"{gib(card.used_bytes)} used{kept}, {gib(card.free_bytes)} free of {gib(card.total_bytes)}"
        lines.append(f"  memory:      {memory}{reserved}")
    lines.append(f"  processes:   {_processes(card)}")
    lines.append(f"  clocks:      SM {_clock(card.sm_clock_mhz, card.sm_clock_max_mhz)}, memory "
                 f"{_clock(card.memory_clock_mhz, card.memory_clock_max_mhz)}")  # fmt: skip
    lines.append(f"  held down:   {_reasons(card)}")
    slowdown = "" if card.slowdown_c is None else f" (slows down at {card.slowdown_c:.0f} °C)"
    limit = "" if card.power_limit_w is None else f" of {card.power_limit_w:.0f} W"
    lines.append(f"  heat, power: {_number(card.temperature_c, '°C')}{slowdown}, {_number(card.power_w, 'W')}{limit}")
    modes = {"persistence mode": card.persistence, "MIG": card.mig, "ECC": card.ecc, "activity counters": card.gpm}
    lines.append(f"  modes:       {', '.join(f'{name} {_mode(value)}' for name, value in modes.items())}")
    lines.append(f"  lock:        {f'held by {holder}' if holder else 'free'}")
    return [*lines, *(f"  ! {text}" for text in advice(card, holder))]


def advice(card: Card, holder: str | None) -> list[str]:
    """What would spoil a measurement on it, and what to do."""
    found = []
    if card.processes and holder is None:
        found.append("others compute on it without a lock: end them, or choose another GPU")
    if not card.processes and card.total_bytes and (card.free_bytes or 0) < _UNUSED * card.total_bytes:
        hidden = "memory is in use and no process is seen: of another container or user, or left behind by a crash"
        found.append(hidden)
    if (card.throttle or 0) & SLOWDOWNS:
        found.append(
            f"it is slowed down now: {', '.join(reasons_in((card.throttle or 0) & SLOWDOWNS))}; see to cooling"
        )
    if card.temperature_c is not None and card.slowdown_c and card.temperature_c >= card.slowdown_c - _CLOSE_K:
        found.append("it is nearly as hot as it may be before any load")
    if card.persistence is False:
        found.append("persistence mode is off: the driver unloads between launches, and starts vary (nvidia-smi -pm 1)")
    if card.ecc_errors:
        found.append(f"{card.ecc_errors} uncorrected memory errors since the driver was loaded: have it checked")
    if card.mig:
        found.append("it is divided into instances (MIG): utilization, power and clocks are those of the whole GPU")
    if card.total_bytes is None and card.temperature_c is None:
        found.append("it does not answer: lost, or to be reset; see the kernel's log")
    return found


def _processes(card: Card) -> str:
    if card.processes is None:
        return "not told by the driver"
    return "; ".join(
        f"{each}" + ("" if each.used_bytes is None else f" with {gib(each.used_bytes)}") for each in card.processes
    ) or "none seen"  # fmt: skip


def _reasons(card: Card) -> str:
    if card.throttle is None:
        return "not told by the driver"
    return ", ".join(reasons_in(card.throttle)) or "by nothing"


def _clock(now: int | None, most: int | None) -> str:
    return f"{_number(now, 'MHz')}" + ("" if most is None else f" of {most} MHz")


def _number(value: float | None, unit: str) -> str:
    return "unknown" if value is None else f"{value:.0f} {unit}"


def _mode(value: bool | None) -> str:
    return "unknown" if value is None else "on" if value else "off"
