"""One statement about several p-values that may depend on each other.

Simes (Biometrika 73, 1986): of m ordered p-values, p = min (m / j) p_(j); it keeps its level for the positive
dependence of metrics that follow the same server. Hommel (Biometrika 75, 1988): the p-value of one metric is the
largest Simes p-value of any set of metrics that contains it, so that naming metrics keeps the level as well.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["hommel", "simes"]


def simes(values: Sequence[float]) -> float:
    """p of "none of them is an effect"; 1 for no values."""
    m = len(values)
    return min((m / j * p for j, p in enumerate(sorted(values), 1)), default=1.0)


def hommel(values: Sequence[float]) -> tuple[float, ...]:
    """The adjusted p-values, in the order given.

    Simes grows with each of its p-values, so the worst set of a given size holds the largest of the others.
    """
    adjusted = []
    for index, p in enumerate(values):
        others = sorted((*values[:index], *values[index + 1 :]), reverse=True)
        adjusted.append(max(simes((p, *others[:size])) for size in range(len(values))))
    return tuple(adjusted)
