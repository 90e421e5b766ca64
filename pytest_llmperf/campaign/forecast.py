"""How long a campaign takes, how many blocks its budget has room for, and what it can show. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Final, Protocol

from pytest_llmperf.plan import Plan

__all__ = ["Times", "block_seconds", "launch_seconds", "most_blocks"]

BLOCKS: Final = (12, 8, 6, 4, 3)
"""Numbers of blocks whose levels are tabulated."""
USUAL: Final = 8


class Times(Protocol):
    """Seconds that launches and replays have taken."""

    @property
    def launch_s(self) -> Sequence[float]: ...

    @property
    def replay_s(self) -> Mapping[str, Sequence[float]]: ...


def launch_seconds(plans: Sequence[Plan], times: Times, replays: int) -> float | None:
    """One launch with the loads of all ``plans``; None where some part has never been timed."""
    if not times.launch_s:
        return None
    total = median(times.launch_s)
    for plan in plans:
        known = times.replay_s.get(plan.nodeid)
        if not known:
            return None
        total += (plan.replays or replays) * median(known)
    return total


def block_seconds(plans: Sequence[Plan], arms: Sequence[Times], replays: int) -> float | None:
    """One launch of each arm."""
    known = [launch_seconds(plans, times, replays) for times in arms]
    return None if None in known else sum(each for each in known if each is not None)


def most_blocks(plans: Sequence[Plan], arms: Sequence[Times], budget_s: float | None, replays: int) -> int:
    """Blocks of a sequence, fixed before its first: the largest tabulated number that the budget has room for.

    One unjudged launch of each arm goes before them. Without a budget, or times of earlier runs, the usual number.
    """
    seconds = block_seconds(plans, arms, replays)
    if budget_s is None or seconds is None:
        return USUAL
    room = int(budget_s / seconds) - 1
    return next((count for count in BLOCKS if count <= room), BLOCKS[-1])
