"""What a test asks for: server, workload, load, limits. Frozen, validated, storable; made before anything runs."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field, TypeAdapter

from pytest_llmperf.catalog import metric
from pytest_llmperf.fields import DataFile, Frozen, GivenFile, TimeLimits
from pytest_llmperf.lengths import Empirical, Fixed, Lengths, Lognormal, Normal, Uniform
from pytest_llmperf.profile import Linear, LoadProfile, Steps
from pytest_llmperf.serverspec import LAUNCH_ONLY, LAUNCH_VARIABLE, Launcher, ServerSpec
from pytest_llmperf.workload import Part, SharedPrefix, Think, Workload

__all__ = [
    "LAUNCH_ONLY",
    "LAUNCH_VARIABLE",
    "TRACE_FILE",
    "Clients",
    "DataFile",
    "Empirical",
    "Expectation",
    "Fixed",
    "Launcher",
    "Lengths",
    "Linear",
    "LoadProfile",
    "Lognormal",
    "Normal",
    "Operator",
    "Part",
    "Plan",
    "Regression",
    "ServerSpec",
    "SharedPrefix",
    "Sla",
    "Slo",
    "Steps",
    "Think",
    "TimeLimits",
    "ToleratedChange",
    "Uniform",
    "Workload",
]


TRACE_FILE: Final = TypeAdapter[DataFile](GivenFile)
"""Checks the name of a file."""


Clients = Literal["auto"] | Annotated[int, Field(ge=1, le=256)]
"""Client processes that send the load; ``"auto"``: as many as the planned token rate needs."""


class Sla(Frozen):
    """An absolute limit on one metric. Ceiling or floor follows from the metric."""

    metric: str
    limit: float
    """In the metric's base unit."""
    written: str
    confidence: float | None = Field(default=None, gt=0.5, lt=1)
    """None: the observed value decides. Else a percentile must be *shown* to hold with this confidence."""

    @property
    def ceiling(self) -> bool:
        return metric(self.metric).better == "lower"


class Slo(Frozen):
    """Per-request limits in seconds: a request that meets all of them is good (goodput)."""

    limits: dict[str, float]
    """Family name (``ttft``, ``tpot``, ``e2e`` …) → ceiling."""


Operator = Literal[">", ">=", "<", "<=", "==", "!="]


class Expectation(Frozen):
    """What a run must show, else its test has not exercised what it is meant to and is INVALID."""

    metric: str
    operator: Operator
    limit: float
    """In the metric's base unit."""
    written: str
    """All of it, e.g. ``prefix_hit_rate > 0.5``."""


class ToleratedChange(Frozen):
    """How much worse than its baseline one metric may be: ratios, 0.03 is 3 %.

    These are what ``Tolerance.between`` takes. A plain tolerance T has the limit 2T, and half of it on the log scale as
    its floor: √(1 + 2T) - 1, about T.
    """

    floor: float = Field(gt=0, le=1)
    """An estimate below it is never called a regression."""
    limit: float = Field(gt=0, le=2)
    """A change is tolerated where it is shown to lie below."""
    written: str


class Regression(Frozen):
    """A comparison with a baseline, as a test asks for it; empty: with the defaults."""

    tolerances: dict[str, ToleratedChange] = Field(default_factory=dict)
    """By metric, in place of the metric's own."""
    metrics: tuple[str, ...] | None = None
    """The whole gated family; None: the default one and whatever has a tolerance."""


class Plan(Frozen):
    """Everything one test asks for."""

    nodeid: str
    server: ServerSpec
    workload: Workload
    load: LoadProfile
    slas: tuple[Sla, ...] = ()
    slo: Slo | None = None
    regression: Regression | None = None
    """None: the test itself asks for no comparison."""
    expects: tuple[Expectation, ...] = ()
    replays: int | None = Field(default=None, ge=1, le=100)
    """Of the load, per launch; None: one, or what a comparison needs."""
    seed: int = 0
    clients: Clients = "auto"
    notes: tuple[str, ...] = ()
    """What qualifies the load from the start: a cap, constant lengths, rows of a trace that were left out."""

    @property
    def limited(self) -> tuple[str, ...]:
        """Metrics that have a check of their own, whatever the comparison says."""
        return tuple(dict.fromkeys((*(sla.metric for sla in self.slas), *(each.metric for each in self.expects))))

    @property
    def named(self) -> tuple[str, ...]:
        """Every metric that the test names, and that therefore must be measured."""
        compared = self.regression or Regression()
        return tuple(dict.fromkeys((*self.limited, *compared.tolerances, *(compared.metrics or ()))))
