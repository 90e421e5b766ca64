"""Do launches fall into two groups, fast and slow ones? A baseline of such launches describes neither.

A server that draws its speed when it starts (memory placement, a compiled variant, which cores it got) gives launches
of two kinds, and a comparison then depends on how many of each it caught. The launches of one metric are split in two,
at least two on each side, where F = (between) / (within / (n - 2)) of the log values is largest (Engelman and Hartigan,
JASA 64, 1969); they are called bimodal where F exceeds its 99 % quantile for normal values and the groups lie apart by
at least the smallest change that the gate calls a regression. Fewer than four launches cannot show it.

By simulation, for three correlated primary metrics together: false alarms 0.5 % for launches that vary by 1 %, at most
2.6 % for any normal or heavy-tailed noise, 1 to 7 % where single launches are disturbed; launches of which 30 % are 4 %
slower are found in 26 % of cases with 6 launches, 60 % with 9, 95 % with 18.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from pytest_llmperf.stats.arms import in_base_units, oriented
from pytest_llmperf.stats.family import gate_row
from pytest_llmperf.stats.launches import LaunchValues

__all__ = ["FEWEST", "Modes", "bimodal"]

FEWEST: Final = 4
_CRITICAL: Final[tuple[tuple[int, float], ...]] = (
    (4, 292.0), (5, 167.0), (6, 119.0), (7, 99.0), (8, 88.0), (9, 82.0), (10, 79.0), (12, 78.0), (15, 80.0), (18, 85.0),
)  # fmt: skip
"""Launches → 99 % quantile of F, 400,000 series each; more launches use the last."""


@dataclass(frozen=True, slots=True)
class Modes:
    """Two groups of launches of one metric."""

    metric: str
    better: float
    """Geometric mean of the better group, in base units."""
    worse: float
    n_better: int
    n_worse: int
    statistic: float
    critical: float


def bimodal(launches: Sequence[LaunchValues], metrics: Sequence[str]) -> tuple[Modes, ...]:
    """The metrics whose launches fall into two groups; those without a value in every launch are left out.

    Raises ValueError for a metric that cannot be gated.
    """
    found = []
    for name in metrics:
        row = gate_row(name)
        if row is None:
            raise ValueError(f"{name} cannot be gated")
        values: list[float] = sorted(oriented(launches, (name,))[:, 0].tolist()) if launches else []
        if len(values) < FEWEST or not all(math.isfinite(y) for y in values):
            continue
        statistic, at = _split(values, row.sd_floor**2)
        low, high = values[:at], values[at:]
        better, worse = math.fsum(low) / at, math.fsum(high) / len(high)
        critical = _critical(len(values))
        if statistic > critical and worse - better >= row.tolerance.floor:
            base, other = in_base_units(name, better), in_base_units(name, worse)
            found.append(Modes(name, base, other, at, len(high), statistic, critical))
    return tuple(found)


def _split(ordered: Sequence[float], least_variance: float) -> tuple[float, int]:
    """(F, size of the lower group) of the best split; launches never agree better than the metric's floor."""
    n = len(ordered)
    best, where = -1.0, 2
    for at in range(2, n - 1):
        low, high = ordered[:at], ordered[at:]
        means = sum(low) / at, sum(high) / (n - at)
        within = sum((y - mean) ** 2 for side, mean in zip((low, high), means, strict=True) for y in side)
        between = at * (n - at) / n * (means[1] - means[0]) ** 2
        statistic = between / max(within / (n - 2), least_variance)
        if statistic > best:
            best, where = statistic, at
    return best, where


def _critical(n: int) -> float:
    for (low, at_low), (high, at_high) in pairwise(_CRITICAL):
        if n <= high:
            return at_low + (n - low) / (high - low) * (at_high - at_low)
    return _CRITICAL[-1][1]
