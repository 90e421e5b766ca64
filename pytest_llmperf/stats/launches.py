"""The values that a regression gate works on, and what it says about them. Immutable; no I/O, no pytest.

The unit is one server launch: requests of a launch share its memory layout, its compiled kernels and its clocks, so
they are not independent observations of the configuration. All estimates are on the oriented log scale: ``+log`` of a
metric where larger is worse, ``-log`` where larger is better, so a positive difference always means "candidate worse".
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Self

__all__ = ["GateConfig", "Judgement", "LaunchValues", "MetricJudgement", "Outcome", "Tolerance"]

Outcome = Literal["PASS", "FAIL", "CONTINUE", "INCONCLUSIVE"]
"""PASS: shown no worse. FAIL: shown regressed. CONTINUE: one more block (launch) may decide. INCONCLUSIVE: final."""


@dataclass(frozen=True, slots=True)
class LaunchValues:
    """One launch of one arm: one value per metric over all its replays."""

    metrics: Mapping[str, float]
    """Name of the catalog → value in base units; infinite where a quantile lies among failed requests, absent or NaN
    where it was not measured."""
    order: int
    """Place of the launch in its job, counted over both arms from 0."""
    block: int
    """Interleaved: launches of one block ran side by side. Stored: the place in its session."""
    session: str
    """Launches of one session ran on one host on one occasion."""
    n_requests: int
    """Measured requests sent, failed ones included."""
    n_failed: int
    n_tokens: int | None = None
    """Output tokens of the ok requests; None where unknown."""
    sources: Mapping[str, str] = field(default_factory=dict)
    """Metric → how it was measured, of those that were not measured in the usual way; see ``MetricValue.source``."""

    @property
    def n_ok(self) -> int:
        return self.n_requests - self.n_failed


@dataclass(frozen=True, slots=True)
class Tolerance:
    """How much worse is tolerated, on the log scale."""

    floor: float
    """An estimate below it is never called a regression."""
    limit: float
    """L: a change is tolerated where it is shown to lie below."""

    @classmethod
    def of(cls, tolerated: float) -> Self:
        """``tolerated`` as a ratio (0.03 is 3 %): L = log(1 + 2T), floor L / 2."""
        limit = math.log1p(2 * tolerated)
        return cls(limit / 2, limit)

    @classmethod
    def between(cls, floor: float, limit: float) -> Self:
        """Both ends given as ratios: "3 %..5 %" is ``between(0.03, 0.05)``."""
        return cls(math.log1p(floor), math.log1p(limit))


@dataclass(frozen=True, slots=True)
class GateConfig:
    """What the gate judges, and how sure it has to be. Fixed before the first block."""

    metrics: tuple[str, ...] | None = None
    """The gated family; None: every metric of the values that has a row in ``family.gate_row``."""
    tolerances: Mapping[str, Tolerance] = field(default_factory=dict)
    """In place of the row's own."""
    max_blocks: int = 8
    alpha: float = 0.01
    """False-positive rate of the whole test: all metrics, all looks."""
    alpha_pass: float = 0.05


@dataclass(frozen=True, slots=True)
class MetricJudgement:
    """What the launches say about one gated metric."""

    metric: str
    primary: bool
    baseline: float
    """Geometric mean of the launches used, in base units."""
    candidate: float
    estimate: float
    """Difference of the arms on the oriented log scale: positive is worse."""
    se: float
    nu: float
    p: float
    """Of "no worse at all", one-sided, at this look."""
    p_seq: float
    """``p`` over all looks so far."""
    q: float
    """Of "worse by the limit or more"."""
    lower: float
    """Bounds of the estimate that correspond to the levels of this look."""
    upper: float
    floor: float
    limit: float
    """Below which ``upper`` has to be for a PASS; wider than the row's where ``widened``."""
    widened: bool
    regressed: bool
    """Named by a FAIL."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """A pure function of the launches, the prior and the configuration."""

    result: Outcome
    reason: str
    """One sentence for a person."""
    metrics: tuple[MetricJudgement, ...] = ()
    regressed: tuple[str, ...] = ()
    """Metrics that a FAIL names; also ``errors``."""
    p_global: float = 1.0
    kappa: float = 1.0
    """How many times the variance of this job exceeds the prior."""
    blocks: int = 0
    """Blocks (stored: candidate launches) run."""
    blocks_used: tuple[int, ...] = ()
    blocks_pruned: tuple[int, ...] = ()
    blocks_needed: int | None = None
    """INCONCLUSIVE for noise: about how many would decide."""
    not_gated: Mapping[str, str] = field(default_factory=dict)
    """Metric → why it was not judged although it was asked for."""
    warnings: tuple[str, ...] = ()
