"""The selected tests of a run: their plans, and their order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pytest

from pytest_llmperf.errors import SuiteError, UsageError
from pytest_llmperf.markers import read_plan
from pytest_llmperf.options import RunOptions
from pytest_llmperf.plan import Plan

__all__ = ["bring_together", "read_plans"]

NO_LAUNCH: Final = (
    "--llmperf-noise learns how fresh launches vary, and server {!r} is a running one (url): a reconnect is no launch"
)


def read_plans(items: Sequence[pytest.Item], run_options: RunOptions) -> dict[str, Plan]:
    """Plans by node id. Raises pytest.UsageError with one line per fault."""
    plans: dict[str, Plan] = {}
    faults: dict[str, list[str]] = {}
    for item in items:
        try:
            plan = read_plan(item, run_options)
        except SuiteError as error:
            faults.setdefault(str(error), [])  # says itself where it stands
            continue
        except UsageError as error:
            faults.setdefault(str(error), []).append(item.nodeid)
            continue
        if plan is None:
            continue
        if item.nodeid in plans:
            faults.setdefault("is selected twice; a performance test can run once per session", []).append(item.nodeid)
        if run_options.terms.noise_blocks is not None and plan.server.targeted:
            faults.setdefault(NO_LAUNCH.format(plan.server.name), []).append(item.nodeid)
        plans[item.nodeid] = plan
    if faults:
        raise pytest.UsageError(*(f"{_names(nodeids)}{fault}" for fault, nodeids in faults.items()))
    return plans


def _names(nodeids: Sequence[str]) -> str:
    more = f" (and {len(nodeids) - 1} more)" if len(nodeids) > 1 else ""
    return f"{nodeids[0]}{more}: " if nodeids else ""


def bring_together(items: list[pytest.Item], campaigns: Sequence[Sequence[str]]) -> None:
    """Reorder ``items`` in place so that the tests of one campaign follow each other; all other tests stay put."""
    by_nodeid = {item.nodeid: item for item in items}
    ordered = iter([by_nodeid[nodeid] for campaign in campaigns for nodeid in campaign])
    ours = {nodeid for campaign in campaigns for nodeid in campaign}
    items[:] = [next(ordered) if item.nodeid in ours else item for item in items]
