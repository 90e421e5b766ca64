"""What a judgement says: the checks, and the strongest of them as the verdict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final, Literal

from pytest_llmperf.catalog import Better

__all__ = ["PRECEDENCE", "Check", "Verdict", "VerdictName", "strongest"]

VerdictName = Literal["INVALID", "CONFOUNDED", "FAIL", "INCONCLUSIVE", "NO_BASELINE", "PASS", "INFRA", "NOT_RUN"]
"""Strongest first (product order); INFRA and NOT_RUN are tests that gave no verdict on performance."""

PRECEDENCE: Final[tuple[VerdictName, ...]] = ("INVALID", "CONFOUNDED", "FAIL", "INCONCLUSIVE", "NO_BASELINE", "PASS")


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was judged, with all that its sentence needs; also as it is stored."""

    __pydantic_config__: ClassVar = {"extra": "forbid"}

    kind: Literal["sla", "errors", "validity", "expects"]
    metric: str
    verdict: VerdictName
    value: float | None
    limit: float | None
    unit: str
    better: Better
    n: int
    reason: str
    beyond: int | None = None
    """Percentile limits: values beyond the limit, failures included."""
    confidence: float | None = None
    """Percentile limits: how sure the data are of the statement made, by the exact binomial; in 0..1."""
    required_confidence: float | None = None
    needed_n: int | None = None
    """Not decidable: requests that would decide it at the observed share."""
    launches: int | None = None
    """Required confidence: launches judged, each on its own."""
    launches_shown: int | None = None
    """Launches that show what the verdict says; undecided: that show the limit met."""
    lower: float | None = None
    """Of a value that is known by the bucket of a histogram alone: it lies above this; see ``MetricReport``."""
    upper: float | None = None
    written: str | None = None
    """The limit, of an expectation all of it."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The strongest of the checks; PASS where there are none."""

    name: VerdictName
    checks: tuple[Check, ...]


def strongest(verdicts: Sequence[VerdictName]) -> VerdictName:
    """The first in the order of precedence; PASS for none."""
    return min(verdicts, key=PRECEDENCE.index, default="PASS")
