"""How the tests of a run are compared, as options and configuration say it; and what each test's gate is then told."""

from __future__ import annotations

import datetime
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Literal

from pytest_llmperf.plan import Plan
from pytest_llmperf.settings.model import Accept, Budget
from pytest_llmperf.stats.family import default_family
from pytest_llmperf.stats.launches import GateConfig, Tolerance
from pytest_llmperf.variables import Arms

__all__ = ["Mode", "Terms", "gate_config", "mode_of"]

Mode = Literal["sla", "stored", "interleaved", "screened", "targeted", "pair", "refresh"]


@dataclass(frozen=True, slots=True)
class Terms:
    """What the user asked of comparisons."""

    against: str = "latest"
    """``latest``, ``none`` or ``version=X``."""
    explicit: bool = False
    """``against`` was written, so a test without a baseline has one missing."""
    ab: str | None = None
    """``key=value``: the one change of a job of launches side by side."""
    allow: tuple[str, ...] = ()
    budget: Budget | None = None
    refresh: bool = False
    replace: bool = False
    force: bool = False
    reason: str = ""
    noise_blocks: int | None = None
    """A/A: both arms are the same, and this many blocks are run to learn how this runner varies."""
    pool: str | None = None
    accepted: tuple[Accept, ...] = field(default_factory=tuple)

    def budget_s(self, gpus: int) -> float | None:
        """Wall-clock seconds that a campaign on so many GPUs may take."""
        if self.budget is None or self.budget.gpu_hours is None:
            return None if self.budget is None else self.budget.seconds
        return 3600 * self.budget.gpu_hours / max(1, gpus)

    @property
    def argument(self) -> str:
        """The option that the arms come from, as it was written."""
        if self.ab is not None:
            return f"--llmperf-ab {shlex.quote(self.ab)}"
        return f"--llmperf-against {shlex.quote(self.against)}"


def mode_of(plans: Sequence[Plan], terms: Terms, arms: Arms | None, stored: bool) -> Mode:
    """The mode of a campaign; ``stored``: the store has an entry for one of its tests."""
    targeted = plans[0].server.targeted
    if terms.refresh:
        return "refresh"
    if terms.ab is not None or terms.noise_blocks is not None:
        return "pair" if targeted and terms.ab is not None else "interleaved"
    if targeted:
        return "targeted"
    if terms.against == "none":
        return "sla"
    if arms is not None:
        return "screened"
    asked = terms.explicit or any(plan.regression is not None for plan in plans)
    return "stored" if asked or stored else "sla"


def gate_config(
    plan: Plan, *, cpu: bool, ok_requests: int, accepted: Sequence[Accept], today: datetime.date, max_blocks: int = 8
) -> tuple[GateConfig, tuple[str, ...]]:
    """What the gate of one test judges, and notes on it.

    The family is the default one with what the marker adds, or the marker's own. An accepted trade is a wider
    tolerance of its metric until it expires: the rest of the family is judged as ever.
    """
    asked = plan.regression
    family = default_family(cpu_engine=cpu, ok_requests=ok_requests)
    if asked is not None:
        family = asked.metrics or tuple(dict.fromkeys((*family, *asked.tolerances)))
    tolerances = {}
    for name, each in asked.tolerances.items() if asked is not None else ():
        tolerances[name] = Tolerance.between(each.floor, each.limit)
    notes = []
    for trade in accepted:
        if trade.metric not in family or not _is_of(trade.test, plan.nodeid):
            continue
        said = f"{trade.metric} up to {100 * trade.up_to:.3g} % worse, approved by {trade.approved_by}: {trade.reason}"
        if today > trade.until:
            notes.append(f"an accepted trade has expired on {trade.until} and counts no more: {said}")
            continue
        tolerances[trade.metric] = Tolerance.between(trade.up_to, 2 * trade.up_to)
        notes.append(f"accepted until {trade.until}: {said}")
    return GateConfig(family, tolerances, max_blocks), tuple(notes)


def _is_of(test: str, nodeid: str) -> bool:
    """Whether ``test`` is the node id, its part after the last ``/``, or a pattern of it."""
    return test in (nodeid, nodeid.rpartition("/")[2]) or fnmatchcase(nodeid, test)
