"""What a job can show before it runs: the smallest change it would detect, the blocks for one, the replays per launch.

All from the prior, so as good as that is. "Detect" is a FAIL with the stated probability when exactly one metric is
worse; a regression that moves several is easier to see. Changes are ratios (0.05 is 5 %).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

from pytest_llmperf.stats.family import GateRow, gate_row, why_not_gateable
from pytest_llmperf.stats.launches import GateConfig, Tolerance
from pytest_llmperf.stats.levels import levels
from pytest_llmperf.stats.prior import Prior

__all__ = ["POWER", "blocks_for", "detectable_interleaved", "detectable_stored", "replays"]

POWER: Final = 0.8
_MOST_REPLAYS: Final = 6
_STORED_SHARE: Final = 0.25


def detectable_interleaved(
    metrics: Sequence[str],
    blocks: int,
    *,
    prior: Mapping[str, tuple[float, float]] | None = None,
    config: GateConfig | None = None,
    power: float = POWER,
) -> dict[str, float]:
    """Smallest change that ``blocks`` blocks would show in each of ``metrics``, all of them gated.

    With se^2 = 2 s0^2 / N, nu = d0 + 2N - 3 and z the normal quantile of ``power``:
    delta = max(t(1 - alpha c_N / m, nu) se, least effect) + z se. Earlier looks only add to the power.
    """
    config = config or GateConfig()
    c, _ = levels(blocks, config.alpha, config.alpha_pass)
    level = config.alpha * c[-1] / len(metrics)
    found = {}
    for name, row, tolerance, s0_sq, d0 in _rows(metrics, prior, config):
        del row
        se = math.sqrt(2 * s0_sq / blocks)
        least = max(_t(level, d0 + 2 * blocks - 3) * se, tolerance.floor)
        found[name] = math.expm1(least + _z(power) * se)
    return found


def detectable_stored(
    metrics: Sequence[str],
    sessions: Sequence[int],
    *,
    launches: int = 3,
    prior: Mapping[str, tuple[float, float]] | None = None,
    config: GateConfig | None = None,
    power: float = POWER,
) -> dict[str, float]:
    """Smallest gross regression that a stored baseline would show; ``sessions`` holds the launches of each.

    The standard error is that of the stored test with sessions that do not differ; in addition every one of the
    ``launches`` has to lie beyond L, which for independent launches takes
    L + z(power^(1 / launches)) sqrt(v_L (1 + sum 1/n_g / S^2)). The larger of the two.
    """
    config = config or GateConfig()
    count = len(sessions)
    shares = sum(1 / n for n in sessions) / count**2
    df = sum(n - 1 for n in sessions) + launches - 1
    found = {}
    for name, row, tolerance, s0_sq, d0 in _rows(metrics, prior, config):
        a = 3 * (0.5 * row.s0) ** 2 / (count + 2) * (1 + 1 / count)
        b = s0_sq * (shares + 1 / launches)
        se, nu = math.sqrt(a + b), (a + b) ** 2 / (a**2 / (count + 2) + b**2 / (d0 + df))
        shown = max(_t(config.alpha * _STORED_SHARE / len(metrics), nu) * se, tolerance.floor) + _z(power) * se
        each = tolerance.limit + _z(power ** (1 / launches)) * math.sqrt(s0_sq * (1 + shares))
        found[name] = math.expm1(max(shown, each))
    return found


def blocks_for(
    metric: str,
    change: float,
    metrics: Sequence[str],
    *,
    prior: Mapping[str, tuple[float, float]] | None = None,
    config: GateConfig | None = None,
    power: float = POWER,
    most: int = 64,
) -> int | None:
    """Fewest blocks (3 at least) that would show ``change`` of ``metric`` among the gated ``metrics``.

    None where more than ``most`` are needed, or where the least effect itself forbids it.
    """
    for blocks in range(3, most + 1):
        if detectable_interleaved(metrics, blocks, prior=prior, config=config, power=power)[metric] <= change:
            return blocks
    return None


def replays(launch_s: float, replay_s: float, variances: Mapping[str, tuple[float, float]], *, tests: int = 1) -> int:
    """Replays per launch that buy most precision for the time: the largest over the (primary) metrics given.

    r = round(sqrt(t_launch / (k t_replay) * s_replay^2 / s_launch^2)), clamped to 1 ... 6 (the optimal subsampling of a
    two-stage design, Cochran, Sampling Techniques, 1977); 6 where launches do not vary. ``launch_s``: start of a
    server, ``replay_s``: one replay, ``variances``: metric → (between replays of a launch, between launches),
    ``tests``: k, those that share the launch. Raises ValueError for times that are not positive, or no metric.
    """
    if not (launch_s > 0 and replay_s > 0 and tests >= 1 and variances):
        raise ValueError(
            f"needs positive times, at least one test and one metric; got {launch_s} s, {replay_s} s, {tests}, "
            f"{len(variances)} metrics"
        )
    wanted = [
        math.sqrt(launch_s / (tests * replay_s) * within / between) if between > 0 else math.inf
        for within, between in variances.values()
    ]
    return max(1, round(min(max(wanted), _MOST_REPLAYS)))


def _rows(
    metrics: Sequence[str], prior: Mapping[str, tuple[float, float]] | None, config: GateConfig
) -> list[tuple[str, GateRow, Tolerance, float, float]]:
    known = prior if isinstance(prior, Prior) else Prior(dict(prior or {}))
    found = []
    for name in metrics:
        row = gate_row(name)
        if row is None:
            raise ValueError(f"{name} cannot be gated: {why_not_gateable(name)}")
        found.append((name, row, config.tolerances.get(name, row.tolerance), *known.noise(name)))
    return found


def _t(level: float, nu: float) -> float:
    from scipy.special import stdtrit

    return -float(stdtrit(nu, level))


def _z(share: float) -> float:
    from scipy.special import ndtri

    return float(ndtri(share))
