"""What earlier loads of a launch have left in its server's prefix cache."""

from __future__ import annotations

import time
from typing import Final

from pytest_llmperf.control.reset import empty_prefix_cache
from pytest_llmperf.plan import Plan
from pytest_llmperf.result import TrialReport
from pytest_llmperf.server.launch import Launch

__all__ = ["KEPT", "UNEMPTIED", "left_in_cache", "with_cache_fault"]

KEPT: Final = "the server refused to empty its prefix cache before this load: what earlier loads left there stayed"
UNEMPTIED: Final = (
    "the server offers no way to empty its prefix cache, and a data set's texts are the same in every load: earlier "
    "ones on this launch have filled it"
)
_RESET_S: Final = 5.0
"""How long a server may refuse to empty its cache."""
_PAUSE_S: Final = 0.2


def left_in_cache(plan: Plan, live: Launch, loads: int) -> str | None:
    """Empty the cache; what to say where something of the ``loads`` before on this launch is still there.

    What others have cached on a running server is theirs. Raises ServerDiedError and ServerTakenError.
    """
    if live.spec.targeted:
        return None
    deadline = time.monotonic() + _RESET_S
    while (done := empty_prefix_cache(live.endpoint, live.engine, ca_file=plan.server.ca_file)) == "refused":
        if not loads or time.monotonic() >= deadline:
            break
        live.check_alive()
        time.sleep(_PAUSE_S)  # a request that was cut may be running still
    if done == "emptied" or not loads:
        return None
    if done == "refused":
        return KEPT
    # Texts that we write, shared beginnings too, are new in every load.
    return UNEMPTIED if plan.workload.dataset is not None else None


def with_cache_fault(report: TrialReport, left: str | None, plan: Plan) -> TrialReport:
    """The report of a trial that is compared, INVALID where its cache stayed full and that of the other arm may not.

    A data set's texts alone come again. Where the server never empties its cache, no arm has it emptied.
    """
    if left != KEPT or plan.workload.dataset is None:
        return report
    fault = f"{left}; some of the data set's texts may have come from it"
    validity = report.validity.model_copy(update={"valid": False, "reasons": (*report.validity.reasons, fault)})
    return report.model_copy(update={"validity": validity})
