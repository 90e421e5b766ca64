"""The stored form of a comparison: what ``report.json`` says of a candidate beside its baseline."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from pytest_llmperf.fields import Frozen
from pytest_llmperf.verdict import VerdictName

__all__ = ["ComparisonReport", "DifferenceReport", "Forecast", "JudgementReport"]


class DifferenceReport(Frozen):
    """One field in which two identities differ."""

    name: str
    kind: Literal["input", "environment", "consequence"]
    baseline: str
    candidate: str
    role: Literal["declared", "confounding", "escalating", "came_with", "unverified"]
    """declared: the variable of the comparison. confounding: makes it CONFOUNDED. escalating: a driver or host that
    differs from a stored baseline's, so that only launches side by side can decide. came_with: a consequence.
    unverified: unknown on both sides."""
    note: str | None = None
    """What to do about it, e.g. the A/B command that would isolate it."""


class ComparisonReport(Frozen):
    """One metric of the candidate beside the baseline."""

    metric: str
    unit: str
    better: Literal["lower", "higher"]
    verdict: VerdictName
    baseline: float | None
    """Geometric mean over the launches, in ``unit``."""
    candidate: float | None
    change: float | None = None
    """candidate / baseline - 1, with the bounds that correspond to the gate's levels; better or worse by ``better``."""
    change_low: float | None = None
    change_high: float | None = None
    allowed: float | None = None
    """Tolerated change, a ratio; None where the metric is shown, not judged."""
    ruled_out: float | None = None
    """A PASS has shown that the change is smaller than this."""
    widened: bool = False
    """``ruled_out`` is wider than asked for, since this metric's noise on this runner is too large."""
    p: float | None = None
    p_seq: float | None = None
    q: float | None = None
    baseline_launches: int = 0
    candidate_launches: int = 0
    reason: str = ""


class JudgementReport(Frozen):
    """How a test was compared, and with what."""

    mode: Literal["stored", "interleaved", "targeted"]
    verdict: VerdictName
    reason: str
    """One sentence for a person."""
    against: str
    """The partner, and why this one."""
    variable: str | None = None
    """The one declared variable, ``key: baseline → candidate``; None where nothing is meant to differ."""
    differences: tuple[DifferenceReport, ...] = ()
    blocks: int = 0
    """Blocks (stored: candidate launches) run."""
    blocks_used: tuple[int, ...] = ()
    blocks_pruned: tuple[int, ...] = ()
    max_blocks: int = 0
    blocks_needed: int | None = None
    kappa: float = 1.0
    p_global: float = 1.0
    detects: dict[str, float] = Field(default_factory=dict)
    """Primary metric → smallest change (a ratio) that this job could show."""
    sequence: int = 1
    """How many sequences this pair has had; blocks of an undecided one go on where it ended."""
    remedy: str | None = None
    """The exact command that would decide, or what else to do."""
    notes: tuple[str, ...] = ()


class Forecast(Frozen):
    """What a campaign will cost and can show, before the first second of it is spent; None where it is not known."""

    mode: str
    """In words: what is compared with what."""
    launches: tuple[int, int]
    """Judged launches, at least and at most; of a running server connections."""
    seconds: tuple[float, float] | None = None
    """At least, at most; from earlier runs."""
    gpus: int = 0
    price_usd: float | None = None
    """At most."""
    detects: dict[str, float] = Field(default_factory=dict)
    """Metric → smallest change (a ratio) that the campaign shows in four of five cases."""
    notes: tuple[str, ...] = ()
