"""What the tests of one campaign are compared with, when their launches suffice, and what they are told then.

The campaign asks it for the order of launches; it asks the statistics for the judgement and the store for what earlier
runs have left. It holds no numbers of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final, final

from pytest_llmperf.campaign.aftermath import Aftermath
from pytest_llmperf.campaign.budget import Budget
from pytest_llmperf.campaign.case import Case
from pytest_llmperf.campaign.conclusion import Comparison, standing
from pytest_llmperf.campaign.forecast import USUAL, foretell, most_blocks
from pytest_llmperf.campaign.grounds import STORED_LAUNCHES, Grounds
from pytest_llmperf.campaign.memory import Memory
from pytest_llmperf.campaign.remedy import remedy
from pytest_llmperf.campaign.rig import Arm, Rig
from pytest_llmperf.campaign.schedules import (
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
from pytest_llmperf.tolerances import COMPARED_REPLAYS
from pytest_llmperf.variables import Arms

__all__ = ["Umpire"]

REFRESH_LAUNCHES: Final = 3
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
        self._aftermath = Aftermath(mode, terms, memory)

    @property
    def pool(self) -> str | None:
        """Runners that this one may be exchanged for."""
        return self._terms.pool

    @property
    def prices(self) -> Mapping[str, float]:
        """GPU as NVML names it → USD per hour of one."""
        return self._terms.prices

    def case(self, plan: Plan, tests: int) -> Case:
        """The state of one test before the first launch; ``tests`` share the launches."""
        given = plan.replays
        if self.mode in ("sla", "targeted"):
            replays = given or 1
        else:
            replays = given or self._memory.experience.replays(plan.server, plan, tests) or COMPARED_REPLAYS
        # A running server is one launch, however often one connects to it.
        wanted = REFRESH_LAUNCHES if self.mode == "refresh" and not plan.server.targeted else 1
        plan = plan.model_copy(update={"replays": replays})
        strict = self.mode == "refresh"
        return Case(plan, GateConfig(), Prior({}), strict=strict, replays_given=given, wanted=wanted)

    def forecast(self, plans: Sequence[Plan]) -> Forecast:
        """What the campaign will cost and can show, by what earlier runs have left."""
        specs = [plans[0].server] if self._arms is None else [self._arms.baseline, self._arms.candidate]
        times = [self._memory.experience.durations(spec) for spec in specs]
        resolved = [self.case(plan, len(plans)).plan for plan in plans]
        most = self._terms.noise_blocks or self._most_blocks(resolved)
        prior = self._memory.experience.last_priors(specs[-1], resolved)
        configs = [self._grounds.config(plan, most)[0] for plan in resolved]
        return foretell(self.mode, resolved, times, self._arms, prior, configs)

    # --- the launches

    def contest(self, rig: Rig, cases: Sequence[Case], spec: ServerSpec) -> None:
        """Run the launches of a comparison, to the end of every case."""
        specs: dict[Arm, ServerSpec] = {"candidate": spec}
        if self._arms is not None:
            specs = {"baseline": self._arms.baseline, "candidate": self._arms.candidate}
        budget = Budget(self._terms.budget_s(spec.gpu_count))
        if not provided(rig, cases, tuple(specs.values())):
            return
        if self.mode in ("stored", "screened", "refresh"):
            meet = self._meet_stored if self.mode != "refresh" else _no_more
            look = self._look_stored if self.mode != "refresh" else _no_more
            run_stored(rig, cases, spec, session=self._memory.session, budget=budget, meet=meet, look=look)
        if self.mode == "screened":
            for case in cases:
                if self._is_open_after_screen(case):
                    self._reopen(rig, case)
        if self.mode in ("screened", "interleaved") and any(case.open for case in cases):
            how = Interleaving(
                specs=specs,
                seed=cases[0].plan.seed,
                budget=budget,
                session=self._memory.session,
                begin=lambda baseline, candidate: self._begin(cases, baseline, candidate),
                look=lambda case: self._look_interleaved(rig, case),
            )
            run_interleaved(rig, cases, how)
        if self.mode == "pair":
            for case in [case for case in cases if case.open]:
                run_pair(
                    rig,
                    case,
                    specs,
                    PAIR_REPLAYS,
                    session=self._memory.session,
                    budget=budget,
                    meet=self._meet_pair,
                    look=self._look_pair,
                )
        self._aftermath.settle(rig, cases, specs)
        for case in cases:
            self._count(case)

    def _count(self, case: Case) -> None:
        found = self.compared(case)
        if found is not None and case.error is None:
            self._aftermath.count(case, found.verdict)

    def _is_open_after_screen(self, case: Case) -> bool:
        """Whether launches side by side may decide what the screen did not, or show that the baseline does start."""
        if case.unstarted == "candidate":
            return True
        return case.error is None and not case.dropped and self._verdict(case) not in ("PASS", "FAIL")

    def _begin(self, cases: Sequence[Case], baseline: Identity, candidate: Identity) -> Start:
        """What is fixed before the first block: priors, configurations, blocks of an earlier run of the sequence.

        Where the arms differ in more than was declared, no load is worth its time.
        """
        assert self._arms is not None
        most = self._terms.noise_blocks or self._most_blocks([case.plan for case in cases if case.open])
        for case in [case for case in cases if case.open]:
            try:
                self._begin_case(case, self._arms, baseline, candidate, most)
            except LlmperfError as error:
                case.error = error
        blocks = [launch.block for case in cases for launch in case.values["candidate"]]
        orders = [launch.order for case in cases for arm in case.values.values() for launch in arm]
        return Start(max(blocks, default=-1) + 1, max(orders, default=-1) + 1)

    def _begin_case(self, case: Case, arms: Arms, baseline: Identity, candidate: Identity, most: int) -> None:
        sides = with_test(baseline, case.plan), with_test(candidate, case.plan)
        case.identities |= {"baseline": sides[0], "candidate": sides[1]}
        found = self._grounds.differences(*sides, arms.declared, stored=False)
        self._grounds.configure(case, candidate, most)
        case.strict = True
        invalid = None
        judged = self._terms.noise_blocks is None
        if judged and not any(each.role in ("declared", "confounding") for each in found):
            invalid = f"the servers do not differ in what was to be compared ({arms.text}): nothing was compared"
        case.comparison = Comparison(
            "interleaved",
            against=f"{arms.baseline.name} launched side by side with the candidate",
            variable=arms.text,
            differences=found,
            invalid=invalid,
            asked=self._grounds.asked(case),
        )
        if invalid is not None or any(each.role == "confounding" for each in found):
            case.finished = True
            return
        if judged:
            self._memory.resume(case)
        case.comparison = replace(
            case.comparison,
            max_blocks=case.config.max_blocks,
            sequence=1 if case.sequence is None else case.sequence.number,
            detects=self._grounds.detects(case),
        )
        if len(case.values["candidate"]) >= 2:
            self._judge_blocks(case)

    # --- the looks

    def look_once(self, case: Case) -> None:
        """After the only launch that there is: of a running server, against what is stored."""
        if self.mode != "targeted" or not self._grounds.find_partner(case, mode="targeted"):
            return
        assert case.comparison is not None
        trials, start = case.trials["candidate"], case.starts["candidate"][-1]
        values = launch_values(case.plan, trials, start, order=0, block=0, session=self._memory.session)
        case.values["candidate"] = [values]
        if not self._grounds.is_faulty(case):
            judged = judge_targeted(case.values["baseline"], values, prior=case.prior, config=case.config)
            case.conclude(judged)
        self._count(case)

    def _meet_stored(self, case: Case) -> None:
        case.wanted = STORED_LAUNCHES[0] if self._grounds.find_partner(case, mode="stored") else 1
        case.strict = case.wanted > 1
        if case.comparison is not None and case.comparison.verdict == "CONFOUNDED":
            case.finished = True  # no load is worth its time

    def _look_stored(self, case: Case) -> None:
        if case.comparison is None or not case.strict or len(case.values["candidate"]) < STORED_LAUNCHES[0]:
            return
        if not self._grounds.is_faulty(case):
            sides = case.values["baseline"], case.values["candidate"]
            case.conclude(judge_stored(*sides, prior=case.prior, config=case.config))
            case.wanted = STORED_LAUNCHES[1]

    def _look_interleaved(self, rig: Rig, case: Case) -> None:
        if not self._grounds.is_faulty(case) and len(case.values["candidate"]) >= 2:
            self._judge_blocks(case)
            rig.observer.standing(standing(case.plan.nodeid, case.judgement, case.config.max_blocks))
        if self._terms.noise_blocks is None:
            self._memory.save(case)

    def _judge_blocks(self, case: Case) -> None:
        sides = case.values["baseline"], case.values["candidate"]
        judged = judge_interleaved(*sides, prior=case.prior, config=case.config)
        if self._terms.noise_blocks is not None and len(sides[1]) < self._terms.noise_blocks:
            judged = replace(judged, result="CONTINUE")
        case.conclude(judged)

    def _meet_pair(self, case: Case) -> None:
        assert self._arms is not None
        baseline, candidate = case.identities["baseline"], case.identities["candidate"]
        self._grounds.configure(case, candidate, USUAL)
        case.strict = True
        case.comparison = Comparison(
            "targeted",
            against="the other server, in alternating replays",
            variable=self._arms.text,
            differences=self._grounds.differences(baseline, candidate, self._arms.declared, stored=False),
            asked=self._grounds.asked(case),
        )
        if case.comparison.verdict == "CONFOUNDED":
            case.finished = True

    def _look_pair(self, case: Case) -> None:
        if not self._grounds.is_faulty(case):
            sides = case.values["baseline"], case.values["candidate"]
            case.conclude(judge_pair(*sides, prior=case.prior, config=case.config))

    # --- what is said of it

    def compared(self, case: Case) -> Comparison | None:
        """How the test was compared; None where no comparison was asked for."""
        found = case.comparison
        if found is None or self._terms.noise_blocks is not None:
            return None
        by_errors = case.judgement is not None and "errors" in case.judgement.regressed
        if case.exhausted and not by_errors:
            return replace(found, invalid=f"{len(case.faults)} launches could not be judged: {case.faults[-1]}")
        if case.judgement is not None and found.judgement is not case.judgement:
            found = self._grounds.concluded(found, case)
        if found.verdict in ("INCONCLUSIVE", "NO_BASELINE"):
            found = replace(found, remedy=remedy(case.plan, found, self._terms.argument, self._terms.given))
        return replace(found, notes=(*found.notes, *case.notes))

    def sides(self, case: Case) -> tuple[Sequence[LaunchValues], Sequence[LaunchValues]]:
        return case.values["baseline"], case.values["candidate"]

    def _verdict(self, case: Case) -> VerdictName:
        found = self.compared(case)
        return "PASS" if found is None else found.verdict

    def _most_blocks(self, plans: Sequence[Plan]) -> int:
        """What the time budget allows, by the times of earlier runs."""
        if self._arms is None:
            return USUAL
        times = [self._memory.experience.durations(spec) for spec in (self._arms.baseline, self._arms.candidate)]
        return most_blocks(plans, times, self._terms.budget_s(self._arms.candidate.gpu_count), COMPARED_REPLAYS)

    def _reopen(self, rig: Rig, case: Case) -> None:
        """From the screen to launches side by side, which share nothing with it."""
        for each in rig.trials(case.plan):
            rig.discard(case.plan, each.launch, "screen: launches side by side decide")
        case.restart()


def _no_more(_case: Case) -> None:
    """A refresh compares nothing."""
