"""When requests are sent: closed loop, open loop, both, or a timetable; how the level changes; how long it lasts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Final, Literal, Self

from pydantic import BeforeValidator, ConfigDict, Field, model_validator

from pytest_llmperf.fields import Frozen, GivenFile, Level, Pause, Rate, Seconds

__all__ = ["Linear", "LoadProfile", "Steps"]

STAGGER_S: Final = 0.02
MAX_STAGGER_S: Final = 2.0
WARMUP_OF_A_TIMETABLE: Final = 2


class Linear(Frozen):
    """From ``start`` to the load's own level within ``over`` seconds of the run, evenly."""

    model_config = ConfigDict(populate_by_name=True)

    kind: Literal["linear"] = "linear"
    start: Level = Field(alias="from")
    to: Level | None = None
    """The level after it, if given."""
    over: Seconds


class Steps(Frozen):
    """One level after the other, each for so many seconds; the load's own level follows."""

    kind: Literal["steps"] = "steps"
    steps: tuple[tuple[Level, Seconds], ...] = Field(min_length=1)


def _ramp(written: object) -> object:
    if isinstance(written, Mapping) and "kind" not in written:
        return {"kind": "linear", **written}
    if isinstance(written, list | tuple):
        for step in written:
            if not isinstance(step, list | tuple) or len(step) != 2:
                raise ValueError(f"step {step!r}: write [level, duration], e.g. [4, '10 s']")
            if isinstance(step[1], int | float):
                raise ValueError(f"step {step!r}: {step[1]!r} has no unit; write e.g. '10 s'")
        return {"kind": "steps", "steps": written}
    return written


Ramp = Annotated[Linear | Steps, Field(discriminator="kind"), BeforeValidator(_ramp)]


class LoadProfile(Frozen):
    """When requests are sent. Exactly one of ``concurrency``, ``request_rate``, ``schedule`` and ``trace``."""

    concurrency: int | None = Field(default=None, ge=1, le=100_000)
    """Closed loop: requests (of multi-turn workloads: conversations) at a time."""
    request_rate: Rate | None = None
    """Open loop: requests (of multi-turn workloads: conversations) per second."""
    arrival: Literal["constant", "poisson", "gamma"] | None = None
    """Of ``request_rate``; default: Poisson, or gamma where ``burstiness`` is given."""
    burstiness: float | None = Field(default=None, gt=0, le=1000, allow_inf_nan=False)
    """Shape of the gamma distribution of the gaps, as in vLLM: their coefficient of variation is 1/√burstiness.
    1 is Poisson, less comes in bursts, more is more even."""
    max_concurrency: int | None = Field(default=None, ge=1, le=100_000)
    """Cap on what an open loop has in flight. Latency counts from the timetable all the same."""
    schedule: tuple[Pause, ...] | None = Field(default=None, min_length=1)
    """Seconds after the start of the run, ascending."""
    trace: GivenFile | None = None
    """Times of a recorded trace."""
    time_scale: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """Recorded times are multiplied by it: 0.5 replays twice as fast."""
    ramp: Ramp | None = None
    stagger: Pause | None = None
    """Closed loop: the first requests begin evenly within so many seconds; default: 20 ms each, at most 2 s."""
    requests: int | None = Field(default=None, ge=1)
    """Measured requests; exactly one of ``requests`` and ``duration``; a timetable may have neither."""
    duration: Seconds | None = None
    """Length of the measured window in seconds."""
    warmup: int | None = Field(default=None, ge=0)
    """Requests (multi-turn: conversations) before the window; default: twice the concurrency (conversations: once), or
    two seconds of the rate, at least 2; of a timetable the first two."""

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        kinds = [
            name for name in ("concurrency", "request_rate", "schedule", "trace") if getattr(self, name) is not None
        ]
        if len(kinds) != 1:
            if set(kinds) <= {"concurrency", "request_rate"}:
                raise ValueError("give exactly one of concurrency (closed loop) and request_rate (open loop)")
            raise ValueError(f"{' and '.join(kinds)} exclude each other: give one of them")
        if self.requests is not None and self.duration is not None:
            raise ValueError("give exactly one of requests and duration")
        if not self.timetable and self.requests is None and self.duration is None:
            raise ValueError("give exactly one of requests and duration")
        belongs = {
            "arrival": "request_rate",
            "burstiness": "request_rate",
            "time_scale": "trace",
            "stagger": "concurrency",
        }
        for name, owner in belongs.items():
            if getattr(self, name) is not None and getattr(self, owner) is None:
                other = {"request_rate": "request_rate (open loop)", "concurrency": "concurrency (closed loop)"}
                raise ValueError(f"{name} belongs to {other.get(owner, owner)}, not to {kinds[0]}")
        if self.max_concurrency is not None and self.concurrency is not None:
            raise ValueError("max_concurrency caps an open loop; with concurrency the loop is closed already")
        return self

    @model_validator(mode="after")
    def _arrivals(self) -> Self:
        if self.arrival == "gamma" and self.burstiness is None:
            raise ValueError(
                "arrival='gamma' needs burstiness: 1 is Poisson, less comes in bursts, e.g. burstiness=0.5"
            )
        if self.burstiness is not None and self.arrival not in (None, "gamma"):
            raise ValueError(f"burstiness belongs to arrival='gamma', not to {self.arrival!r}")
        if self.schedule is not None and any(b < a for a, b in zip(self.schedule, self.schedule[1:], strict=False)):
            raise ValueError("schedule: the times are not in ascending order")
        if self.schedule is not None and len(self.schedule) <= self.warmup_requests:
            raise ValueError(
                f"schedule: {len(self.schedule)} times leave nothing to measure after {self.warmup_requests} of warm-up"
            )
        if self.schedule is not None and self.requests is not None:
            needed = self.requests + self.warmup_requests
            if needed > len(self.schedule):
                raise ValueError(
                    f"requests={self.requests} and a warm-up of {self.warmup_requests} need {needed} times; "
                    f"schedule has {len(self.schedule)}"
                )
        return self

    @model_validator(mode="after")
    def _ramped(self) -> Self:
        ramp, level = self.ramp, self.concurrency or self.request_rate
        if ramp is None:
            return self
        if level is None:
            raise ValueError("ramp belongs to concurrency or request_rate, whose level it leads to")
        if self.stagger is not None:
            raise ValueError("stagger and ramp exclude each other: a ramp says itself when requests begin")
        if isinstance(ramp, Linear) and ramp.to is not None and ramp.to != level:
            raise ValueError(
                f"ramp: to={ramp.to:g} is not the level of the load, {level:g}; leave it out or make them equal"
            )
        if self.concurrency is not None:
            odd = [value for value in self._ramp_levels if value != int(value) or value > 100_000]
            if odd:
                raise ValueError(f"ramp: {odd[0]:g} is not a whole number of requests in flight")
        return self

    @property
    def open_loop(self) -> bool:
        return self.concurrency is None

    @property
    def timetable(self) -> bool:
        """The times themselves are given."""
        return self.schedule is not None or self.trace is not None

    @property
    def first_level(self) -> float:
        """Concurrency or rate at the start of the run."""
        return (*self._ramp_levels, float(self.concurrency or self.request_rate or 0))[0]

    @property
    def _ramp_levels(self) -> tuple[float, ...]:
        """The levels before the load's own at which the ramp stays or begins."""
        if self.ramp is None:
            return ()
        return (self.ramp.start,) if isinstance(self.ramp, Linear) else tuple(level for level, _ in self.ramp.steps)

    @property
    def peak_rate(self) -> float | None:
        """The highest rate of an open loop, its ramp included; None where it has no rate."""
        return None if self.request_rate is None else max(self.request_rate, *self._ramp_levels, 0.0)

    @property
    def peak_concurrency(self) -> int | None:
        """The most that a closed loop has in flight."""
        if self.concurrency is None:
            return None
        return max(level for _, level in self.levels)

    @property
    def levels(self) -> tuple[tuple[int, int], ...]:
        """Closed loop: (ns after the start of the run, requests in flight from then on); the first is at 0.

        A linear ramp is at the whole number next to its line.
        """
        if self.concurrency is None:
            return ()
        if self.ramp is None:
            return ((0, self.concurrency),)
        if isinstance(self.ramp, Steps):
            found, at = [], 0.0
            for level, seconds in self.ramp.steps:
                found.append((round(at * 1e9), int(level)))
                at += seconds
            return (*found, (round(at * 1e9), self.concurrency))
        start, end, over = int(self.ramp.start), self.concurrency, self.ramp.over
        way, step = abs(end - start), 1 if end > start else -1
        return ((0, start), *((round((k + 0.5) / way * over * 1e9), start + step * (k + 1)) for k in range(way)))

    @property
    def stagger_ns(self) -> int:
        """Time over which the first requests of a closed loop begin."""
        if self.concurrency is None or self.ramp is not None:
            return 0
        seconds = min(MAX_STAGGER_S, STAGGER_S * self.concurrency) if self.stagger is None else self.stagger
        return round(seconds * 1e9)

    @property
    def warmup_requests(self) -> int:
        if self.warmup is not None:
            return self.warmup
        return WARMUP_OF_A_TIMETABLE if self.timetable else max(2, math.ceil(2 * self.first_level))

    def describe(self) -> str:
        """E.g. ``closed loop, 16 in flight`` or ``hybrid, 5 req/s poisson, at most 8 in flight``."""
        if self.concurrency is not None:
            text = f"closed loop, {self.concurrency} in flight"
        else:
            kind = "open loop" if self.max_concurrency is None else "hybrid"
            text = f"{kind}, {self._times()}"
            if self.max_concurrency is not None:
                text += f", at most {self.max_concurrency} in flight"
        if isinstance(self.ramp, Linear):
            text += f" (from {self.ramp.start:g} over {self.ramp.over:g} s)"
        elif self.ramp is not None:
            text += f" (after {', '.join(f'{level:g} for {seconds:g} s' for level, seconds in self.ramp.steps)})"
        return text

    def _times(self) -> str:
        if self.request_rate is not None:
            if self.burstiness is not None:
                return f"{self.request_rate:g} req/s gamma, burstiness {self.burstiness:g}"
            return f"{self.request_rate:g} req/s {self.arrival or 'poisson'}"
        if self.schedule is not None:
            return f"{len(self.schedule)} given times"
        assert self.trace is not None
        return f"trace {self.trace.name}" + (f" at {self.time_scale:g} of its times" if self.time_scale else "")
