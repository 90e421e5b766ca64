"""What a runner's earlier jobs say about its noise: per metric a variance of one launch, and its weight.

Two or three blocks cannot estimate their own noise, so it is moderated by a prior, a scaled inverse chi-square with d0
degrees of freedom around s0 squared (Smyth, Stat. Appl. Genet. Mol. Biol. 3, 2004). Successive differences measure it,
since a drift through a job hardly touches them (von Neumann, Ann. Math. Stat. 12, 1941).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from types import MappingProxyType
from typing import Final, Self

from pytest_llmperf.catalog import metric
from pytest_llmperf.stats.family import gate_row
from pytest_llmperf.stats.launches import LaunchValues

__all__ = ["KEPT_DAYS", "KEPT_GROUPS", "MOST_D0", "NoiseGroup", "Prior"]

KEPT_GROUPS: Final = 12
KEPT_DAYS: Final = 90
MOST_D0: Final = 4.0
"""A prior that weighs more would break the false-positive rate once it is stale."""
_ROBUST_FROM: Final = 4
"""Groups from which on their median is used, which costs some information and forgives a job gone wrong."""
_DAY_S: Final = 86_400.0


@dataclass(frozen=True, slots=True)
class NoiseGroup:
    """How the launches of one arm of one job varied. Plain data: ``as_json`` and back loses nothing."""

    taken: float
    """Unix seconds."""
    spread: Mapping[str, tuple[float, int]]
    """Metric → (variance of one launch's log value, launches it rests on, at least 2)."""

    @classmethod
    def of(cls, launches: Sequence[LaunchValues], taken: float) -> Self:
        """v = sum of (y[i+1] - y[i])^2 / (2 (n - 1)) of launches in job order.

        Metrics that cannot be gated, or lack a positive finite value in some launch, are left out. Raises ValueError
        for fewer than two launches.
        """
        if len(launches) < 2:
            raise ValueError(f"noise needs at least 2 launches, got {len(launches)}")
        ordered = sorted(launches, key=lambda launch: launch.order)
        spread = {}
        for name in sorted(set[str]().union(*(launch.metrics for launch in ordered))):
            values = [launch.metrics.get(name, math.nan) for launch in ordered]
            if gate_row(name) is None or not all(0 < value < math.inf for value in values):
                continue
            logs = [math.log(value) for value in values]
            squares = sum((after - before) ** 2 for before, after in pairwise(logs))
            spread[name] = (squares / (2 * (len(logs) - 1)), len(logs))
        return cls(taken, MappingProxyType(spread))

    def as_json(self) -> dict[str, object]:
        """``{"taken": seconds, "spread": {metric: [variance, launches]}}``."""
        return {"taken": self.taken, "spread": {name: list(each) for name, each in self.spread.items()}}

    @classmethod
    def from_json(cls, stored: Mapping[str, object]) -> Self:
        """The reverse of ``as_json``. Raises ValueError that names what is wrong."""
        taken, spread = stored.get("taken"), stored.get("spread")
        if not isinstance(taken, int | float) or not isinstance(spread, Mapping):
            raise ValueError(f"a noise group holds 'taken' (seconds) and 'spread' (an object), got {dict(stored)!r}")
        return cls(float(taken), MappingProxyType({str(name): _spread(name, each) for name, each in spread.items()}))


@dataclass(frozen=True, slots=True)
class Prior(Mapping[str, tuple[float, float]]):
    """Metric → (s0 squared, d0). Metrics that it does not hold have their built-in noise, with d0 = 4."""

    values_by_metric: Mapping[str, tuple[float, float]]

    def __post_init__(self) -> None:
        for name, (s0_sq, d0) in self.values_by_metric.items():
            if not (0 <= s0_sq < math.inf and 0 < d0 <= MOST_D0):
                raise ValueError(
                    f"prior of {name}: s0 squared must be finite and not negative, d0 in (0, {MOST_D0:g}]; "
                    f"got {s0_sq} and {d0}"
                )

    def __getitem__(self, name: str) -> tuple[float, float]:
        return self.values_by_metric[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.values_by_metric)

    def __len__(self) -> int:
        return len(self.values_by_metric)

    @classmethod
    def from_history(cls, groups: Sequence[NoiseGroup | Sequence[LaunchValues]], *, now: float | None = None) -> Self:
        """The prior of a runner from groups of earlier jobs, oldest first; the newest 12 count.

        A group is a ``NoiseGroup``, or the launches of one arm of one job. With ``now`` (Unix seconds) those older than
        90 days are left out. Per metric over its G groups of n launches, with variance v and
        e = 2 (n-1)^2 / (3 (n-1) - 1) degrees of freedom (the variance of the successive-difference estimate):

        - G >= 4: s0^2 = median of v / (chi2.isf(.5, e) / e), D = 0.6 sum e; fewer: s0^2 = sum e v / sum e, D = sum e;
        - d0 = min(4, D / 2); where that is below 4, s0^2 = w s0^2 + (1 - w) built-in with w = d0 / 4, and d0 = 4.
        """
        found = [each if isinstance(each, NoiseGroup) else NoiseGroup.of(each, math.inf) for each in groups]
        if now is not None:
            found = [group for group in found if group.taken >= now - KEPT_DAYS * _DAY_S]
        kept = sorted(found, key=lambda group: group.taken)[-KEPT_GROUPS:]
        names = sorted(set[str]().union(*(group.spread for group in kept)))
        return cls(MappingProxyType({name: _learned(name, [g.spread[name] for g in kept if name in g.spread])
                                     for name in names if gate_row(name) is not None}))  # fmt: skip

    def noise(self, name: str) -> tuple[float, float]:
        """(s0 squared, d0) as the gate uses it: built-in where not held, never below the metric's floor.

        Raises ValueError for a metric that cannot be gated.
        """
        row = gate_row(name)
        if row is None:
            raise ValueError(f"{name} cannot be gated")
        s0_sq, d0 = self.values_by_metric.get(name, (row.s0**2, MOST_D0))
        return max(s0_sq, row.sd_floor**2), d0


def _learned(name: str, spreads: Sequence[tuple[float, int]]) -> tuple[float, float]:
    from scipy.special import chdtri  # chdtri(e, .5) is chi2.isf(.5, e)

    row = gate_row(name)
    assert row is not None
    weights = [2 * (n - 1) ** 2 / (3 * (n - 1) - 1) for _, n in spreads]
    total = sum(weights)
    if len(spreads) >= _ROBUST_FROM:
        s0_sq = median(v / (float(chdtri(e, 0.5)) / e) for (v, _), e in zip(spreads, weights, strict=True))
        total *= 0.6
    else:
        s0_sq = sum(v * e for (v, _), e in zip(spreads, weights, strict=True)) / total
    w = min(MOST_D0, total / 2) / MOST_D0
    return w * s0_sq + (1 - w) * row.s0**2, MOST_D0


def _spread(name: object, stored: object) -> tuple[float, int]:
    try:
        metric(str(name))
    except KeyError as error:
        raise ValueError(error.args[0]) from error
    match stored:
        case [int() | float() as variance, int() as launches] if 0 <= variance < math.inf and launches >= 2:
            return float(variance), launches
    raise ValueError(f"spread of {name}: a variance and at least 2 launches, got {stored!r}")
