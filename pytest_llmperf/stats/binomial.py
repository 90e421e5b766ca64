"""Exact (Clopper-Pearson) statements about "at most this share of requests lies beyond the limit".

With x of n beyond and the allowed share p, the share is shown to be at most p with confidence c if the upper
bound beta.ppf(c, x+1, n-x) <= p, that is if beta.cdf(p, x+1, n-x) >= c; shown to be above p if the lower
bound beta.ppf(1-c, x, n-x+1) > p, that is if beta.sf(p, x, n-x+1) > c. Requests are taken as exchangeable.
"""

from __future__ import annotations

import math
from typing import Final, Literal

__all__ = ["confidence_met", "confidence_missed", "decide", "needed_n"]

_MOST: Final = 100_000_000  # requests; nobody runs more to decide one limit


def confidence_met(n: int, beyond: int, allowed: float) -> float:
    """The highest confidence at which ``beyond`` of ``n`` show a share beyond of at most ``allowed``."""
    _check(n, beyond, allowed)
    return _met(n, beyond, allowed)


def confidence_missed(n: int, beyond: int, allowed: float) -> float:
    """The highest confidence at which ``beyond`` of ``n`` show a share beyond above ``allowed``."""
    _check(n, beyond, allowed)
    return _missed(n, beyond, allowed)


def decide(n: int, beyond: int, allowed: float, confidence: float) -> Literal["met", "missed", "undecided"]:
    """What the data show at ``confidence``. The two statements exclude each other for confidence > 0.5."""
    _check(n, beyond, allowed)
    if _met(n, beyond, allowed) >= confidence:
        return "met"
    return "missed" if _missed(n, beyond, allowed) > confidence else "undecided"


def needed_n(n: int, beyond: int, allowed: float, confidence: float) -> int | None:
    """Requests that would decide it if the share beyond stayed as observed; None if no number would.

    Zero beyond: ceil(log(1-c) / log(1-p)), 59 for p95 and 299 for p99 at c = 0.95. None where the observed
    share is ``allowed`` itself, or so close that it would take more than 1e8 requests.
    """
    _check(n, beyond, allowed)
    share = beyond / n
    if math.isclose(share, allowed, rel_tol=1e-12):
        return None

    def decides(size: int) -> bool:
        # The count is left fractional: the beta function takes it, and rounding would make the answer jump
        # about.
        count = share * size
        if share < allowed:
            return _met(size, count, allowed) >= confidence
        return _missed(size, count, allowed) > confidence

    high = 1
    while not decides(high):
        high *= 2
        if high > _MOST:
            return None
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if decides(middle) else (middle, high)
    return high


def _met(n: float, beyond: float, allowed: float) -> float:
    from scipy.special import betainc  # beta.cdf; scipy.stats takes half a second to import

    return 0.0 if beyond >= n else float(betainc(beyond + 1, n - beyond, allowed))


def _missed(n: float, beyond: float, allowed: float) -> float:
    from scipy.special import betaincc  # beta.sf

    return 0.0 if beyond <= 0 else float(betaincc(beyond, n - beyond + 1, allowed))


def _check(n: int, beyond: int, allowed: float) -> None:
    if not (n >= 1 and 0 <= beyond <= n and 0 < allowed < 1):
        raise ValueError(f"needs n >= 1, 0 <= beyond <= n and 0 < allowed < 1; got {n}, {beyond}, {allowed}")
