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

The critical values are the 99 % points under a first-order autoregression of 0.4 between neighbours, by simulation
(20,000 series for each length; tests repeat it in small): for independent values that is 99.8 %. A caller asks in
addition for a smallest change, as a tiny one can be certain and harmless.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Final

__all__ = ["FEWEST", "MOST", "Shift", "level_change", "trend"]

FEWEST: Final = 8
MOST: Final = 64
_LENGTHS: Final = (8, 10, 12, 16, 24, 32, 48, 64)
_LEVEL: Final = (169.0, 149.0, 136.0, 132.0, 114.0, 107.0, 95.0, 88.0)
_TREND: Final = (268.0, 218.0, 194.0, 169.0, 134.0, 129.0, 114.0, 106.0)
_EDGE: Final = 0.15
"""A side shorter than this share of the series is no level of its own."""


@dataclass(frozen=True, slots=True)
class Shift:
    """A change inside a series, and how clear it is."""

    change: float
    """Relative. Level: the later side against the earlier. Trend: fitted end against fitted beginning."""
    at: float | None
    """Level: where it changes, as a share of the series. Trend: None."""
    statistic: float
    critical: float

    @property
    def shown(self) -> bool:
        return self.statistic > self.critical


def level_change(points: Sequence[float]) -> Shift:
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
    return Shift(after / before - 1 if before > 0 else 0.0, split / n, best, _critical(n, _LEVEL))


def trend(points: Sequence[float]) -> Shift:
    """The straight line through the points. Raises ValueError as ``level_change``."""
    n = _length(points)
    mean, middle = sum(points) / n, (n - 1) / 2
    spread = n * (n * n - 1) / 12  # sum of (t - middle)^2
    slope = sum((t - middle) * x for t, x in enumerate(points)) / spread
    left = [x - mean - slope * (t - middle) for t, x in enumerate(points)]
    wandering = 2 * sum(s * s for s in accumulate(left)) / n**2
    first, last = mean - slope * middle, mean + slope * middle
    return Shift(
        last / first - 1 if first > 0 else 0.0, None, _ratio(slope**2 * spread, wandering), _critical(n, _TREND)
    )


def _wandering(side: Sequence[float]) -> float:
    mean = sum(side) / len(side)
    return sum(s * s for s in accumulate(x - mean for x in side))


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
