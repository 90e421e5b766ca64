"""The selected tests of a run: their plans, and their order."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from pytest_llmperf.errors import UsageError
from pytest_llmperf.markers import read_plan
from pytest_llmperf.options import RunOptions
from pytest_llmperf.plan import Plan

__all__ = ["bring_together", "read_plans"]


def read_plans(items: Sequence[pytest.Item], run_options: RunOptions) -> dict[str, Plan]:
    """Plans by node id. Raises pytest.UsageError with one line per faulty test."""
    plans: dict[str, Plan] = {}
    faults: list[str] = []
    for item in items:
        try:
            plan = read_plan(item, run_options)
        except UsageError as error:
            faults.append(f"{item.nodeid}: {error}")
            continue
        if plan is None:
            continue
        if item.nodeid in plans:
            faults.append(f"{item.nodeid}: is selected twice; a performance test can run once per session")
        plans[item.nodeid] = plan
    if faults:
        raise pytest.UsageError(*faults)
    return plans


def bring_together(items: list[pytest.Item], campaigns: Sequence[Sequence[str]]) -> None:
    """Reorder ``items`` in place so that the tests of one campaign follow each other; all other tests stay put."""
    by_nodeid = {item.nodeid: item for item in items}
    ordered = iter([by_nodeid[nodeid] for campaign in campaigns for nodeid in campaign])
    ours = {nodeid for campaign in campaigns for nodeid in campaign}
    items[:] = [next(ordered) if item.nodeid in ours else item for item in items]
