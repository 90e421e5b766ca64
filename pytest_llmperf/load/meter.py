"""How the reading itself went: what the times of a run are worth."""

from __future__ import annotations

from typing import Final

__all__ = ["Meter"]

_LAG_BINS: Final = 100_000


class Meter:
    """How the reading went, counted as it goes."""

    __slots__ = ("lags", "reads", "unstamped")

    def __init__(self) -> None:
        self.reads = 0
        self.unstamped = 0
        self.lags = [0] * _LAG_BINS  # reads by lag in whole µs; a list of every lag would grow for hours

    def lag_quantile_ns(self, quantile: float) -> int | None:
        """User-space read time - kernel stamp, to the next µs above; None where no read had a stamp."""
        total = sum(self.lags)
        seen = 0
        for us, count in enumerate(self.lags):
            seen += count
            if count and seen >= quantile * total:
                return (us + 1) * 1000
        return None
