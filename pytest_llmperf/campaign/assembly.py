"""From the plans of a run to its campaigns: which launches are shared, and what is compared with what."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import final

from pytest_llmperf.baseline.provenance import provenance
from pytest_llmperf.baseline.store import Store
from pytest_llmperf.campaign.campaign import Campaign, Observer, group
from pytest_llmperf.campaign.memory import Memory
from pytest_llmperf.campaign.terms import Terms, mode_of
from pytest_llmperf.campaign.umpire import Umpire
from pytest_llmperf.plan import Plan, ServerSpec
from pytest_llmperf.settings import Overrides, Settings
from pytest_llmperf.variables import Arms, against_version, parse_ab, unlaunchable_versions

__all__ = ["Assembly"]


@final
class Assembly:
    """Makes the campaigns of one run."""

    def __init__(
        self, settings: Settings, overrides: Overrides, terms: Terms, store: str | Path, root: Path,
        warn: Callable[[str], None],
    ) -> None:  # fmt: skip
        self._settings, self._overrides, self._terms = settings, overrides, terms
        self._memory = Memory(Store(store), provenance(root), terms.pool, warn)

    def campaigns(self, plans: Sequence[Plan], report_dir: Path, observer: Observer) -> list[Campaign]:
        """One for each server specification. Raises UsageError where an arm cannot be made of it."""
        found = []
        for members in group(plans):
            arms = self._arms(members[0].server)
            own = members
            if arms is not None:
                own = tuple(plan.model_copy(update={"server": arms.candidate}) for plan in members)
            mode = mode_of(own, self._terms, arms, stored=self._is_stored(own))
            umpire = Umpire(mode, self._terms, arms, self._memory)
            found.append(Campaign(own, report_dir, observer, umpire, None if arms is None else arms.baseline))
        return found

    def _arms(self, spec: ServerSpec) -> Arms | None:
        terms = self._terms
        if terms.noise_blocks is not None:
            return Arms(spec, spec, (), "nothing: the same server twice")
        if terms.ab is not None:
            return parse_ab(terms.ab, spec, self._settings, self._overrides)
        if terms.against.startswith("version=") and unlaunchable_versions(spec) is None:
            return against_version(terms.against.removeprefix("version="), spec)
        return None

    def _is_stored(self, plans: Sequence[Plan]) -> bool:
        return self._terms.against != "none" and not self._terms.refresh and self._memory.has(plans)
