"""What can be known of a load before it runs: its files are read, its counts filled in, its oddities said."""

from __future__ import annotations

import math

from pytest_llmperf.errors import ConfigError, MarkerError
from pytest_llmperf.inputs.datasets import read_dataset
from pytest_llmperf.inputs.traces import count_rows
from pytest_llmperf.plan import DataFile, LoadProfile, Workload

__all__ = ["complete"]


def complete(workload: Workload, load: LoadProfile) -> tuple[LoadProfile, tuple[str, ...]]:
    """``load`` with the number of requests that its timetable has, and notes on both.

    Raises ConfigError (file, line, value) where a file is not what it should be, MarkerError where it does not suffice.
    """
    notes: list[str] = []
    if load.warmup is None and load.concurrency is not None and any(part.turns for part in workload.parts):
        # One whole conversation for every slot: the window begins when the first of them is over.
        load = _changed(load, warmup=max(2, math.ceil(load.first_level)))
    if load.trace is not None:
        load = _timed(load, load.trace, notes)
    elif load.schedule is not None and load.requests is None and load.duration is None:
        load = _changed(load, requests=len(load.schedule) - load.warmup_requests)
    if load.trace is None and workload.trace is not None:
        _lengths_of(workload.trace, load, notes)
    if workload.dataset is not None:
        _texts_of(workload, workload.dataset, load, notes)
    return load, (*notes, *_notes(workload, load))


def _changed(load: LoadProfile, **changes: int) -> LoadProfile:
    return LoadProfile.model_validate({**load.model_dump(), **changes})


def _timed(load: LoadProfile, trace: DataFile, notes: list[str]) -> LoadProfile:
    warmup, scale, duration = load.warmup_requests, load.time_scale or 1.0, load.duration
    needed = None if load.requests is None else warmup + load.requests
    window = None if duration is None else (lambda start_ns: start_ns + round(duration * 1e9 / scale))
    usable, skipped = count_rows(trace.path, needed, window, warmup)
    if needed is not None and usable < needed:
        raise MarkerError(
            "llmperf",
            "requests",
            f"{load.requests} and a warm-up of {warmup} need {needed} requests, and {trace.path} has {usable}",
        )
    if usable <= warmup:
        raise MarkerError(
            "llmperf", "trace", f"{trace.path} has {usable} requests: nothing to measure after {warmup} of warm-up"
        )
    _skipped(skipped, trace, notes)
    return _changed(load, requests=usable - warmup) if needed is None and duration is None else load


def _lengths_of(trace: DataFile, load: LoadProfile, notes: list[str]) -> None:
    needed = None if load.requests is None else load.warmup_requests + load.requests
    usable, skipped = count_rows(trace.path, needed, None, 0)
    if not usable:
        raise ConfigError(trace.path, "", "has no request with prompt and output tokens")
    _skipped(skipped, trace, notes)
    if needed is not None and usable < needed:
        notes.append(f"trace {trace.name} has lengths for {usable} of {needed} requests: they come again")


def _texts_of(workload: Workload, data: DataFile, load: LoadProfile, notes: list[str]) -> None:
    rows = read_dataset(data.path, data.digest, workload.api)
    if workload.output is None:
        for number, row in enumerate(rows, 1):
            if row.output_tokens is None and row.reply_tokens(0) is None:
                raise ConfigError(
                    data.path,
                    f"request {number}",
                    "has no output_tokens, and the workload has no output: give one of them",
                )
    if workload.turns is not None and all(len(row.exchanges) < 2 for row in rows):
        raise ConfigError(data.path, "", "has no conversation of more than one turn: leave out turns")
    needed = None if load.requests is None else load.warmup_requests + load.requests
    if workload.turns is None and needed is not None and needed > len(rows):
        notes.append(
            f"data set {data.name} has {len(rows)} texts for {needed} requests: they come again, and a prefix cache "
            "may serve them"
        )


def _skipped(rows: int, trace: DataFile, notes: list[str]) -> None:
    if rows:
        notes.append(f"trace {trace.name}: {rows} requests without prompt or output tokens are left out")


def _notes(workload: Workload, load: LoadProfile) -> list[str]:
    notes = []
    if load.max_concurrency is not None:
        notes.append(
            f"hybrid load: at most {load.max_concurrency} requests are in flight; latency counts from the timetable, "
            "so waiting for a place is part of it"
        )
    alike = (
        len(workload.parts) == 1 and workload.dataset is None and workload.trace is None and workload.parts[0].constant
    )
    if alike and load.concurrency is not None and load.concurrency > 1:
        notes.append(
            "constant lengths in a closed loop: requests move in convoys and wait for each other's prompts; vary the "
            "lengths, e.g. {uniform = [64, 192]}, or send at a request_rate"
        )
    share = min(part.stream_share for part in workload.parts)
    if share < 1:
        notes.append(
            "replies that are not streamed have no TTFT, TPOT, ICL and ITL: these are of the streamed ones alone"
        )
    return notes
