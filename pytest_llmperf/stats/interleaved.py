"""The interleaved test: blocks of two fresh launches, one per arm, until they show a regression or rule it out.

A host that drifts, or has a bad hour, hits both arms of a block. After every block from the second on the job is
looked at; the levels of the looks add up to the false-positive rate of the whole test, all metrics included.
FAIL is asked before PASS. The verdict is a pure function of the blocks, the prior and the configuration.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
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
from pytest_llmperf.stats.launches import GateConfig, Judgement, LaunchValues, MetricJudgement, Outcome
from pytest_llmperf.stats.levels import levels
from pytest_llmperf.stats.look import MUCH_NOISIER, Look, look
from pytest_llmperf.stats.moderate import quantile_above
from pytest_llmperf.stats.multiple import hommel, simes

__all__ = ["judge_interleaved"]

_STOP_FROM: Final = 4
_STOP_P: Final = 0.05
_REACH: Final = 2.5
"""Standard errors that L must span for a PASS to come into reach."""


def judge_interleaved(
    baseline: Sequence[LaunchValues],
    candidate: Sequence[LaunchValues],
    *,
    prior: Mapping[str, tuple[float, float]] | None = None,
    config: GateConfig | None = None,
) -> Judgement:
    """Judge all blocks run so far; earlier looks are computed anew from them.

    ``block`` pairs the launches and gives their sequence, ``order`` is their place in the job; the sequences may come
    in any order. ``prior``: metric → (s0 squared, d0); None and metrics that it lacks: the built-in noise.

    Raises ValueError where the arms do not pair up, for more than ``config.max_blocks`` blocks, and for a
    configuration or prior that is impossible.
    """
    config = config or GateConfig()
    c, a = levels(config.max_blocks, config.alpha, config.alpha_pass)
    base, cand = _paired(baseline, candidate, config.max_blocks)
    n = len(base)
    if n < 2:
        return Judgement("INCONCLUSIVE", f"{n} block{'s'[: n != 1]} run; a comparison needs at least 2", blocks=n)
    by_errors = error_verdict(base, cand, n, more=n < config.max_blocks)
    if by_errors is not None:
        return by_errors
    gated = gate((*base, *cand), prior, config, config.max_blocks)
    if not gated.names:
        return nothing_gated(gated, n)
    y_b, y_c = oriented(base, gated.names), oriented(cand, gated.names)
    orders = np.array([(b.order, x.order) for b, x in zip(base, cand, strict=True)], dtype=np.float64)
    looks = [look(y_b[:k], y_c[:k], orders[:k], gated) for k in range(2, n + 1)]
    spent = [each.p / level for each, level in zip(looks, c, strict=False)]
    p_seq = np.minimum(1.0, np.min(spent, axis=0))
    now, level_pass = looks[-1], a[n - 2]
    p_global = min(1.0, simes(p_seq.tolist()))
    q = worse_than_limit(now.estimate, now.se, now.nu, gated)
    failing = p_global <= config.alpha
    regressed = _named(gated, now, p_seq, config.alpha) if failing else ()
    kept = [index for index in range(n) if index not in now.dropped]
    metrics = judgements(
        gated,
        y_b[kept].mean(axis=0),
        y_c[kept].mean(axis=0),
        estimate=now.estimate,
        se=now.se,
        nu=now.nu,
        p=now.p,
        p_seq=p_seq,
        q=q,
        below=quantile_above(config.alpha * c[n - 2] / len(gated.names), now.nu),
        above=quantile_above(level_pass, now.nu),
        regressed=regressed,
    )
    needed = _blocks_needed(gated, now, n, config.max_blocks)
    result, reason = _decide(metrics, n, config.max_blocks, failing, level_pass, needed)
    return Judgement(
        result,
        reason,
        metrics,
        regressed,
        p_global,
        now.kappa,
        n,
        tuple(base[index].block for index in kept),
        tuple(sorted(base[index].block for index in now.dropped)),
        needed if result == "INCONCLUSIVE" else None,
        gated.not_gated,
        (*_noisier(now.kappa), *warnings(gated, y_b, y_c)),
    )


def _decide(
    metrics: Sequence[MetricJudgement], n: int, most: int, failing: bool, level_pass: float, needed: int | None
) -> tuple[Outcome, str]:
    named = [each for each in metrics if each.regressed]
    if named:
        return "FAIL", f"regressed over {n} blocks: {describe(named)}"
    last: Outcome = "CONTINUE" if n < most else "INCONCLUSIVE"
    if failing:
        return last, f"an earlier look showed a regression that {n} blocks together do not show"
    open_ = [each for each in metrics if not each.q <= level_pass]
    if not open_:
        return "PASS", f"a regression beyond the limits is ruled out after {n} blocks"
    if n < most and needed is not None and all(each.p > _STOP_P for each in metrics):
        return "INCONCLUSIVE", f"too noisy: needs about {needed} blocks, {most} are allowed"
    names = ", ".join(f"{each.metric} (up to {ratio(each.upper)})" for each in open_)
    text = f"neither a regression nor its absence is shown after {n} of {most} blocks: {names}"
    if n == most and needed is not None:
        text += f"; needs about {needed} blocks"
    return last, text


def _named(gated: Gated, now: Look, p_seq: Matrix, alpha: float) -> tuple[str, ...]:
    """Metrics that Hommel's procedure names, or failing that any with p_seq <= alpha, if they are still worse."""
    chosen = [adjusted <= alpha for adjusted in hommel(p_seq.tolist())]
    if not any(chosen):
        chosen = [p <= alpha for p in p_seq.tolist()]
    worse = (now.estimate >= gated.least).tolist()
    return tuple(name for name, named, still in zip(gated.names, chosen, worse, strict=True) if named and still)


def _blocks_needed(gated: Gated, now: Look, n: int, most: int) -> int | None:
    """ceil(n (2.5 se / L)^2) of the noisiest primary metric, if even ``most`` blocks would leave 2.5 se above L."""
    reach = _REACH * now.se / gated.limit
    hopeless = gated.primary & (reach * math.sqrt(n / most) > 1)
    if n < _STOP_FROM or not hopeless.any():
        return None
    return math.ceil(n * float(reach[hopeless].max()) ** 2)


def _noisier(kappa: float) -> tuple[str, ...]:
    if kappa <= MUCH_NOISIER:
        return ()
    return (f"this job is {math.sqrt(kappa):.1f} times as noisy as expected, which p-values are doubled for",)


def _paired(
    baseline: Sequence[LaunchValues], candidate: Sequence[LaunchValues], most: int
) -> tuple[list[LaunchValues], list[LaunchValues]]:
    arms = [{launch.block: launch for launch in arm} for arm in (baseline, candidate)]
    for name, arm, by_block in (("baseline", baseline, arms[0]), ("candidate", candidate, arms[1])):
        if len(by_block) < len(arm):
            twice = next(launch.block for launch in arm if by_block[launch.block] is not launch)
            raise ValueError(f"two launches of the {name} are in block {twice}; a block holds one of each arm")
    alone = sorted(arms[0].keys() ^ arms[1].keys())
    if alone:
        raise ValueError(f"block{'s'[: len(alone) > 1]} {', '.join(map(str, alone))} has only one of the two arms")
    if len(arms[0]) > most:
        raise ValueError(f"{len(arms[0])} blocks, but max_blocks = {most} was fixed before the first")
    blocks = sorted(arms[0])
    base, cand = ([arm[block] for block in blocks] for arm in arms)
    orders = [launch.order for launch in (*base, *cand)]
    if len(set(orders)) < len(orders):
        raise ValueError(f"two launches have the same order: {sorted(orders)}")
    return base, cand
