"""From numbers per metric to what is said of them: shared by all modes of the gate."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from pytest_llmperf.stats.arms import Gated, Matrix, faulty, in_base_units
from pytest_llmperf.stats.launches import Judgement, LaunchValues, MetricJudgement
from pytest_llmperf.stats.moderate import beyond

__all__ = ["describe", "error_verdict", "judgements", "nothing_gated", "ratio", "warnings", "worse_than_limit"]

_ERRORS_IN: Final = 2


def worse_than_limit(estimate: Matrix, se: Matrix, nu: Matrix, gated: Gated) -> Matrix:
    """q = P(T_nu > (L' - estimate) / se); 1 where the estimate is not known or infinite."""
    with np.errstate(invalid="ignore"):
        q = beyond((gated.wide - estimate) / se, nu)
    return np.where(np.isfinite(estimate), q, 1.0)


def judgements(
    gated: Gated,
    baseline: Matrix,
    candidate: Matrix,
    *,
    estimate: Matrix,
    se: Matrix,
    nu: Matrix,
    p: Matrix,
    p_seq: Matrix,
    q: Matrix,
    below: Matrix,
    above: Matrix,
    regressed: Sequence[str],
) -> tuple[MetricJudgement, ...]:
    """``baseline`` and ``candidate`` are oriented means; ``below`` and ``above`` the quantiles of the bounds."""
    lower, upper = estimate - below * se, estimate + above * se
    columns = [
        each.tolist()
        for each in (baseline, candidate, estimate, se, nu, p, p_seq, q, lower, upper, gated.least, gated.wide)
    ]
    return tuple(
        MetricJudgement(
            metric=name,
            primary=bool(gated.primary[i]),
            baseline=in_base_units(name, row[0]),
            candidate=in_base_units(name, row[1]),
            estimate=row[2],
            se=row[3],
            nu=row[4],
            p=row[5],
            p_seq=row[6],
            q=row[7],
            lower=row[8],
            upper=row[9],
            floor=row[10],
            limit=row[11],
            widened=bool(gated.wide[i] > gated.limit[i]),
            regressed=name in regressed,
        )
        for i, (name, *row) in enumerate(zip(gated.names, *columns, strict=True))
    )


def nothing_gated(gated: Gated, blocks: int) -> Judgement:
    """No metric is left to judge: final, since more launches would not change it."""
    why = "; ".join(f"{name} {reason}" for name, reason in gated.not_gated.items()) or "no gated metric was measured"
    return Judgement("INCONCLUSIVE", f"nothing to judge: {why}", blocks=blocks, not_gated=gated.not_gated)


def error_verdict(
    baseline: Sequence[LaunchValues], candidate: Sequence[LaunchValues], blocks: int, *, more: bool
) -> Judgement | None:
    """What failed requests alone decide; None where each launch has at most 1 % of them.

    FAIL ``errors`` for two candidate launches beside a clean baseline. A baseline with errors is INCONCLUSIVE here
    and INVALID to the caller, as is a single candidate launch once its block was run again; ``more``: it can be.
    """
    if bad := faulty(baseline):
        return Judgement(
            "INCONCLUSIVE",
            f"invalid: more than 1 % of the requests failed in the baseline's {_launches(bad)}",
            blocks=blocks,
        )
    bad = faulty(candidate)
    if len(bad) >= _ERRORS_IN:
        reason = f"more than 1 % of the requests failed in the candidate's {_launches(bad)}, and none in the baseline's"
        return Judgement("FAIL", reason, regressed=("errors",), p_global=0.0, blocks=blocks)
    if bad:
        reason = f"more than 1 % of the requests failed in the candidate's {_launches(bad)}; run it again"
        return Judgement("CONTINUE" if more else "INCONCLUSIVE", reason, blocks=blocks)
    return None


def describe(metrics: Sequence[MetricJudgement]) -> str:
    """``ttft_p50 5 % worse (at least 1.2 %, 2.5 % allowed), ...``."""
    return ", ".join(f"{each.metric} {_worse(each)}" for each in metrics)


def warnings(gated: Gated, *arms: Matrix) -> tuple[str, ...]:
    """Widened limits, and metrics that some launch of ``arms`` lacks."""
    lacking = np.isnan(np.concatenate(arms).sum(axis=0)).tolist()
    return (
        *(
            f"{name}: this runner's noise widens the limit from {ratio(limit)} to {ratio(wide)}"
            for name, limit, wide in zip(gated.names, gated.limit.tolist(), gated.wide.tolist(), strict=True)
            if wide > limit
        ),
        *(
            f"{name}: not measured in some launch, so it cannot pass"
            for name, absent in zip(gated.names, lacking, strict=True)
            if absent
        ),
    )


def ratio(x: float) -> str:
    """A difference of logs for a person: ``5 %``, ``0.23 %``, ``130 %``."""
    percent = 100 * math.expm1(min(x, 700.0))
    return f"{percent:.2g} %" if abs(percent) < 10 else f"{percent:.0f} %"


def _worse(each: MetricJudgement) -> str:
    if math.isinf(each.estimate):
        return "has no finite value"
    return f"{ratio(each.estimate)} worse (at least {ratio(each.lower)}, {ratio(each.floor)} allowed)"


def _launches(blocks: Sequence[int]) -> str:
    many = len(blocks) > 1
    return f"{'launches of blocks' if many else 'launch of block'} {', '.join(map(str, blocks))}"
