"""Quantiles by linear interpolation (numpy's default), defined for values that include +inf."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

__all__ = ["quantile"]

_SNAP: Final = 1e-9  # (n - 1) q is a whole number on paper more often than in binary


def quantile(ordered: Sequence[float], q: float) -> float:
    """The ``q``-quantile of ascending values: x[k] + (h - k)(x[k+1] - x[k]), h = (n - 1) q, k = floor(h).

    +inf where a value with a positive weight is +inf. Raises ValueError for no values or q outside [0, 1].
    """
    if not ordered:
        raise ValueError("a quantile of no values is undefined")
    if not 0 <= q <= 1:
        raise ValueError(f"q = {q} is outside [0, 1]")
    position = (len(ordered) - 1) * q
    if abs(position - round(position)) < _SNAP:
        return ordered[round(position)]
    below = math.floor(position)
    low, high = ordered[below], ordered[below + 1]
    # inf - inf is nan, so equal neighbours are taken as they are.
    return low if low == high else low + (position - below) * (high - low)
