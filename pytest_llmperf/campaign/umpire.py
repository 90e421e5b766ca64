"""What the tests of one campaign are compared with, when their launches suffice, and what they are told then.

The campaign asks it for the order of launches; it asks the statistics for the judgement and the store for what earlier
runs have left. It holds no numbers of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final, final

from pytest_llmperf.campaign.case import Case
from pytest_llmperf.campaign.conclusion import Comparison, standing
from pytest_llmperf.campaign.forecast import USUAL, foretell, most_blocks, noise_lines
from pytest_llmperf.campaign.grounds import STORED_LAUNCHES, Grounds
from pytest_llmperf.campaign.lengths import length_fault
from pytest_llmperf.campaign.memory import Memory
from pytest_llmperf.campaign.refresh import refresh
from pytest_llmperf.campaign.remedy import remedy
from pytest_llmperf.campaign.rig import Arm, Rig
from pytest_llmperf.campaign.schedules import (
    Budget,
    Interleaving,
    Start,
    provided,
    run_interleaved,
    run_pair,
    run_stored,
)
from pytest_llmperf.campaign.terms import Mode, Terms
from pytest_llmperf.comparisons import Forecast
from pytest_llmperf.differences import with_test
from pytest_llmperf.errors import LlmperfError
from pytest_llmperf.gate import VerdictName
from pytest_llmperf.identity import Identity
from pytest_llmperf.measured import launch_values
from pytest_llmperf.plan import Plan, ServerSpec
from pytest_llmperf.stats.interleaved import judge_interleaved
from pytest_llmperf.stats.launches import GateConfig, LaunchValues
from pytest_llmperf.stats.prior import Prior
from pytest_llmperf.stats.stored import judge_pair, judge_stored, judge_targeted
from pytest_llmperf.variables import Arms

__all__ = ["Umpire"]

REFRESH_LAUNCHES: Final = 3
COMPARED_REPLAYS: Final = 2
PAIR_REPLAYS: Final = 4


@final
class Umpire:
    """Compares the tests of one campaign."""

    def __init__(self, mode: Mode, terms: Terms, arms: Arms | None, memory: Memory) -> None:
        self.mode: Mode = mode
        self._terms = terms
        self._arms = arms
        self._memory = memory
        self._grounds = Grounds(terms, memory)

    @property
    def pool(self) -> str | None:
        """Runners that this one may be exchanged for."""
        return self._terms.pool

    def case(self, plan: Plan, tests: int) -> Case:
        """The state of one test before the first launch; ``tests`` share the launches."""
        given = plan.replays
        if self.mode in ("sla", "targeted"):
            replays = given or 1
        else:
            replays = given or self._memory.experience.replays(plan.server, plan, tests) or COMPARED_REPLAYS
        # A running server is one launch, however often one connects to it.
        wanted = REFRESH_LAUNCHES if self.mode == "refresh" and not plan.server.targeted else 1
        return Case(plan.model_copy(update={"replays": replays}), GateConfig(), Prior({}), given, wanted)

    def forecast(self, plans: Sequence[Plan]) -> Forecast:
        """What the campaign will cost and can show, by what earlier runs have left."""
        specs = [plans[0].server] if self._arms is None else [self._arms.baseline, self._arms.candidate]
        times = [self._memory.experience.durations(spec) for spec in specs]
        resolved = [self.case(plan, len(plans)).plan for plan in plans]
        most = self._terms.noise_blocks or self._most_blocks(resolved)
        return foretell(
            self.mode, resolved, times, most, self._arms, self._memory.experience.last_priors(specs[-1], resolved)
        )

    # --- the launches

    def contest(self, rig: Rig, cases: Sequence[Case], spec: ServerSpec) -> None:
        """Run the launches of a comparison, to the end of every case."""
        session = self._memory.session
        specs: dict[Arm, ServerSpec] = {"candidate": spec}
        if self._arms is not None:
            specs["baseline"] = self._arms.baseline
        if self.mode in ("stored", "screened", "refresh"):
            run_stored(rig, cases, spec, session=session, look=self._look_stored)
        if self.mode == "screened":
            for case in cases:
                if case.error is None and self._verdict(case) in ("INCONCLUSIVE", "NO_BASELINE"):
                    self._reopen(rig, case)
        if self.mode in ("screened", "interleaved") and any(case.open for case in cases):
            self._interleave(rig, cases)
        if self.mode == "pair":
            self._compare_pair(rig, cases)
        trials = {case.plan.nodeid: rig.trials(case.plan) for case in cases}
        self._memory.experience.note_times(specs, rig.launches(), trials, cases)
        for case in cases:
            self._memory.experience.learn(case, rig.trials(case.plan), self._memory.session)
            if self._terms.noise_blocks is not None:
                case.notes += self._noise(case)
            elif case.comparison is not None and (blind := self._memory.count(case.plan.nodeid, self._verdict(case))):
                case.notes.append(blind)
            if self.mode == "refresh" and case.error is None and not case.dropped:
                self._refresh(case)

    def _noise(self, case: Case) -> Sequence[str]:
        """What this runner's noise, now known better, lets a job show."""
        identity = case.identities.get("candidate")
        if identity is None or len(case.values["candidate"]) < 2:
            return ("the noise of this runner is not known: fewer than two blocks could be measured",)
        prior = self._memory.experience.prior(identity, case.plan)
        gated = [each.metric for each in case.judgement.metrics] if case.judgement is not None else []
        return noise_lines(gated, prior, case.config)

    def _refresh(self, case: Case) -> None:
        try:
            case.notes += refresh(self._memory, case, self._terms)
        except LlmperfError as error:
            case.error = error

    def _interleave(self, rig: Rig, cases: Sequence[Case]) -> None:
        assert self._arms is not None
        if not provided(cases, (self._arms.baseline, self._arms.candidate)):
            return
        specs: dict[Arm, ServerSpec] = {"baseline": self._arms.baseline, "candidate": self._arms.candidate}
        how = Interleaving(
            specs=specs,
            seed=cases[0].plan.seed,
            budget=Budget(self._terms.budget_s(len(self._arms.candidate.gpus))),
            session=self._memory.session,
            begin=lambda baseline, candidate: self._begin(cases, baseline, candidate),
            look=lambda case: self._look_interleaved(rig, case),
        )
        run_interleaved(rig, cases, how)

    def _begin(self, cases: Sequence[Case], baseline: Identity, candidate: Identity) -> Start:
        """What is fixed before the first block: priors, configurations, blocks of an earlier run of the sequence.

        Where the arms differ in more than was declared, no load is worth its time.
        """
        assert self._arms is not None
        most = self._terms.noise_blocks or self._most_blocks([case.plan for case in cases if case.open])
        for case in [case for case in cases if case.open]:
            sides = with_test(baseline, case.plan), with_test(candidate, case.plan)
            case.identities |= {"baseline": sides[0], "candidate": sides[1]}
            found = self._grounds.differences(*sides, self._arms.declared, stored=False)
            self._grounds.configure(case, candidate, most)
            case.comparison = Comparison(
                "interleaved",
                against=f"{self._arms.baseline.name} launched side by side with the candidate",
                variable=self._arms.text,
                differences=found,
                max_blocks=most,
            )
            if any(each.role == "confounding" for each in found):
                case.finished = True
            elif self._terms.noise_blocks is None and not any(each.role == "declared" for each in found):
                why = f"the servers do not differ in what was to be compared ({self._arms.text}): nothing was compared"
                case.comparison = replace(case.comparison, invalid=why)
                case.finished = True
            elif self._terms.noise_blocks is None:
                self._memory.resume(case)
                if len(case.values["candidate"]) >= 2:
                    self._judge_blocks(case)
        blocks = [launch.block for case in cases for launch in case.values["candidate"]]
        orders = [launch.order for case in cases for arm in case.values.values() for launch in arm]
        return Start(max(blocks, default=-1) + 1, max(orders, default=-1) + 1)

    # --- the looks

    def look_once(self, case: Case) -> None:
        """After the only launch that there is: of a running server, against what is stored."""
        if self.mode != "targeted":
            return
        identity = case.identities["candidate"]
        if not self._grounds.find_partner(case, identity, mode="targeted"):
            return
        assert case.comparison is not None
        trials = case.trials["candidate"]
        values = launch_values(case.plan, trials, None, order=0, block=0, session=self._memory.session)
        case.values["candidate"] = [values]
        case.judgement = judge_targeted(case.values["baseline"], values, prior=case.prior, config=case.config)
        case.comparison = replace(case.comparison, judgement=case.judgement)

    def _look_stored(self, case: Case, identity: Identity) -> None:
        if self.mode == "refresh":
            return
        if case.comparison is None:
            case.wanted = STORED_LAUNCHES[0] if self._grounds.find_partner(case, identity, mode="stored") else 1
        if case.comparison is None or len(case.values["candidate"]) < STORED_LAUNCHES[0]:
            return
        fault = length_fault(case.plan, case.values["baseline"], case.values["candidate"])
        if fault is not None:
            case.comparison = replace(case.comparison, invalid=fault)
            case.finished = True
            return
        judged = judge_stored(case.values["baseline"], case.values["candidate"], prior=case.prior, config=case.config)
        case.conclude(judged)
        case.wanted = STORED_LAUNCHES[1]
        case.comparison = replace(case.comparison, judgement=judged)

    def _look_interleaved(self, rig: Rig, case: Case) -> None:
        assert case.comparison is not None
        fault = length_fault(case.plan, case.values["baseline"], case.values["candidate"])
        if fault is not None:
            case.comparison = replace(case.comparison, invalid=fault)
            case.finished = True
            return
        if len(case.values["candidate"]) >= 2:
            self._judge_blocks(case)
            rig.observer.standing(standing(case.plan.nodeid, case.judgement, case.config.max_blocks))
        if self._terms.noise_blocks is None:
            self._memory.save(case)

    def _judge_blocks(self, case: Case) -> None:
        assert case.comparison is not None
        sides = case.values["baseline"], case.values["candidate"]
        judged = judge_interleaved(*sides, prior=case.prior, config=case.config)
        if self._terms.noise_blocks is not None and len(sides[1]) < self._terms.noise_blocks:
            judged = replace(judged, result="CONTINUE")
        case.conclude(judged)
        case.comparison = replace(case.comparison, judgement=judged)

    def _compare_pair(self, rig: Rig, cases: Sequence[Case]) -> None:
        assert self._arms is not None
        specs: dict[Arm, ServerSpec] = {"baseline": self._arms.baseline, "candidate": self._arms.candidate}
        for case in cases:
            run_pair(rig, case, specs, PAIR_REPLAYS, session=self._memory.session)
            if not case.open:
                continue
            baseline, candidate = case.identities["baseline"], case.identities["candidate"]
            self._grounds.configure(case, candidate, 8)
            found = self._grounds.differences(baseline, candidate, self._arms.declared, stored=False)
            judged = judge_pair(case.values["baseline"], case.values["candidate"], prior=case.prior, config=case.config)
            case.conclude(judged)
            case.comparison = Comparison(
                "targeted",
                against="the other server, in alternating replays",
                judgement=judged,
                variable=self._arms.text,
                differences=found,
            )

    # --- what is said of it

    def compared(self, case: Case) -> Comparison | None:
        """How the test was compared; None where no comparison was asked for."""
        found = case.comparison
        if found is None or self._terms.noise_blocks is not None:
            return None
        if case.exhausted:
            return replace(found, invalid=f"{len(case.faults)} launches could not be judged: {case.faults[-1]}")
        if case.judgement is not None and found.judgement is not case.judgement:
            found = replace(found, judgement=case.judgement)
        if found.verdict in ("INCONCLUSIVE", "NO_BASELINE"):
            found = replace(found, remedy=remedy(case.plan, found, self._terms.argument))
        return replace(found, notes=(*found.notes, *case.notes))

    def sides(self, case: Case) -> tuple[Sequence[LaunchValues], Sequence[LaunchValues]]:
        return case.values["baseline"], case.values["candidate"]

    def _verdict(self, case: Case) -> VerdictName:
        return case.comparison.verdict if case.comparison is not None else "PASS"

    def _most_blocks(self, plans: Sequence[Plan]) -> int:
        """What the time budget allows, by the times of earlier runs."""
        if self._arms is None:
            return USUAL
        times = [self._memory.experience.durations(spec) for spec in (self._arms.baseline, self._arms.candidate)]
        return most_blocks(plans, times, self._terms.budget_s(len(self._arms.candidate.gpus)), COMPARED_REPLAYS)

    def _reopen(self, rig: Rig, case: Case) -> None:
        """From the screen to launches side by side, which share nothing with it."""
        for each in rig.trials(case.plan):
            rig.discard(case.plan, each.launch, "screen: launches side by side decide")
        case.restart()
