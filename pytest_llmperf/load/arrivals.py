"""The plan of a load: which requests there are, how long they are and, in open loop, when each is due."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import repeat
from random import Random

from pytest_llmperf.inputs.traces import trace_rows
from pytest_llmperf.load.contents import conversations
from pytest_llmperf.load.curves import rate_curve
from pytest_llmperf.plan import LoadProfile, Workload
from pytest_llmperf.records import Arrival, Phase

__all__ = ["schedule"]

_NS = 1_000_000_000


def schedule(workload: Workload, load: LoadProfile, seed: int) -> Iterator[Arrival]:
    """Every arrival in order: warm-up, then measured. Equal arguments give equal plans.

    The turns of a conversation follow each other in the plan; all are warm-up or all are measured, and only the first
    has a time. It ends after ``load.requests`` measured arrivals, with the last time of a timetable, or in open loop
    with the last arrival earlier than ``load.duration`` after the first measured one. In closed loop with a duration
    only the clock can tell how many requests fit, so that plan is endless: the driver stops drawing when the window is
    over.

    Open loop: ``offset_ns`` counts from the start of the run on one timetable without a gap between warm-up and
    window. Lengths and times come from generators of their own, so a change of the load leaves the lengths as they are.
    """
    warmup = load.warmup_requests
    end_ns: int | None = None
    index = measured = 0
    offsets = due_times(load, seed)
    for number, (offset_ns, turns) in enumerate(zip(offsets, conversations(workload, seed), strict=False)):
        if number == warmup and offset_ns is not None and load.duration is not None:
            end_ns = offset_ns + round(load.duration * _NS)
        if end_ns is not None and offset_ns is not None and offset_ns >= end_ns:
            return
        if number >= warmup and load.requests is not None:
            if measured >= load.requests:
                return
            turns = turns[: load.requests - measured]
        for turn, content in enumerate(turns):
            yield Arrival(
                index=index,
                phase=Phase.WARMUP if number < warmup else Phase.MEASURED,
                offset_ns=None if turn else offset_ns,
                input_tokens=content.input_tokens,
                output_tokens=content.output_tokens,
                prefix_group=content.prefix_group,
                prefix_tokens=content.prefix_tokens,
                blocks=content.blocks,
                conversation=number,
                turn=turn,
                follows=len(turns) - turn - 1,
                history=content.history,
                think_ns=content.think_ns,
                row=content.row,
                part=content.part,
                stream=content.stream,
            )
            index += 1
        measured += len(turns) if number >= warmup else 0


def due_times(load: LoadProfile, seed: int) -> Iterator[int | None]:
    """Due times in ns after the start of the run; None for ever in closed loop.

    A rate is a renewal process of mean gap 1, stretched by the inverse of the rate's integral: with a ramp arrivals are
    as dense as the rate says at every moment, and Poisson ones stay Poisson.
    """
    if load.concurrency is not None:
        return repeat(None)
    scale = load.time_scale or 1.0
    if load.trace is not None:
        return (round(row.offset_ns * scale) for row in trace_rows(load.trace.path, load.trace.digest))
    if load.schedule is not None:
        return (round(seconds * _NS) for seconds in load.schedule)
    curve = rate_curve(load)
    return (round(curve.inverse(amount) * _NS) for amount in _renewals(load, Random(f"{seed}/arrivals")))


def _renewals(load: LoadProfile, rng: Random) -> Iterator[float]:
    """Times of events at rate 1."""
    total = 0.0
    if load.arrival == "constant":
        while True:
            yield total  # whole numbers, so that no rounding adds up
            total += 1
    shape = load.burstiness
    while True:
        # Gamma with mean 1 and variance 1/shape.
        total += rng.expovariate(1.0) if shape is None else rng.gammavariate(shape, 1 / shape)
        yield total
