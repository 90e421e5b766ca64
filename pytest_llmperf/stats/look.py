"""One look at an interleaved job: which blocks to keep, the estimates, and how surprising they are."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pytest_llmperf.stats.arms import Gated, Matrix
from pytest_llmperf.stats.moderate import beyond, job_noise, moderated

__all__ = ["MUCH_NOISIER", "Fit", "Look", "fit", "look", "lost", "pruned"]

_PRUNE_FROM: Final = 4
_OUTLIER: Final = 5.0
_MAD_TO_SD: Final = 1.4826
MUCH_NOISIER: Final = 2.0
"""Of kappa: from here on the prior has missed something, and p-values are doubled."""
_LOST_IN: Final = 2


@dataclass(frozen=True, slots=True)
class Fit:
    """Ordinary least squares of y = mu + delta * arm + slope * order; vectors over metrics."""

    estimate: Matrix
    """delta."""
    c: float
    """[(X'X)^-1] of delta: its variance is that of the residuals times c."""
    s_sq: Matrix
    """Residual variance."""
    df: int


@dataclass(frozen=True, slots=True)
class Look:
    """What all blocks up to one say; vectors over metrics."""

    estimate: Matrix
    """+inf where the candidate has lost the metric, NaN where it is not known."""
    se: Matrix
    nu: Matrix
    p: Matrix
    kappa: float
    dropped: tuple[int, ...]
    """Indices of pruned blocks."""


def fit(baseline: Matrix, candidate: Matrix, orders: Matrix) -> Fit:
    """``orders``: places of the baseline's launches in the job, then of the candidate's."""
    n = len(baseline)
    y = np.concatenate((baseline, candidate))
    y = y - y.mean(axis=0)
    arm = np.repeat((-0.5, 0.5), n)
    time = orders - orders.mean()
    # Frisch-Waugh: the part of the arm that the order does not explain carries delta.
    own = arm - (arm @ time) / (time @ time) * time
    c = 1 / float(own @ own)
    delta = c * (own @ y)
    rest = y - np.outer(arm, delta)
    rest = rest - np.outer(time, time @ rest / (time @ time))
    df = 2 * n - 3
    return Fit(delta, c, np.einsum("ij,ij->j", rest, rest) / df, df)


def pruned(baseline: Matrix, candidate: Matrix, gated: Gated) -> tuple[int, ...]:
    """Indices of blocks that something outside the server upset, at most a quarter of them, the worst first.

    z_b = max over primary metrics |d_b - median(d)| / sqrt(2 s0^2 k) > 5, with d the differences of the blocks and
    k = max(1, median over metrics except memory of (1.4826 MAD(d))^2 / (2 s0^2)). From four blocks on.
    """
    n = len(baseline)
    if n < _PRUNE_FROM:
        return ()
    with np.errstate(invalid="ignore"):
        d = candidate - baseline
        off = np.abs(d - np.median(d, axis=0))
        spread = (_MAD_TO_SD * np.median(off, axis=0)) ** 2 / (2 * gated.s0_sq)
        usable = spread[gated.varying & np.isfinite(spread)]
        k = max(1.0, float(np.median(usable))) if usable.size else 1.0
        z = np.where(np.isnan(off), 0.0, off / np.sqrt(2 * gated.s0_sq * k))[:, gated.primary].max(axis=1)
    worst = np.argsort(-z, kind="stable")[: n // 4]
    return tuple(int(b) for b in worst if z[b] > _OUTLIER)


def lost(baseline: Matrix, candidate: Matrix) -> NDArray[np.bool_]:
    """Which metrics are infinite in two or more launches of the candidate and finite in the baseline."""
    several: NDArray[np.bool_] = np.isposinf(candidate).sum(axis=0) >= _LOST_IN
    return several & np.isfinite(baseline).all(axis=0)


def look(baseline: Matrix, candidate: Matrix, orders: Matrix, gated: Gated) -> Look:
    """The rows of both arms are blocks 0 ... n - 1, n >= 2; ``orders`` has one row per block, (baseline, candidate).

    p = P(T_nu > estimate / se), 1 where the estimate is below the least effect, doubled where the job is more than
    twice as noisy as its prior. A metric that some launch lacks has p = 1; one that the candidate lost, p = 0.
    """
    n = len(baseline)
    dropped = pruned(baseline, candidate, gated)
    keep = [b for b in range(n) if b not in dropped]
    kept_b, kept_c = baseline[keep], candidate[keep]
    missing = np.isnan(baseline).any(axis=0) | np.isnan(candidate).any(axis=0)
    broken = missing | ~(np.isfinite(kept_b).all(axis=0) & np.isfinite(kept_c).all(axis=0))
    any_broken = bool(broken.any())
    if any_broken:
        kept_b, kept_c = np.where(broken, 0.0, kept_b), np.where(broken, 0.0, kept_c)
    fitted = fit(kept_b, kept_c, orders[keep].T.ravel())
    s_sq = np.where(broken, math.nan, fitted.s_sq) if any_broken else fitted.s_sq
    kappa, j = job_noise(s_sq, gated)
    v, nu = moderated(s_sq, fitted.df, kappa, j, gated)
    se = np.sqrt(v * fitted.c)
    p = np.where(fitted.estimate < gated.least, 1.0, beyond(fitted.estimate / se, nu))
    if kappa > MUCH_NOISIER:
        p = np.minimum(1.0, 2 * p)
    estimate = fitted.estimate
    if any_broken:
        gone = lost(baseline, candidate)
        p = np.where(gone, 0.0, np.where(broken, 1.0, p))
        estimate = np.where(gone, math.inf, np.where(broken, math.nan, estimate))
    return Look(estimate, se, nu, p, kappa, dropped)
