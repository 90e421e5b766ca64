"""One measured metric: the number, what it rests on, and for percentiles the values themselves."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from pytest_llmperf.catalog import Metric

__all__ = ["MetricValue"]


@dataclass(frozen=True, slots=True)
class MetricValue:
    """``value`` in the metric's base unit, or None with a ``note`` that says why there is none."""

    metric: Metric
    value: float | None
    n: int
    """Values behind it: requests, for icl chunk gaps, for itl tokens, for memory samples."""
    note: str | None = None
    values: Sequence[float] | None = field(default=None, repr=False)
    """Percentiles only: all values in ascending order, a failed request being +inf (no finite latency)."""
    excluded: int = 0
    """Successful requests for which the metric is not defined; they are not in ``n``."""
    untold: float = 0.0
    """Share of the requests asked about, in 0..1, whose value we ought to know and do not (no token count)."""
    invalid: str | None = None
    """Why it cannot be trusted, with the remedy; then ``value`` and ``values`` are None."""
    lower: float | None = None
    """Of what is known by the bucket of a histogram alone: it lies above this, in the lowest bucket (0) at or above
    it. ``value`` is then interpolated. None: ``value`` is exact."""
    upper: float | None = None
    """It lies at or below this; None beside a ``lower``: nobody knows how far above."""
    source: str = ""
    """How it was measured, where that is not the usual way and gives other values."""
    by_launch: tuple[Sequence[float], ...] = field(default=(), repr=False)
    """``values`` of each launch apart, where there were several and a limit asks for it."""

    def within(self, limit: float) -> bool | None:
        """Of a value that has bounds: whether it is at most ``limit``; None where its bucket does not tell."""
        assert self.lower is not None
        if self.upper is not None and _at_least(limit, self.upper):
            return True
        return False if self.lower > 0 and _at_least(self.lower, limit) else None

    @property
    def unit(self) -> str:
        return self.metric.unit

    @property
    def definition(self) -> str:
        """Its id; values of different ones are not comparable."""
        return f"{self.metric.definition}:{self.source}" if self.source else self.metric.definition


def _at_least(a: float, b: float) -> bool:
    """A limit and the bound of a bucket that are meant to be equal are, however they were converted."""
    return a >= b or math.isclose(a, b, rel_tol=1e-9)
