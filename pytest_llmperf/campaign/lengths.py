"""Whether two arms answered alike in length: else their speed is not comparable."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pytest_llmperf.plan import Plan
from pytest_llmperf.stats.launches import LaunchValues

__all__ = ["length_fault"]

MOST_OFF: Final = 0.005


def length_fault(plan: Plan, baseline: Sequence[LaunchValues], candidate: Sequence[LaunchValues]) -> str | None:
    """Why the arms cannot be compared; None where their output tokens per ok request agree to 0.5 %.

    A load by duration has no fixed set of requests, and an arm of unknown token counts no length: neither is asked.
    """
    if plan.load.requests is None:
        return None
    before, after = _tokens(baseline), _tokens(candidate)
    if before is None or after is None or abs(after / before - 1) <= MOST_OFF:
        return None
    return (
        f"the arms answered with different lengths, {before:.4g} and {after:.4g} output tokens a request: make the "
        "output length exact, or compare at equal lengths"
    )


def _tokens(launches: Sequence[LaunchValues]) -> float | None:
    """Output tokens per ok request; None where some launch does not know."""
    tokens = [launch.n_tokens for launch in launches]
    known = [count for count in tokens if count is not None]
    requests = sum(launch.n_ok for launch in launches)
    return sum(known) / requests if requests and len(known) == len(tokens) and sum(known) else None
