"""One load out of the parts that several client processes drove."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from pytest_llmperf.load.drive import Drive
from pytest_llmperf.records import ClientStats, Window

__all__ = ["merge"]


def merge(parts: Sequence[Drive], duration: float | None) -> Drive:
    """The parts as one; their clock is the same. A slip or lag quantile is the worst part's."""
    if len(parts) == 1:
        return replace(parts[0], client=_client([parts[0].client]))
    records = sorted((record for part in parts for record in part.records), key=lambda record: record.index)
    windows = [part.window for part in parts if part.window.end_ns > part.window.start_ns]
    start_ns = min((window.start_ns for window in windows), default=parts[0].window.start_ns)
    end_ns = max((window.end_ns for window in windows), default=start_ns)
    if duration is not None and windows:
        end_ns = min(end_ns, start_ns + round(duration * 1e9))
    first = min(parts, key=lambda part: part.monotonic_start_ns)
    return Drive(
        records=tuple(records),
        window=Window(start_ns, end_ns),
        client=_client([part.client for part in parts]),
        monotonic_start_ns=first.monotonic_start_ns,
        wall_start=first.wall_start,
        complete=all(part.complete for part in parts),
        warnings=tuple(dict.fromkeys(warning for part in parts for warning in part.warnings)),
    )


def _client(parts: Sequence[ClientStats]) -> ClientStats:
    def worst(value: Callable[[ClientStats], int | None]) -> int | None:
        return max((found for part in parts if (found := value(part)) is not None), default=None)

    return ClientStats(
        stamps="user" if any(part.stamps == "user" for part in parts) else "kernel",
        reads=sum(part.reads for part in parts),
        unstamped_reads=sum(part.unstamped_reads for part in parts),
        shared_reads=sum(part.shared_reads for part in parts),
        output_chunks=sum(part.output_chunks for part in parts),
        cpu_seconds=sum(part.cpu_seconds for part in parts),
        wall_seconds=max(part.wall_seconds for part in parts),
        slip_p99_ns=worst(lambda part: part.slip_p99_ns),
        slip_max_ns=worst(lambda part: part.slip_max_ns),
        wake_lag_p99_ns=worst(lambda part: part.wake_lag_p99_ns),
        realtime=all(part.realtime for part in parts),
        processes=len(parts),
        cpu_total_seconds=sum(part.cpu_total_seconds or 0.0 for part in parts),
        busiest=max((part.cpu_seconds / part.wall_seconds for part in parts if part.wall_seconds > 0), default=None),
        retried=sum(part.retried for part in parts),
    )
