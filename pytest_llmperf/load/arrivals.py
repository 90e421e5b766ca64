"""The plan of a load: which requests there are, how long they are and, in open loop, when each is due."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from random import Random

from pytest_llmperf.plan import Fixed, LoadProfile, Lognormal, Uniform, Workload
from pytest_llmperf.records import Arrival, Phase

__all__ = ["schedule"]

_NS = 1_000_000_000


def schedule(workload: Workload, load: LoadProfile, seed: int) -> Iterator[Arrival]:
    """Every arrival in order: warm-up, then measured. Equal arguments give equal plans.

    It ends after ``load.requests`` measured arrivals, or in open loop with the last arrival earlier than
    ``load.duration`` after the first measured one. In closed loop with a duration only the clock can tell how many
    requests fit, so that plan is endless: the driver stops drawing when the window is over.

    Open loop: ``offset_ns`` counts from the start of the run on one timetable without a gap between warm-up and
    window. Lengths and times come from generators of their own, so a change of the load leaves the lengths as they are.
    """
    draw_input = _lengths(workload.input, Random(f"{seed}/input"))
    draw_output = _lengths(workload.output, Random(f"{seed}/output"))
    offsets = _offsets(load, Random(f"{seed}/arrivals"))
    shared, warmup = workload.shared_prefix, load.warmup_requests
    last_index = None if load.requests is None else warmup + load.requests
    end_ns: int | None = None
    index = 0
    while last_index is None or index < last_index:
        offset_ns = next(offsets)
        if index == warmup and offset_ns is not None and load.duration is not None:
            end_ns = offset_ns + round(load.duration * _NS)
        if end_ns is not None and offset_ns is not None and offset_ns >= end_ns:
            return
        input_tokens = draw_input()
        yield Arrival(
            index=index,
            phase=Phase.WARMUP if index < warmup else Phase.MEASURED,
            offset_ns=offset_ns,
            input_tokens=input_tokens,
            output_tokens=draw_output(),
            # Groups take turns: every group is equally warm, and the plan stays even for any number of requests.
            prefix_group=index % shared.groups if shared else None,
            # At least one token of a prompt is its own.
            prefix_tokens=min(shared.tokens, input_tokens - 1) if shared else 0,
        )
        index += 1


def _lengths(lengths: Fixed | Uniform | Lognormal, rng: Random) -> Callable[[], int]:
    """A source of lengths in tokens, each at least 1."""
    if isinstance(lengths, Fixed):
        return lambda: lengths.tokens
    if isinstance(lengths, Uniform):
        return lambda: rng.randint(lengths.low, lengths.high)
    location = math.log(lengths.median)
    return lambda: min(lengths.high, max(lengths.low, round(rng.lognormvariate(location, lengths.sigma))))


def _offsets(load: LoadProfile, rng: Random) -> Iterator[int | None]:
    """Due times in ns after the start of the run; None for ever in closed loop."""
    if load.request_rate is None:
        while True:
            yield None
    elif load.arrival == "constant":
        index = 0
        while True:
            yield round(index / load.request_rate * _NS)  # from the index, so that rounding does not add up
            index += 1
    else:
        seconds = 0.0
        while True:
            seconds += rng.expovariate(load.request_rate)
            yield round(seconds * _NS)
