"""From markers and parameters of a test to what it asks for, and from that to its ``Plan``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from pytest_llmperf.asked import PLAN_FIELDS, Asked, merge
from pytest_llmperf.errors import MarkerError, nearest
from pytest_llmperf.options import RunOptions
from pytest_llmperf.plan import Plan
from pytest_llmperf.planner import plan_of
from pytest_llmperf.suite import SuiteTest
from pytest_llmperf.suitefile import TABLES

__all__ = ["read_plan"]


def read_plan(item: pytest.Item, options: RunOptions) -> Plan | None:
    """The plan of a test, None for a test that has nothing to do with us.

    Raises UsageError with the marker (of a suite: file and key), the argument, the value and what would be right.
    """
    try:
        asked = _asked(item)
        return plan_of(asked, options) if asked is not None else None
    except MarkerError as error:
        if isinstance(item, SuiteTest):
            raise item.located(error) from None
        raise


def _asked(item: pytest.Item) -> Asked | None:
    uses = isinstance(item, SuiteTest) or "llmperf" in getattr(item, "fixturenames", ())
    marker = item.get_closest_marker("llmperf")
    if marker is None:
        for name in ("sla", "regression"):
            if item.get_closest_marker(name) is not None:
                raise MarkerError(name, "", "needs @pytest.mark.llmperf(workload=..., ...) beside it")
        if uses:
            raise MarkerError("llmperf", "", "is missing: the llmperf fixture needs a workload and a load")
        return None
    if not uses:
        if all(mark.name != "llmperf" for mark in item.own_markers):
            return None  # the marker is its module's or class's: an ordinary test among performance tests
        raise MarkerError("llmperf", "", "the test must take the llmperf fixture and call llmperf.run() once")
    return Asked(
        nodeid=item.nodeid,
        folder=item.path.parent,
        fields=merge((*_layers(item, "llmperf"), _parameters(item))),
        slas=_layers(item, "sla"),
        regressions=_layers(item, "regression"),
    )


def _layers(item: pytest.Item, name: str) -> tuple[Mapping[str, Any], ...]:
    """The arguments of all markers called ``name``, the farthest first."""
    known = (*PLAN_FIELDS, *TABLES) if isinstance(item, SuiteTest) else PLAN_FIELDS
    layers: list[Mapping[str, Any]] = []
    for marker in reversed(list(item.iter_markers(name))):
        if marker.args:
            raise MarkerError(name, "", f"takes keyword arguments only, not {marker.args[0]!r}")
        for key in marker.kwargs if name == "llmperf" else ():
            if key not in PLAN_FIELDS:
                raise MarkerError("llmperf", key, f"unknown argument{nearest(key, known)}")
        layers.append(marker.kwargs)
    return tuple(layers)


def _parameters(item: pytest.Item) -> dict[str, Any]:
    """Parameters of ``parametrize`` whose names are plan fields."""
    if isinstance(item, SuiteTest):
        for key in item.parameters:
            if key not in PLAN_FIELDS:
                raise MarkerError("llmperf", key, f"unknown argument{nearest(key, PLAN_FIELDS)}")
        return dict(item.parameters)
    callspec = getattr(item, "callspec", None)
    parameters: Mapping[str, Any] = callspec.params if callspec is not None else {}
    return {key: value for key, value in parameters.items() if key in PLAN_FIELDS}
