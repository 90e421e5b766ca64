"""A noise model of LLM serving, to measure how often a gate errs: launches, replays, days, drifts, disturbances.

A launch draws two latent slownesses, of prefill and of decode, which every metric follows by its loadings; replays add
noise of their own, right-skewed in the tails; memory hardly varies. All values are on the oriented log scale (larger is
worse, 0.05 is about 5 %). It is a model: log-additive, two speeds. Anchors of its sizes: repeated vLLM benchmarks of
1000 requests in pull requests of vllm-project/vllm (7062: p99 TTFT varies by 16 %, p95 by 4.6 %, p90 by 3.4 %; 3889:
offline latency by 0.5 to 1.2 %).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pytest_llmperf.stats.launches import LaunchValues

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Kind:
    """How one metric behaves."""

    typical: float
    """Value of a usual launch, in base units."""
    higher_is_better: bool
    prefill: float
    decode: float
    replay_sd: float
    """Of one replay of some 1000 requests."""
    skew: float = 0.0
    """Share of the replay variance that is exponential instead of normal."""


KINDS: Mapping[str, Kind] = {
    "ttft_p50": Kind(0.120, False, 1.00, 0.20, 0.006),
    "ttft_p95": Kind(0.380, False, 1.15, 0.30, 0.018, 0.5),
    "ttft_p99": Kind(0.550, False, 1.25, 0.35, 0.045, 1.0),
    "tpot_mean": Kind(0.0210, False, 0.05, 1.00, 0.002),
    "tpot_p95": Kind(0.0260, False, 0.10, 1.00, 0.004),
    "icl_p99": Kind(0.060, False, 0.50, 0.60, 0.018, 0.7),
    "output_throughput": Kind(2400.0, True, 0.15, 0.80, 0.0015),
    "goodput": Kind(7.5, True, 0.60, 0.80, 0.008),
    "peak_memory": Kind(61.0 * 2**30, False, 0.0, 0.0, 0.0),
}
NAMES = tuple(KINDS)
_TYPICAL = np.array([kind.typical for kind in KINDS.values()])
_SIGN = np.array([-1.0 if kind.higher_is_better else 1.0 for kind in KINDS.values()])
_LOADINGS = np.array([(kind.prefill, kind.decode) for kind in KINDS.values()])
_REPLAY_SD = np.array([kind.replay_sd for kind in KINDS.values()])
_SKEW = np.array([kind.skew for kind in KINDS.values()])
_MEMORY = NAMES.index("peak_memory")


@dataclass(frozen=True)
class Regime:
    """A runner. Standard deviations are of log values."""

    launch_sd: float = 0.010
    replay_factor: float = 1.0
    session_sd: float = 0.0
    heavy_tails: bool = False
    outlier_share: float = 0.0
    outlier_mean: float = 0.12
    slow_share: float = 0.0
    slow_by: float = 0.0
    drift: float = 0.0
    """Slower by this much once warm, with a time constant of six launches."""
    wander: float = 0.0
    candidate_factor: float = 1.0
    history_factor: float = 1.0


REGIMES: Mapping[str, Regime] = {
    "quiet": Regime(0.005, 0.5),
    "typical": Regime(session_sd=0.004),
    "noisy": Regime(0.020, 1.5, session_sd=0.008),
    "very noisy": Regime(0.040, 2.5, session_sd=0.015),
    "thermal drift": Regime(drift=0.04, wander=0.004, session_sd=0.005),
    "outliers": Regime(outlier_share=0.05, session_sd=0.004),
    "heavy tails": Regime(0.015, 1.5, heavy_tails=True, session_sd=0.005),
    "bimodal": Regime(0.006, slow_share=0.3, slow_by=0.04, session_sd=0.004),
    "days differ": Regime(session_sd=0.020),
    "candidate noisier": Regime(candidate_factor=2.5, session_sd=0.004),
    "prior 2.5x too small": Regime(0.020, 1.5, history_factor=0.4, session_sd=0.008),
    "prior 4x too small": Regime(0.020, 1.5, history_factor=0.25, session_sd=0.008),
}

EFFECTS: Mapping[str, Array] = {
    "none": np.zeros(len(NAMES)),
    "ttft": np.array([1, 1, 1, 0, 0, 0, 0.05, 0.4, 0]),
    "tpot": np.array([0.1, 0.1, 0.1, 1, 1, 0.7, 0.8, 0.8, 0]),
    "tail": np.array([0, 0.5, 1, 0.02, 0.2, 1, 0, 0.2, 0]),
    "memory": np.array([0, 0, 0, 0, 0, 0, 0, 0, 1.0]),
    "all": np.array([1, 1, 1, 1, 1, 1, 1, 1, 0.0]),
}
"""How strongly a regression moves each metric, in the order of ``NAMES``."""


@dataclass(frozen=True)
class Job:
    """Interleaved blocks of both arms and what the runner's earlier jobs looked like; arrays end in metrics."""

    baseline: Array
    candidate: Array
    baseline_first: NDArray[np.bool_]
    history: Array
    """(groups, launches, metrics)."""


def launch_values(rng: np.random.Generator, shape: tuple[int, ...], regime: Regime, factor: float = 1.0) -> Array:
    """Independent launches of two replays each, without what they share with others of their day."""
    draws = rng.standard_t(3, (*shape, 2)) / np.sqrt(3.0) if regime.heavy_tails else rng.standard_normal((*shape, 2))
    slowness = _correlated(draws) * regime.launch_sd * factor
    if regime.slow_share:
        slowness += regime.slow_by * (rng.random(shape) < regime.slow_share)[..., None]
    if regime.outlier_share:
        struck = rng.random(shape) < regime.outlier_share
        slowness += (struck * rng.exponential(regime.outlier_mean, shape))[..., None]
    wide = (*shape, len(NAMES))
    replay = np.sqrt(1 - _SKEW) * rng.standard_normal(wide) + np.sqrt(_SKEW) * (rng.exponential(1.0, wide) - 1.0)
    y = slowness @ _LOADINGS.T + replay * _REPLAY_SD * regime.replay_factor * factor / np.sqrt(2)
    y[..., _MEMORY] += 0.0002 * rng.standard_normal(shape) + 0.001 * (rng.random(shape) < 0.05)
    return y


def day(rng: np.random.Generator, shape: tuple[int, ...], regime: Regime) -> Array:
    """What all launches of a session share."""
    return _correlated(rng.standard_normal((*shape, 2)), 0.6) * regime.session_sd @ _LOADINGS.T


def warming(rng: np.random.Generator, shape: tuple[int, ...], regime: Regime) -> Array:
    """What happens to a host over consecutive launches; the last axis of ``shape`` counts them."""
    heat = regime.drift * (1 - np.exp(-np.arange(shape[-1]) / 6.0))
    walk = np.cumsum(rng.standard_normal(shape) * regime.wander, axis=-1)
    return (heat + walk)[..., None] * _LOADINGS.sum(axis=1)


def job(rng: np.random.Generator, regime: Regime, effect: Array, *, blocks: int = 8, groups: int = 6) -> Job:
    """One job in the order ABBA, its first arm drawn; ``effect`` is added to the candidate."""
    base = launch_values(rng, (blocks,), regime)
    cand = launch_values(rng, (blocks,), regime, regime.candidate_factor)
    shared, host = day(rng, (), regime), warming(rng, (2 * blocks,), regime).reshape(blocks, 2, -1)
    first = (np.arange(blocks) % 2 == 0) ^ (rng.random() < 0.5)
    earlier, later = host[:, 0], host[:, 1]
    base = base + shared + np.where(first[:, None], earlier, later)
    cand = cand + shared + np.where(first[:, None], later, earlier) + effect
    past = launch_values(rng, (groups, 4), regime, regime.history_factor)
    past = past + day(rng, (groups, 1), regime) + warming(rng, (groups, 4), regime)
    return Job(base, cand, first, past)


def stored(
    rng: np.random.Generator, regime: Regime, effect: Array, *, sessions: int, per: int, launches: int = 3
) -> tuple[Array, Array]:
    """Baseline (sessions, per, metrics) and candidate (launches, metrics), each session on a day of its own."""
    base = launch_values(rng, (sessions, per), regime) + day(rng, (sessions, 1), regime)
    cand = launch_values(rng, (launches,), regime, regime.candidate_factor) + day(rng, (), regime) + effect
    return base + warming(rng, (sessions, per), regime), cand + warming(rng, (launches,), regime)


def as_launches(y: Array, *, orders: list[int] | None = None, session: str = "today") -> list[LaunchValues]:
    """(launches, metrics) → what the gate takes; two replays of 1000 requests."""
    values = _TYPICAL * np.exp(_SIGN * y)
    return [
        LaunchValues(
            metrics=dict(zip(NAMES, row, strict=True)),
            order=orders[i] if orders is not None else i,
            block=i,
            session=session,
            n_requests=2000,
            n_failed=0,
            n_tokens=400_000,
        )
        for i, row in enumerate(values.tolist())
    ]


def _correlated(draws: Array, by: float = 0.6) -> Array:
    first, second = draws[..., 0], draws[..., 1]
    return np.stack([first, by * first + np.sqrt(1 - by * by) * second], axis=-1)
