"""How many arrivals are due by when, for rates that change: integrals and their inverse, in closed form."""

from __future__ import annotations

import math
from dataclasses import dataclass

from pytest_llmperf.plan import Linear, LoadProfile

__all__ = ["RateCurve", "rate_curve"]


@dataclass(frozen=True, slots=True)
class _Piece:
    """The rate goes evenly from ``first`` to ``last`` within ``seconds``."""

    first: float
    last: float
    seconds: float

    @property
    def area(self) -> float:
        return (self.first + self.last) / 2 * self.seconds

    def integral(self, t: float) -> float:
        return self.first * t + (self.last - self.first) * t * t / (2 * self.seconds)

    def inverse(self, amount: float) -> float:
        """The t at which the integral is ``amount``: the root of slope/2 t² + first t - amount."""
        if amount == 0:
            return 0.0
        slope = (self.last - self.first) / self.seconds
        if slope == 0:
            return amount / self.first
        # In this form nothing is lost where the slope is small.
        return 2 * amount / (self.first + math.sqrt(max(0.0, self.first**2 + 2 * slope * amount)))


@dataclass(frozen=True, slots=True)
class RateCurve:
    """A rate over time: pieces one after the other, then ``rate`` for ever."""

    pieces: tuple[_Piece, ...]
    rate: float

    def integral(self, seconds: float) -> float:
        """Arrivals expected within the first ``seconds``."""
        total = 0.0
        for piece in self.pieces:
            if seconds < piece.seconds:
                return total + piece.integral(seconds)
            total, seconds = total + piece.area, seconds - piece.seconds
        return total + self.rate * seconds

    def inverse(self, amount: float) -> float:
        """The time by which ``amount`` arrivals are expected; after a pause, the end of it."""
        start = 0.0
        for piece in self.pieces:
            if amount < piece.area:
                return start + piece.inverse(amount)
            start, amount = start + piece.seconds, amount - piece.area
        return start + amount / self.rate


def rate_curve(load: LoadProfile) -> RateCurve:
    """The rate of an open loop with its ramp."""
    rate, ramp = load.request_rate, load.ramp
    assert rate is not None
    if ramp is None:
        return RateCurve((), rate)
    if isinstance(ramp, Linear):
        return RateCurve((_Piece(ramp.start, rate, ramp.over),), rate)
    return RateCurve(tuple(_Piece(level, level, seconds) for level, seconds in ramp.steps), rate)
