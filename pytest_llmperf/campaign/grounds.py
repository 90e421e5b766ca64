"""What a comparison rests on: the stored partner, the differences that count, the family, the prior."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Final, Literal, final

from pytest_llmperf.campaign.case import ERROR_RATE, Case
from pytest_llmperf.campaign.conclusion import Comparison
from pytest_llmperf.campaign.lengths import length_fault
from pytest_llmperf.campaign.memory import Memory, Missing
from pytest_llmperf.campaign.terms import Terms, gate_config
from pytest_llmperf.comparisons import DifferenceReport
from pytest_llmperf.differences import differences as differing
from pytest_llmperf.differences import with_test
from pytest_llmperf.engines import computes_on_cpu
from pytest_llmperf.identity import Identity
from pytest_llmperf.metrics.gpu_validity import ARMS_NOTE, arms_state
from pytest_llmperf.plan import Plan
from pytest_llmperf.runner import planned
from pytest_llmperf.stats.family import gate_row
from pytest_llmperf.stats.launches import GateConfig, LaunchValues
from pytest_llmperf.stats.power import detectable_interleaved

__all__ = ["STORED_LAUNCHES", "Grounds"]

STORED_LAUNCHES: Final = (2, 3)
"""Of the candidate: a PASS is asked after two, everything after three."""


@final
class Grounds:
    """The terms of the run and the store, as far as a comparison starts from them."""

    def __init__(self, terms: Terms, memory: Memory) -> None:
        self._terms, self._memory = terms, memory

    def find_partner(self, case: Case, *, mode: Literal["stored", "targeted"]) -> bool:
        """Whether there is a stored baseline that it can be compared with; what it is compared with is set.

        A test that has entries elsewhere in the store has asked for a comparison too: that of another GPU or model is
        no silent absence.
        """
        identity = with_test(case.identities["candidate"], case.plan)
        case.identities["candidate"] = identity
        partner = self._memory.partner(identity, case.plan, self._terms.against)
        if isinstance(partner, Missing):
            if self._terms.explicit or case.plan.regression is not None or self._memory.has([case.plan]):
                case.comparison = Comparison(mode, against=partner.nearest, missing=partner.reason)
            return False
        self.configure(case, identity, 8)
        case.values["baseline"] = list(partner.launches)
        declared = ("version",) if partner.variable else ()
        found = self.differences(partner.identity, identity, declared, stored=True)
        case.comparison = Comparison(
            mode,
            against=partner.explanation,
            variable=partner.variable,
            differences=found,
            invalid=_errors_of(partner.launches),
            asked=self.asked(case),
            max_blocks=STORED_LAUNCHES[1],
            notes=partner.notes,
        )
        if case.comparison.invalid is not None:
            return False
        return not any(each.role in ("confounding", "escalating") for each in found)

    def is_faulty(self, case: Case) -> bool:
        """Whether the arms answered in different lengths, or on GPUs in different states: then nothing is judged."""
        assert case.comparison is not None
        fault = length_fault(case.plan, case.values["baseline"], case.values["candidate"])
        unlike, notes = arms_state(case.trials["baseline"], case.trials["candidate"])
        case.notes = [*(note for note in case.notes if not note.startswith(ARMS_NOTE)), *notes]
        fault = fault or unlike
        if fault is None:
            return False
        case.comparison = replace(case.comparison, invalid=fault)
        case.finished = True
        return True

    def asked(self, case: Case) -> tuple[str, ...]:
        """Metrics that the test names: they must be judged for a PASS."""
        named = case.plan.regression
        return () if named is None else tuple(dict.fromkeys((*(named.metrics or ()), *named.tolerances)))

    def detects(self, case: Case, kappa: float = 1.0) -> dict[str, float]:
        """Primary metric → smallest change, a ratio, that the job shows in four of five cases.

        ``kappa``: how many times the variance expected its launches show, which that of memory is no part of."""
        family = case.config.metrics or ()
        noise = {name: case.prior.noise(name) for name in family}
        seen = {
            name: (s0_sq * (1.0 if (row := gate_row(name)) is None or row.steady else kappa), d0)
            for name, (s0_sq, d0) in noise.items()
        }
        shown = detectable_interleaved(family, case.config.max_blocks, prior=seen, config=case.config)
        return {name: change for name, change in shown.items() if (row := gate_row(name)) is not None and row.primary}

    def concluded(self, found: Comparison, case: Case) -> Comparison:
        """``found`` with the judgement of ``case``, and with what the job can show by the noise that it had."""
        judged = case.judgement
        noisier = judged is not None and judged.kappa > 1 and found.detects
        detects = self.detects(case, judged.kappa) if judged is not None and noisier else found.detects
        return replace(found, judgement=judged, detects=detects)

    def config(self, plan: Plan, most: int) -> tuple[GateConfig, tuple[str, ...]]:
        """What is judged of a test of which ``most`` blocks are run, and notes on it."""
        return gate_config(
            plan,
            cpu=computes_on_cpu(plan.server),
            ok_requests=planned(plan) * (plan.replays or 1),
            accepted=self._terms.accepted,
            today=datetime.datetime.now(datetime.UTC).date(),
            max_blocks=most,
        )

    def configure(self, case: Case, identity: Identity, most: int) -> None:
        case.config, notes = self.config(case.plan, most)
        case.notes = list(dict.fromkeys((*case.notes, *notes)))
        case.prior = self._memory.experience.prior(identity, case.plan)

    def differences(
        self, baseline: Identity, candidate: Identity, declared: Sequence[str], *, stored: bool
    ) -> tuple[DifferenceReport, ...]:
        found = differing(baseline, candidate, declared, stored=stored, allowed=self._terms.allow)
        return tuple(DifferenceReport(**asdict(each)) for each in found)


def _errors_of(launches: Sequence[LaunchValues]) -> str | None:
    """Why stored launches are no baseline: too many of their requests failed."""
    failed = [each for each in launches if each.n_failed > ERROR_RATE * each.n_requests]
    if not failed:
        return None
    return f"{len(failed)} of {len(launches)} stored launches have more than 1 % failed requests: refresh the baseline"
