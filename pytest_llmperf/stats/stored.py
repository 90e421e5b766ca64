"""A candidate against stored launches of the baseline: it acquits, and convicts only of a gross regression.

Another day or another state of the host shifts all launches of a session together, and no number of candidate launches
averages that out. So the spread of the baseline's sessions enters the standard error (with a weak prior: half the
built-in noise of a launch, worth three sessions), a FAIL needs every candidate launch beyond the whole limit, and what
is neither shown is a question for launches side by side.

The same arithmetic serves servers that cannot be launched: one against a stored baseline, and two against each other.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from pytest_llmperf.stats.arms import Gated, Matrix, gate, oriented
from pytest_llmperf.stats.evidence import (
    describe,
    error_verdict,
    judgements,
    nothing_gated,
    ratio,
    warnings,
    worse_than_limit,
)
from pytest_llmperf.stats.launches import GateConfig, Judgement, LaunchValues, MetricJudgement
from pytest_llmperf.stats.look import lost
from pytest_llmperf.stats.moderate import beyond, job_noise, moderated, quantile_above
from pytest_llmperf.stats.multiple import simes

__all__ = ["ESCALATE", "LAUNCHES", "ONE_SESSION", "PAIR_REPLAYS", "judge_pair", "judge_stored", "judge_targeted"]

LAUNCHES: Final = 3
"""Candidate launches; PASS is asked after the second as well."""
PAIR_REPLAYS: Final = 4
ESCALATE: Final = "only launches of both side by side can decide"
ONE_SESSION: Final = "a baseline of one session rarely acquits: refresh it on another day, or compare side by side"
_WIDENED_FOR: Final = 8
_PRIOR_SESSIONS: Final = 3
_FAIL_SHARE: Final = 0.25
"""Of alpha: 0.0025."""
_PASS_SHARE: Final = 0.5
"""Of alpha_pass, for each of two looks: 0.025."""


@dataclass(frozen=True, slots=True)
class _Evidence:
    """Vectors over metrics."""

    baseline: Matrix
    """Mean; stored: of the session means."""
    launches: Matrix
    """The candidate's, one row each."""
    estimate: Matrix
    se: Matrix
    nu: Matrix
    kappa: float


def judge_stored(
    baseline: Sequence[LaunchValues],
    candidate: Sequence[LaunchValues],
    *,
    prior: Mapping[str, tuple[float, float]] | None = None,
    config: GateConfig | None = None,
) -> Judgement:
    """Judge two, then three candidate launches of one session against the baseline's sessions.

    CONTINUE: one more launch may decide. INCONCLUSIVE: escalate to launches side by side. ``config.max_blocks`` is
    not used. Raises ValueError for no baseline, for more than three candidate launches or several sessions of them,
    and for an impossible configuration or prior.
    """
    n = len(candidate)
    if n > LAUNCHES:
        raise ValueError(f"{n} candidate launches: a stored comparison ends with the third")
    if n < 2:
        _check(baseline, candidate)
        return Judgement("INCONCLUSIVE", f"{n} launch{'es'[: 2 * (n != 1)]}; needs 2 of the candidate", blocks=n)
    return _judge(baseline, candidate, prior, config or GateConfig(), more=n < LAUNCHES, may_fail=n == LAUNCHES)


def judge_targeted(
    baseline: Sequence[LaunchValues],
    candidate: LaunchValues,
    *,
    prior: Mapping[str, tuple[float, float]] | None = None,
    config: GateConfig | None = None,
) -> Judgement:
    """Judge one live server, all its replays taken together, against stored sessions: PASS or INCONCLUSIVE.

    A single launch can be an unlucky one, so it is never convicted. Raises ValueError as ``judge_stored``.
    """
    return _judge(baseline, (candidate,), prior, config or GateConfig(), more=False, may_fail=False)


def judge_pair(
    a_replays: Sequence[LaunchValues],
    b_replays: Sequence[LaunchValues],
    *,
    prior: Mapping[str, tuple[float, float]] | None = None,
    config: GateConfig | None = None,
) -> Judgement:
    """Judge live server B against live server A by alternating replays, at least four of each, paired by ``block``.

    Here a ``LaunchValues`` is one replay. d = mean difference; v = max(variance of the differences / replays, 2 s0^2),
    since each server is one draw of its launch and its host; nu = d0. FAIL only where every replay of B lies beyond
    A's mean by the limit. Raises ValueError where the replays do not pair up.
    """
    config = config or GateConfig()
    base, cand = (sorted(replays, key=lambda replay: replay.block) for replays in (a_replays, b_replays))
    if [each.block for each in base] != [each.block for each in cand]:
        raise ValueError("replays of the two servers do not pair up: "
                         f"blocks {[x.block for x in base]} and {[x.block for x in cand]}")  # fmt: skip
    n = len(base)
    if n < PAIR_REPLAYS:
        return Judgement("INCONCLUSIVE", f"{n} replays of each server; needs {PAIR_REPLAYS}", blocks=n)
    by_errors = error_verdict(base, cand, n, more=False)
    if by_errors is not None:
        return by_errors
    gated = gate((*base, *cand), prior, config, _WIDENED_FOR)
    if not gated.names:
        return nothing_gated(gated, n)
    y_a, y_b = oriented(base, gated.names), oriented(cand, gated.names)
    with np.errstate(invalid="ignore"):
        v = np.maximum((y_b - y_a).var(axis=0, ddof=1) / n, 2 * gated.s0_sq)
        mean_a = y_a.mean(axis=0)
        found = _Evidence(mean_a, y_b, y_b.mean(axis=0) - mean_a, np.sqrt(v), gated.d0, 1.0)
    return _conclude(gated, y_a, found, config, more=False, may_fail=True, what=f"{n} replays of each")


def _judge(
    baseline: Sequence[LaunchValues],
    candidate: Sequence[LaunchValues],
    prior: Mapping[str, tuple[float, float]] | None,
    config: GateConfig,
    *,
    more: bool,
    may_fail: bool,
) -> Judgement:
    _check(baseline, candidate)
    n = len(candidate)
    by_errors = error_verdict(baseline, candidate, n, more=more)
    if by_errors is not None:
        return by_errors
    gated = gate((*baseline, *candidate), prior, config, _WIDENED_FOR)
    if not gated.names:
        return nothing_gated(gated, n)
    by_session: dict[str, list[LaunchValues]] = {}
    for launch in baseline:
        by_session.setdefault(launch.session, []).append(launch)
    sessions = [oriented(each, gated.names) for each in by_session.values()]
    found = _against_sessions(gated, sessions, oriented(candidate, gated.names))
    what = f"{n} launch{'es'[: 2 * (n != 1)]} against {len(sessions)} session{'s'[: len(sessions) != 1]}"
    judged = _conclude(gated, np.concatenate(sessions), found, config, more=more, may_fail=may_fail, what=what)
    return replace(judged, warnings=(ONE_SESSION, *judged.warnings)) if len(sessions) == 1 else judged


def _against_sessions(gated: Gated, sessions: Sequence[Matrix], candidate: Matrix) -> _Evidence:
    """v_L from the variance inside sessions, v_S = (3 (0.5 s0_builtin)^2 + (S-1) M_S) / (S+2), nu_S = S+2.

    M_S = max(0, var(session means) - v_L mean(1 / n_g)), 0 for S = 1; A = v_S (1 + 1/S),
    B = v_L (sum 1/n_g / S^2 + 1/n_C); se = sqrt(A + B), nu by Satterthwaite.
    """
    with np.errstate(invalid="ignore"):
        groups = (*sessions, candidate)
        df = sum(len(group) - 1 for group in groups)
        if df:
            s_sq = sum(((group - group.mean(axis=0)) ** 2).sum(axis=0) for group in groups) / df
            kappa, j = job_noise(s_sq, gated)
            v_l, nu_l = moderated(s_sq, df, kappa, j, gated)
        else:
            v_l, nu_l, kappa = gated.s0_sq, gated.d0, 1.0
        means = np.array([session.mean(axis=0) for session in sessions])
        shares = np.array([1 / len(session) for session in sessions])
        count = len(sessions)
        between = np.maximum(0.0, means.var(axis=0, ddof=1) - v_l * shares.mean()) if count > 1 else 0.0
        v_s = (_PRIOR_SESSIONS * (0.5 * gated.s0_builtin) ** 2 + (count - 1) * between) / (count + 2)
        a = v_s * (1 + 1 / count)
        b = v_l * (shares.sum() / count**2 + 1 / len(candidate))
        nu = (a + b) ** 2 / (a**2 / (count + 2) + b**2 / nu_l)
        base = means.mean(axis=0)
        return _Evidence(base, candidate, candidate.mean(axis=0) - base, np.sqrt(a + b), nu, kappa)


def _conclude(
    gated: Gated, baseline: Matrix, found: _Evidence, config: GateConfig, *, more: bool, may_fail: bool, what: str
) -> Judgement:
    alpha, level_pass = config.alpha * _FAIL_SHARE, config.alpha_pass * _PASS_SHARE
    known = np.isfinite(baseline).all(axis=0) & np.isfinite(found.launches).all(axis=0)
    gone = lost(baseline, found.launches) & ~np.isnan(found.launches).any(axis=0)
    estimate = np.where(gone, math.inf, np.where(known, found.estimate, math.nan))
    se = np.where(known, found.se, math.nan)
    p = np.where(known & (estimate >= gated.least), beyond(estimate / se, found.nu), 1.0)
    p = np.where(gone, 0.0, p)
    q = worse_than_limit(estimate, se, found.nu, gated)
    p_global = min(1.0, simes(p.tolist()))
    with np.errstate(invalid="ignore"):
        gross = (p <= alpha) & (found.launches - found.baseline >= gated.limit).all(axis=0)
    regressed: tuple[str, ...] = ()
    if may_fail and p_global <= alpha:
        regressed = tuple(name for name, is_gross in zip(gated.names, gross.tolist(), strict=True) if is_gross)
    metrics = judgements(
        gated, found.baseline, found.launches.mean(axis=0), estimate=estimate, se=se, nu=found.nu, p=p, p_seq=p, q=q,
        below=quantile_above(alpha / len(gated.names), found.nu), above=quantile_above(level_pass, found.nu),
        regressed=regressed,
    )  # fmt: skip
    n = len(found.launches)
    passed = bool((q <= level_pass).all())
    notes = warnings(gated, baseline, found.launches)
    reason = _reason(metrics, what, passed=passed, level_pass=level_pass, more=more)
    return Judgement(
        "FAIL" if regressed else "PASS" if passed else "CONTINUE" if more else "INCONCLUSIVE",
        reason,
        metrics,
        regressed,
        p_global,
        found.kappa,
        n,
        tuple(range(n)),
        not_gated=gated.not_gated,
        warnings=notes,
    )


def _reason(metrics: Sequence[MetricJudgement], what: str, *, passed: bool, level_pass: float, more: bool) -> str:
    named = [each for each in metrics if each.regressed]
    if named:
        return f"gross regression in {what}, every one beyond the limit: {describe(named)}"
    if passed:
        return f"a regression beyond the limits is ruled out by {what}"
    left = ", ".join(f"{each.metric} (up to {ratio(each.upper)})" for each in metrics if not each.q <= level_pass)
    return f"not decided by {what}: {left}; {'one more launch may do' if more else ESCALATE}"


def _check(baseline: Sequence[LaunchValues], candidate: Sequence[LaunchValues]) -> None:
    if not baseline:
        raise ValueError("no launches of the baseline to compare with")
    sessions = sorted({launch.session for launch in candidate})
    if len(sessions) > 1:
        raise ValueError(f"candidate launches of several sessions ({', '.join(sessions)}): their days differ")
