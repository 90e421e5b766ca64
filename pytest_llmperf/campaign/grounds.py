"""What a comparison rests on: the stored partner, the differences that count, the family, the prior."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import asdict
from typing import Final, Literal, final

from pytest_llmperf.campaign.case import Case
from pytest_llmperf.campaign.conclusion import Comparison
from pytest_llmperf.campaign.memory import Memory, Missing
from pytest_llmperf.campaign.terms import Terms, gate_config
from pytest_llmperf.comparisons import DifferenceReport
from pytest_llmperf.differences import differences as differing
from pytest_llmperf.differences import with_test
from pytest_llmperf.engines import ENGINES
from pytest_llmperf.identity import Identity
from pytest_llmperf.runner import planned

__all__ = ["STORED_LAUNCHES", "Grounds"]

STORED_LAUNCHES: Final = (2, 3)
"""Of the candidate: a PASS is asked after two, everything after three."""


@final
class Grounds:
    """The terms of the run and the store, as far as a comparison starts from them."""

    def __init__(self, terms: Terms, memory: Memory) -> None:
        self._terms, self._memory = terms, memory

    def find_partner(self, case: Case, identity: Identity, *, mode: Literal["stored", "targeted"]) -> bool:
        """Whether there is a stored baseline that it can be compared with; what it is compared with is set."""
        identity = with_test(identity, case.plan)
        case.identities["candidate"] = identity
        partner = self._memory.partner(identity, case.plan, self._terms.against)
        if isinstance(partner, Missing):
            if self._terms.explicit or case.plan.regression is not None:
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
            max_blocks=STORED_LAUNCHES[1],
            notes=partner.notes,
        )
        return not any(each.role in ("confounding", "escalating") for each in found)

    def configure(self, case: Case, identity: Identity, most: int) -> None:
        engine = ENGINES.get(identity.value("engine"))
        case.config, notes = gate_config(
            case.plan,
            cpu=engine is not None and engine.cpu,
            ok_requests=planned(case.plan) * (case.plan.replays or 1),
            accepted=self._terms.accepted,
            today=datetime.datetime.now(datetime.UTC).date(),
            max_blocks=most,
        )
        case.notes = list(dict.fromkeys((*case.notes, *notes)))
        case.prior = self._memory.experience.prior(identity, case.plan)

    def differences(
        self, baseline: Identity, candidate: Identity, declared: Sequence[str], *, stored: bool
    ) -> tuple[DifferenceReport, ...]:
        found = differing(baseline, candidate, declared, stored=stored, allowed=self._terms.allow)
        return tuple(DifferenceReport(**asdict(each)) for each in found)
