"""Has a series of means a trend, or a change of level? Tests that need no estimate of its autocorrelation.

Successive values of a load are correlated (requests share a queue; in closed loop they move in convoys), by how much is
unknown, and an estimate of it from a short series is what makes ordinary t tests see drifts everywhere. Both
statistics here are self-normalised: the change is divided by the wandering of partial sums of what it leaves over,
which grows with the same unknown correlation, so it cancels.

- ``level_change``: max over k of T_k^2 / V_k (Shao and Zhang, JASA 105, 2010), T_k = n^(-1/2) sum_{t<=k} (x_t - mean),
  V_k = n^(-2) (sum over t<=k of S_t^2 + sum over t>k of S_t^2), S the partial sums of the deviations from the mean of
  their own side.
- ``trend``: b^2 sum (t - mean t)^2 / C with b the least-squares slope and C = 2 n^(-2) sum S_t^2 of its residuals
  (the b = 1 statistic of Kiefer and Vogelsang, Econometric Theory 21, 2005).

A short series cannot cancel all of it, so the critical values are those of a first-order autoregression, by simulation
(40,000 series for each length; a test repeats it in small): *short* memory is 0.4 between neighbours at 99.5 %, which
is beyond 99.9 % for independent values; *long* is 0.7 at 99.8 %, for what passes through a queue. A caller asks in
addition for a smallest change, as a tiny one can be certain and harmless.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Final, Literal

__all__ = ["FEWEST", "MOST", "Memory", "Shift", "level_change", "trend"]

FEWEST: Final = 8
MOST: Final = 64
_LENGTHS: Final = (8, 10, 12, 16, 24, 32, 48, 64)
Memory = Literal["short", "long"]
_LEVEL: Final[dict[Memory, tuple[float, ...]]] = {
    "short": (226, 202, 174, 158, 142, 131, 113, 109),
    "long": (473, 420, 394, 377, 349, 322, 252, 220),
}
_TREND: Final[dict[Memory, tuple[float, ...]]] = {
    "short": (387, 312, 260, 214, 187, 162, 145, 134),
    "long": (1025, 868, 805, 673, 521, 421, 322, 284),
}
_EDGE: Final = 0.15
"""A side shorter than this share of the series is no level of its own."""


@dataclass(frozen=True, slots=True)
class Shift:
    """A change inside a series, and how clear it is."""

    before: float
    """Mean of the earlier side; trend: the line at the beginning."""
    after: float
    mean: float
    """Of the whole series."""
    left: float
    """Share of the variance that the change leaves unexplained."""
    at: float | None
    """Level: where it changes, as a share of the series. Trend: None."""
    statistic: float
    critical: float

    @property
    def shown(self) -> bool:
        return self.statistic > self.critical

    @property
    def change(self) -> float:
        """Relative to the mean; 0 where that is not positive."""
        return (self.after - self.before) / self.mean if self.mean > 0 else 0.0


def level_change(points: Sequence[float], memory: Memory = "short") -> Shift:
    """The clearest change of level. Raises ValueError for fewer than ``FEWEST`` or more than ``MOST`` points."""
    n = _length(points)
    edge = max(2, round(_EDGE * n))
    sums = [0.0, *accumulate(points)]
    best, split = -1.0, edge
    for k in range(edge, n - edge + 1):
        wandering = (_wandering(points[:k]) + _wandering(points[k:])) / n**2
        step = (sums[k] - k / n * sums[n]) ** 2 / n
        found = _ratio(step, wandering)
        if found > best:
            best, split = found, k
    before, after = sums[split] / split, (sums[n] - sums[split]) / (n - split)
    left = _left(points, [before] * split + [after] * (n - split))
    return Shift(before, after, sums[n] / n, left, split / n, best, _critical(n, _LEVEL[memory]))


def trend(points: Sequence[float], memory: Memory = "short") -> Shift:
    """The straight line through the points. Raises ValueError as ``level_change``."""
    n = _length(points)
    mean, middle = sum(points) / n, (n - 1) / 2
    spread = n * (n * n - 1) / 12  # sum of (t - middle)^2
    slope = sum((t - middle) * x for t, x in enumerate(points)) / spread
    line = [mean + slope * (t - middle) for t in range(n)]
    wandering = 2 * sum(s * s for s in accumulate(x - y for x, y in zip(points, line, strict=True))) / n**2
    statistic = _ratio(slope**2 * spread, wandering)
    return Shift(line[0], line[-1], mean, _left(points, line), None, statistic, _critical(n, _TREND[memory]))


def _wandering(side: Sequence[float]) -> float:
    mean = sum(side) / len(side)
    return sum(s * s for s in accumulate(x - mean for x in side))


def _left(points: Sequence[float], fitted: Sequence[float]) -> float:
    mean = sum(points) / len(points)
    total = sum((x - mean) ** 2 for x in points)
    return sum((x - y) ** 2 for x, y in zip(points, fitted, strict=True)) / total if total > 0 else 1.0


def _ratio(change: float, wandering: float) -> float:
    if wandering > 0:
        return change / wandering
    return float("inf") if change > 0 else 0.0


def _critical(n: int, values: Sequence[float]) -> float:
    for (low, at_low), (high, at_high) in pairwise(zip(_LENGTHS, values, strict=True)):
        if n <= high:
            return at_low + (n - low) / (high - low) * (at_high - at_low)
    raise AssertionError(n)


def _length(points: Sequence[float]) -> int:
    if not FEWEST <= len(points) <= MOST:
        raise ValueError(f"needs {FEWEST} to {MOST} points, got {len(points)}")
    return len(points)
