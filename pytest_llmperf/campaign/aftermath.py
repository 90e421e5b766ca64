"""What a campaign leaves behind when its launches are over: times, noise, runs, refreshed baselines.

The tests are decided by then: trouble with the store is said, and changes no verdict. Only a refresh that fails and
noise that stays unknown fail a test, since that is what was asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, final

from pytest_llmperf.campaign.case import Case
from pytest_llmperf.campaign.forecast import noise_lines
from pytest_llmperf.campaign.memory import Memory
from pytest_llmperf.campaign.refresh import refresh
from pytest_llmperf.campaign.rig import Arm, Rig
from pytest_llmperf.campaign.terms import Mode, Terms
from pytest_llmperf.errors import LlmperfError
from pytest_llmperf.gate import VerdictName
from pytest_llmperf.plan import ServerSpec

__all__ = ["Aftermath"]

UNLEARNT: Final = ("pair", "targeted")
"""Replays on running servers say nothing of how launches vary."""


@final
class Aftermath:
    """Of one campaign."""

    def __init__(self, mode: Mode, terms: Terms, memory: Memory) -> None:
        self._mode, self._terms, self._memory = mode, terms, memory

    def settle(self, rig: Rig, cases: Sequence[Case], specs: Mapping[Arm, ServerSpec]) -> None:
        """Remember what the launches showed."""
        experience = self._memory.experience
        trials = {case.plan.nodeid: rig.trials(case.plan) for case in cases}
        if self._mode not in UNLEARNT:
            _noted(cases[0], lambda: experience.note_times(specs, rig.launches(), trials, cases))
        for case in cases:
            if self._mode not in UNLEARNT:
                _noted(case, lambda case=case: experience.learn(case, rig.trials(case.plan), self._memory.session))  # type: ignore[misc]
            if self._terms.noise_blocks is not None:
                case.notes += self._noise(case)
            elif self._mode == "refresh":
                self._refresh(case)

    def count(self, case: Case, verdict: VerdictName) -> None:
        """One more run of a compared test; where its gate has become blind, that is said."""

        def counted() -> None:
            blind = self._memory.count(case.plan.nodeid, verdict)
            if blind is not None:
                case.notes.append(blind)

        _noted(case, counted)

    def _noise(self, case: Case) -> Sequence[str]:
        """What this runner's noise, now known better, lets a job show."""
        identity = case.identities.get("candidate")
        if identity is None or len(case.values["candidate"]) < 2:
            unknown = "the noise of this runner is not known: fewer than two blocks could be measured"
            case.error = case.error or LlmperfError(f"{unknown}; give it more time (--llmperf-budget)")
            return ()
        prior = self._memory.experience.prior(identity, case.plan)
        gated = [each.metric for each in case.judgement.metrics] if case.judgement is not None else []
        return noise_lines(gated, prior, case.config)

    def _refresh(self, case: Case) -> None:
        if case.error is not None or case.dropped:
            return
        try:
            case.notes += refresh(self._memory, case, self._terms)
        except LlmperfError as error:
            case.error = error


def _noted(case: Case, action: Callable[[], object]) -> None:
    try:
        action()
    except LlmperfError as error:
        case.notes.append(f"not remembered: {error}")
