"""One test while its campaign runs: what its launches gave, and how it stands."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final, final

from pytest_llmperf.baseline.state import BlockSequence
from pytest_llmperf.campaign.conclusion import Comparison
from pytest_llmperf.campaign.rig import Arm, Rig
from pytest_llmperf.errors import LlmperfError, ServerDiedError
from pytest_llmperf.identity import Identity
from pytest_llmperf.plan import Plan
from pytest_llmperf.records import Trial
from pytest_llmperf.result import TrialReport
from pytest_llmperf.samples import StartUp
from pytest_llmperf.stats.launches import GateConfig, Judgement, LaunchValues, Outcome
from pytest_llmperf.stats.prior import Prior

__all__ = ["ERROR_RATE", "MOST_FAULTS", "Case", "Served"]

ERROR_RATE: Final = 0.01
MOST_FAULTS: Final = 2
"""Launches or blocks of a test that may be discarded and run again; more and the test is INVALID."""


@dataclass(frozen=True, slots=True)
class Served:
    """What one launch gave for one test."""

    arm: Arm
    launch: int
    trials: tuple[Trial, ...]
    reports: tuple[TrialReport, ...]
    start: StartUp
    values: LaunchValues

    @property
    def fault(self) -> str | None:
        """Why the launch cannot be judged; None where it can."""
        reasons = dict.fromkeys(reason for report in self.reports for reason in report.validity.reasons)
        return "; ".join(reasons) or None

    @property
    def errs(self) -> bool:
        """Whether more requests failed than a launch may have and still be judged."""
        return self.values.n_failed > ERROR_RATE * self.values.n_requests


@final
@dataclass(slots=True)
class Case:
    """Mutable, as a campaign is: everything in it is immutable."""

    plan: Plan
    """Of the candidate; the baseline's differs in the server only."""
    config: GateConfig
    prior: Prior
    strict: bool = False
    """Launches with too many errors do not count; else the limits judge them."""
    replays_given: int | None = None
    """As the user wrote them; ``plan`` holds those that are run."""
    wanted: int = 1
    """Launches of the candidate that it needs, as far as known."""
    error: LlmperfError | None = None
    """What ended it; raised when its test asks."""
    dropped: bool = False
    """Its test asks no more."""
    finished: bool = False
    judgement: Judgement | None = None
    comparison: Comparison | None = None
    """What it is compared with; None until that is known, or where nothing is."""
    notes: list[str] = field(default_factory=list)
    sequence: BlockSequence | None = None
    """Its blocks as the store has them."""
    values: dict[Arm, list[LaunchValues]] = field(default_factory=lambda: {"baseline": [], "candidate": []})
    trials: dict[Arm, list[Trial]] = field(default_factory=lambda: defaultdict(list))
    starts: dict[Arm, list[StartUp]] = field(default_factory=lambda: defaultdict(list))
    """Of its launches, and of those that only warmed caches."""
    identities: dict[Arm, Identity] = field(default_factory=dict)
    unstarted: Arm | None = None
    """The arm that failed to start twice, where that is what ``error`` says."""
    deaths: list[Arm] = field(default_factory=list)
    """Of servers under this test's load."""
    faults: list[str] = field(default_factory=list)
    """Why launches or blocks were discarded."""
    suspects: list[LaunchValues] = field(default_factory=list)
    """Launches of the candidate with too many errors: one may be luck, two are the candidate's."""

    @property
    def open(self) -> bool:
        """Whether it takes part in the next launch."""
        return not (self.finished or self.dropped or self.error)

    @property
    def exhausted(self) -> bool:
        """Whether more launches were lost than a test may lose: it is INVALID."""
        return len(self.faults) > MOST_FAULTS

    def take(self, served: Served) -> None:
        """A launch that counts."""
        self.values[served.arm].append(served.values)
        self.trials[served.arm] += served.trials
        self.starts[served.arm].append(served.start)

    def discard(self, rig: Rig, served: Sequence[Served], reason: str) -> None:
        """Launches that do not count; they stay in the report, marked."""
        self.faults.append(reason)
        for each in served:
            rig.discard(self.plan, each.launch, reason)
        if self.exhausted:
            self.finished = True

    def lose(self, rig: Rig, launch: int, arm: Arm, death: ServerDiedError) -> None:
        """The server died under this test's load: once may be luck, twice is the end of the test."""
        self.deaths.append(arm)
        reason = f"{arm}: {death.what}"
        rig.discard(self.plan, launch, reason)
        if self.deaths.count(arm) < 2:
            self.faults.append(reason)
            self.finished = self.finished or self.exhausted
        else:
            self.error = death

    def conclude(self, judgement: Judgement) -> None:
        """What the launches so far say; anything but CONTINUE is the end."""
        self.judgement = judgement
        self.finished = judgement.result != "CONTINUE"

    def restart(self) -> None:
        """Forget all launches: others decide."""
        self.judgement, self.comparison, self.finished = None, None, False
        self.error, self.unstarted, self.strict = None, None, False
        self.values = {"baseline": [], "candidate": []}
        self.trials.clear()
        for starts in self.starts.values():  # caches are cold but once
            starts[:] = [start for start in starts if start.cold]
        self.faults.clear()
        self.suspects.clear()

    def end(self, result: Outcome, reason: str, regressed: tuple[str, ...] = ()) -> None:
        """End undecided or by what no statistic says, with the estimates of the last look kept."""
        last = self.judgement or Judgement(result, reason)
        self.judgement = replace(last, result=result, reason=reason, regressed=regressed)
        self.finished = True
