"""How noisy is this job, and one metric in it: the few launches at hand weighed with the runner's prior.

An empirical-Bayes variance (Smyth, Stat. Appl. Genet. Mol. Biol. 3, 2004) with two additions: a multiplier that all
metrics of a job share, since a disturbed host disturbs all of them, and an F test that drops the prior for a metric
that contradicts it.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from pytest_llmperf.stats.arms import Gated, Matrix

__all__ = ["beyond", "job_noise", "moderated", "quantile_above"]

_CONTRADICTS: Final = 0.05


def job_noise(s_sq: Matrix, gated: Gated) -> tuple[float, int]:
    """(kappa, j): kappa = max(1, mean of s^2 / s0^2) over j metrics, memory and NaN left out."""
    ratios = (s_sq / gated.s0_sq)[gated.varying & np.isfinite(s_sq)]
    return (max(1.0, float(ratios.mean())), ratios.size) if ratios.size else (1.0, 0)


def moderated(s_sq: Matrix, df: int, kappa: float, j: int, gated: Gated) -> tuple[Matrix, Matrix]:
    """(v, nu) of every metric, for df >= 1.

    With P(F[df, d0] > s^2 / (kappa s0^2)) < 0.05: v = s^2, nu = df. Else v = (d0 kappa s0^2 + df s^2) / (d0 + df),
    nu = d0 + df, and nu <= j df where kappa > 1, as kappa rests on no more than that. v never falls below the floor.
    """
    from scipy.special import fdtrc

    expected = kappa * gated.s0_sq
    contradicts: NDArray[np.bool_] = fdtrc(df, gated.d0, s_sq / expected) < _CONTRADICTS
    nu = gated.d0 + df
    if kappa > 1:
        nu = np.minimum(nu, j * df)
    v = np.where(contradicts, s_sq, (gated.d0 * expected + df * s_sq) / (gated.d0 + df))
    return np.maximum(v, gated.floor_sq), np.where(contradicts, float(df), nu)


def beyond(t: Matrix, nu: Matrix) -> Matrix:
    """P(T_nu > t); degrees of freedom need not be whole. NaN for NaN."""
    from scipy.special import stdtr  # scipy.stats takes half a second to import

    return np.asarray(stdtr(nu, -t), dtype=np.float64)


def quantile_above(p: float, nu: Matrix) -> Matrix:
    """The t with P(T_nu > t) = p."""
    from scipy.special import stdtrit

    return np.asarray(-stdtrit(nu, p), dtype=np.float64)
