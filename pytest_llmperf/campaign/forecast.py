"""How long a campaign takes, how many blocks its budget has room for, and what it can show. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import Final, Protocol

from pytest_llmperf.campaign.terms import Mode
from pytest_llmperf.comparisons import Forecast
from pytest_llmperf.plan import Plan
from pytest_llmperf.stats.family import gate_row
from pytest_llmperf.stats.launches import GateConfig
from pytest_llmperf.stats.power import detectable_interleaved, detectable_stored
from pytest_llmperf.stats.prior import Prior
from pytest_llmperf.variables import Arms

__all__ = ["USUAL", "Times", "block_seconds", "foretell", "launch_seconds", "most_blocks", "noise_lines"]

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


def _largest(tests: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """What shows in every test that gates the metric."""
    found: dict[str, float] = {}
    for shown in tests:
        for name, change in shown.items():
            found[name] = max(change, found.get(name, 0.0))
    return found


def foretell(
    mode: Mode,
    plans: Sequence[Plan],
    times: Sequence[Times],
    arms: Arms | None,
    prior: Prior | None,
    configs: Sequence[GateConfig],
) -> Forecast:
    """``times``: of the server, or of baseline and candidate; ``prior``: of the noisiest test on this runner, None
    where it has not been measured; ``configs``: what the gate judges of each test."""
    replays = 1 if mode in ("sla", "targeted") else 2
    candidate = launch_seconds(plans, times[-1], replays)
    block = block_seconds(plans, times, replays) if len(times) > 1 else None
    most = configs[0].max_blocks
    notes = (
        []
        if prior is not None or mode not in ("stored", "screened", "interleaved")
        else ["this runner's noise is not known yet"]
    )
    if mode == "interleaved":
        launches = (4, 2 * most)
        seconds = None if block is None else (3 * block, (most + 1) * block)
        detects = _largest(
            detectable_interleaved(each.metrics or (), most, prior=prior, config=each) for each in configs
        )
    elif mode == "screened":
        launches = (2, 3 + 2 * most)
        seconds = None if block is None or candidate is None else (2 * candidate, 3 * candidate + (most + 1) * block)
        detects = _largest(
            detectable_interleaved(each.metrics or (), most, prior=prior, config=each) for each in configs
        )
    elif mode == "stored":
        launches = (1, 3)
        seconds = None if candidate is None else (candidate, 3 * candidate)
        detects = _largest(
            detectable_stored(each.metrics or (), (3, 3, 3), prior=prior, config=each) for each in configs
        )
        notes.append("a stored baseline convicts of gross changes only; smaller ones take launches side by side")
    else:
        launches = {"refresh": (3, 3), "pair": (8, 8)}.get(mode, (1, 1))
        seconds = None if candidate is None else (launches[0] * candidate, launches[1] * candidate)
        detects = {}
    return Forecast(
        mode=_MODES[mode] + (f": {arms.text}" if arms is not None else ""),
        launches=launches,
        seconds=seconds,
        gpus=plans[0].server.gpu_count,
        detects=detects,
        notes=tuple(notes),
    )


def noise_lines(metrics: Sequence[str], prior: Prior, config: GateConfig) -> tuple[str, ...]:
    """Per metric the standard deviation of a launch and the smallest change that 4, 8 and 12 blocks show; a tolerance
    that lies below is said."""
    lines = []
    shown = {
        n: detectable_interleaved(metrics, n, prior=prior, config=replace(config, max_blocks=n)) for n in (4, 8, 12)
    }
    for name in metrics:
        s0_squared, _ = prior.noise(name)
        found = ", ".join(f"{100 * each[name]:.3g} % in {n} blocks" for n, each in shown.items())
        line = f"{name}: launches vary by {100 * math.sqrt(s0_squared):.3g} % (sd); a job shows a change of {found}"
        row = gate_row(name)
        if row is not None:
            tolerance = config.tolerances.get(name, row.tolerance)
            if math.expm1(tolerance.limit) < shown[12][name]:
                line += f"; the {100 * math.expm1(tolerance.floor):.3g} % allowed are less than it can show"
        lines.append(line)
    return tuple(lines)


_MODES: Final[Mapping[Mode, str]] = {
    "sla": "limits only, no comparison",
    "stored": "compared with the stored baseline, where a test has one",
    "interleaved": "launches side by side, one change",
    "screened": "compared with the stored baseline, then by launches side by side where that does not decide",
    "targeted": "a running server, compared with the stored baseline where a test has one",
    "pair": "two running servers, in alternating replays",
    "refresh": "a new session of the stored baseline",
}
