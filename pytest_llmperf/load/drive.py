"""What a load leaves behind, and what can be seen of it while it runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from pytest_llmperf.records import ClientStats, RequestRecord, Window

__all__ = ["Drive", "Progress"]


@final
@dataclass(frozen=True, slots=True)
class Drive:
    """What a load left behind."""

    records: tuple[RequestRecord, ...]
    """Warm-up included, ordered by index; requests that were never begun are absent."""
    window: Window
    """From the first measured request (closed loop: sent, open loop: scheduled). With a duration exactly that long,
    unless cut; else to the last output, or failure, of a measured request. Empty where none was begun."""
    client: ClientStats
    monotonic_start_ns: int
    """Start of the run; in open loop of the timetable."""
    wall_start: float
    """Unix time of the same moment, for correlation only."""
    complete: bool
    """False where it was stopped, cut at ``limits.run``, or given up because the server had gone away."""
    warnings: tuple[str, ...] = ()


@dataclass(slots=True)
class Progress:
    """Counters that another thread may read while the load runs. No lock: each is one reference."""

    sent: int = 0
    """Sends, the second of a retried request included."""
    in_flight: int = 0
    finished: int = 0
    """Ended in any way, warm-up included."""
    failed: int = 0
    """As far as parsed, which lags behind."""
