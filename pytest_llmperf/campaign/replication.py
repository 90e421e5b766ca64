"""How many replays each launch is worth, by what launches and replays have cost and varied before. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median, variance

from pytest_llmperf.baseline.state import StoredNoise
from pytest_llmperf.campaign.forecast import Times
from pytest_llmperf.result import TrialReport
from pytest_llmperf.stats.family import gate_row
from pytest_llmperf.stats.power import replays

__all__ = ["replays_for", "within_launches"]


def within_launches(trials: Sequence[TrialReport]) -> dict[str, float]:
    """Metric → variance between the log values of replays of one launch, the mean over launches with two or more."""
    found: dict[str, list[float]] = {}
    for launch in dict.fromkeys(trial.launch for trial in trials):
        own = [trial for trial in trials if trial.launch == launch]
        for name in own[0].metrics:
            values = [trial.metrics[name].value for trial in own if name in trial.metrics]
            known = [value for value in values if value is not None and value > 0]
            if len(own) > 1 and len(known) == len(own) and gate_row(name) is not None:
                found.setdefault(name, []).append(variance(map(math.log, known)))
    return {name: math.fsum(each) / len(each) for name, each in found.items()}


def replays_for(groups: Sequence[StoredNoise], times: Times, nodeid: str, tests: int) -> int | None:
    """The replays per launch that buy most precision for the time; None where noise or times are not known.

    What launches vary by beyond their replays is the variance of their means less that of the replays in it.
    """
    known = [group for group in groups if group.within]
    replay_s = times.replay_s.get(nodeid)
    if not known or not times.launch_s or not replay_s:
        return None
    variances = {}
    for name in set.intersection(*(group.within.keys() & group.spread.keys() for group in known)):
        row = gate_row(name)
        if row is not None and row.primary:
            between = median(group.spread[name][0] - group.within[name] / group.replays for group in known)
            variances[name] = median(group.within[name] for group in known), max(0.0, between)
    if not variances:
        return None
    return replays(median(times.launch_s), median(replay_s), variances, tests=tests)
