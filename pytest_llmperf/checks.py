"""One check each: a limit, the error rate, an expectation, a reason against the trials.

A quantile that lies among failed requests is infinite and misses every ceiling.

A percentile limit with a required confidence is asked of every launch on its own, since requests of one launch share
more than those of two: it is met (missed) where most launches show that and none shows the opposite. For any number
of launches that errs no more often than one launch would.
"""

from __future__ import annotations

import math
import operator
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final, Literal

from pytest_llmperf.catalog import metric
from pytest_llmperf.plan import Expectation, Operator, Sla
from pytest_llmperf.stats.binomial import confidence_met, confidence_missed, decide, needed_n
from pytest_llmperf.stats.quantile import quantile
from pytest_llmperf.stats.value import MetricValue
from pytest_llmperf.units import format_bounds, format_quantity
from pytest_llmperf.verdict import Check, VerdictName

__all__ = ["check_errors", "check_expectation", "check_sla", "invalid_check"]

ALLOWED_ERROR_RATE: Final = 0.01
MOST_UNTOLD: Final = 0.05
LOWER_BOUNDS: Final = ("output_throughput", "total_throughput", "goodput")
Shown = Literal["met", "missed", "undecided"]
_COMPARE: Final[dict[Operator, Callable[[float, float], bool]]] = {
    ">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le, "==": operator.eq, "!=": operator.ne,
}  # fmt: skip
_SHOWN: Final[dict[Shown, VerdictName]] = {"met": "PASS", "missed": "FAIL", "undecided": "INCONCLUSIVE"}


def check_sla(sla: Sla, found: MetricValue | None) -> Check:
    if found is not None and found.invalid is not None:
        return _check(sla, "INVALID", None, found.n, f"invalid: {found.invalid}")
    if found is None or (found.value is None and not found.values):
        why = (found.note if found else None) or "nothing in this run measures it"
        return _check(sla, "INVALID", None, found.n if found else 0, f"not measured: {why}")
    if _untold(sla, found):
        known = f"known for {100 * (1 - found.untold):.3g} % of the requests only"
        return _check(sla, "INVALID", found.value, found.n, f"{known}: {found.note}")
    if found.lower is not None:
        return _bucketed(sla, found, found.lower)
    q = metric(sla.metric).quantile
    if q is None or found.values is None:
        return _scalar(sla, found)
    return _percentile(sla, found, q, found.values)


def check_expectation(expected: Expectation, found: MetricValue | None) -> Check:
    """INVALID where what was expected did not happen, or cannot be told: the test then says nothing on its matter."""
    value = found.value if found is not None else None
    if found is not None and value is None and found.values and found.metric.quantile is not None:
        value = quantile(found.values, found.metric.quantile)
    told = f"expects {expected.written}"
    if found is not None and found.invalid is not None:
        value, reason = None, f"{told}, and {expected.metric} is invalid: {found.invalid}"
    elif found is None or value is None:
        why = (found.note if found else None) or "nothing in this run measures it"
        reason = f"{told}, and {expected.metric} is not measured: {why}"
    elif found.untold > MOST_UNTOLD:
        known = f"known for {100 * (1 - found.untold):.3g} % of the requests only"
        value, reason = None, f"{told}, and {expected.metric} is {known}: {found.note}"
    elif found.lower is not None:
        lies = format_bounds(found.lower, found.upper, found.unit)
        reason = f"{told}, and {expected.metric} is {lies} by the engine's buckets"
    else:
        reason = f"{told}, and it is {format_quantity(value, found.unit)}"
    met = value is not None and _is_met(expected, value, found)
    if value is not None and not met:
        reason = f"did not exercise what it is meant to: {reason}"
    entry = metric(expected.metric)
    return Check(
        kind="expects",
        metric=expected.metric,
        verdict="PASS" if met else "INVALID",
        value=None if value is None or math.isinf(value) else value,
        limit=expected.limit,
        unit=entry.unit,
        better=entry.better,
        n=found.n if found is not None else 0,
        reason=reason,
        written=expected.written,
    )


def _is_met(expected: Expectation, value: float, found: MetricValue | None) -> bool:
    """Of what is known by its bucket alone: whether it is met for sure."""
    if found is None or found.lower is None:
        return _COMPARE[expected.operator](value, expected.limit)
    within = found.within(expected.limit)
    below = within is True and not math.isclose(found.upper or math.inf, expected.limit, rel_tol=1e-9)
    sure: dict[Operator, bool] = {"<=": within is True, "<": below, "!=": below or within is False}
    return sure.get(expected.operator, within is False and expected.operator != "==")


def _untold(sla: Sla, found: MetricValue) -> bool:
    """Whether what is not known of a metric may turn its verdict.

    A rate of which a part is not known is a lower bound: it may acquit, and convicts only where the rest at the same
    rate would not save it. Of anything else more than a twentieth may not be missing.
    """
    if sla.metric in LOWER_BOUNDS and found.value is not None:
        missed = found.value < sla.limit
        return missed and found.untold > 0 and found.value >= sla.limit * (1 - found.untold)
    return found.untold > MOST_UNTOLD


def _scalar(sla: Sla, found: MetricValue) -> Check:
    value = found.value
    assert value is not None
    held = value <= sla.limit if sla.ceiling else value >= sla.limit
    note = f" ({found.note})" if found.note else ""
    reason = f"{_show(value, sla)} {_relation(sla, held)} {_limit(sla)}{note}"
    return _check(sla, "PASS" if held else "FAIL", value, found.n, reason)


def _bucketed(sla: Sla, found: MetricValue, lower: float) -> Check:
    """A ceiling against what is known by its bucket alone."""
    lies, held = f"{sla.metric} is {format_bounds(lower, found.upper, found.unit)}", found.within(sla.limit)
    verdict: VerdictName
    if held is None:
        ends = " or ".join(format_quantity(end, found.unit) for end in (lower, found.upper) if end)
        verdict = "INCONCLUSIVE"
        reason = f"{lies}, and {_limit(sla)} lies inside that bucket of the engine's: a limit at {ends}, or one on "
        reason += f"{found.metric.family.name}_mean, would decide"
    else:
        verdict, beyond = ("PASS", "within") if held else ("FAIL", "beyond")
        reason = f"{lies}, {beyond} {_limit(sla)} ({found.note})"
    return replace(_check(sla, verdict, found.value, found.n, reason), lower=lower, upper=found.upper)


def _percentile(sla: Sla, found: MetricValue, q: float, values: Sequence[float]) -> Check:
    n = len(values)
    value = quantile(values, q)
    held = value <= sla.limit if sla.ceiling else value >= sla.limit
    beyond = _beyond(sla, values)
    allowed = 1 - q if sla.ceiling else q
    text = f"{_show(value, sla)} {_relation(sla, held)} {_limit(sla)}; {beyond} of {n} {_of(sla)} beyond"
    needed: int | None = None
    launches = found.by_launch or (values,)
    shown_by: int | None = None
    verdict: VerdictName
    if sla.confidence is None:
        verdict = "PASS" if held else "FAIL"
        sure = (confidence_met if held else confidence_missed)(n, beyond, allowed)
        text += f", confidence {_percent(sure)}"
    else:
        votes = [_vote(sla, each, allowed, sla.confidence) for each in launches]
        shown = _together(votes)
        verdict, shown_by = _SHOWN[shown], votes.count("missed" if shown == "missed" else "met")
        below = beyond / n <= allowed if shown == "undecided" else shown == "met"
        agreeing = [each for each, vote in zip(launches, votes, strict=True) if vote == shown and each]
        sure = min(
            (confidence_met if below else confidence_missed)(len(each), _beyond(sla, each), allowed)
            for each in agreeing or (values,)
        )
        required = _percent(sla.confidence)
        if shown == "undecided":
            needed = needed_n(n, beyond, allowed, sla.confidence)
            text = f"not decidable with n={n}: {beyond} beyond; "
            if len(launches) > 1:
                text += f"{shown_by} of {len(launches)} launches show it met, {votes.count('missed')} missed; "
            text += f"{_remedy(needed, len(launches))} at confidence {required}"
        else:
            text += f", shown {shown} with confidence {_percent(sure)} ({required} required)"
            text += f" by {shown_by} of {len(launches)} launch{'es' if len(launches) > 1 else ''}"
    if found.excluded:
        text += f"; {found.excluded} requests without a value left out"
    return _check(
        sla,
        verdict,
        None if math.isinf(value) else value,
        n,
        text,
        beyond=beyond,
        confidence=sure,
        needed_n=needed,
        launches=len(launches) if shown_by is not None else None,
        launches_shown=shown_by,
    )


def _beyond(sla: Sla, values: Sequence[float]) -> int:
    """How many of ascending ``values`` lie on the wrong side of the limit."""
    return len(values) - bisect_right(values, sla.limit) if sla.ceiling else bisect_left(values, sla.limit)


def _vote(sla: Sla, values: Sequence[float], allowed: float, confidence: float) -> Shown:
    """What one launch shows; one that measured nothing shows nothing."""
    return decide(len(values), _beyond(sla, values), allowed, confidence) if values else "undecided"


def _together(votes: Sequence[Shown]) -> Shown:
    met, missed = votes.count("met"), votes.count("missed")
    if 2 * met > len(votes) and not missed:
        return "met"
    return "missed" if 2 * missed > len(votes) and not met else "undecided"


def _check(
    sla: Sla,
    verdict: VerdictName,
    value: float | None,
    n: int,
    reason: str,
    *,
    beyond: int | None = None,
    confidence: float | None = None,
    needed_n: int | None = None,
    launches: int | None = None,
    launches_shown: int | None = None,
) -> Check:
    entry = metric(sla.metric)
    return Check(
        kind="sla",
        metric=sla.metric,
        verdict=verdict,
        value=value,
        limit=sla.limit,
        unit=entry.unit,
        better=entry.better,
        n=n,
        reason=reason,
        beyond=beyond,
        confidence=confidence,
        required_confidence=sla.confidence,
        needed_n=needed_n,
        launches=launches,
        launches_shown=launches_shown,
        written=sla.written,
    )


def check_errors(ok: int, failed: int) -> Check:
    sent = ok + failed
    rate = failed / sent
    too_many = rate > ALLOWED_ERROR_RATE
    relation = f"{format_quantity(rate, 'ratio')}: {'above' if too_many else 'within'}"
    return Check(
        kind="errors",
        metric="error_rate",
        verdict="FAIL" if too_many else "PASS",
        value=rate,
        limit=ALLOWED_ERROR_RATE,
        unit="ratio",
        better="lower",
        n=sent,
        reason=f"{failed} of {sent} requests failed, {relation} the allowed 1 %",
        beyond=failed,
    )


def invalid_check(reason: str) -> Check:
    return Check("validity", "validity", "INVALID", None, None, "", "lower", 0, reason)


def _show(value: float, sla: Sla) -> str:
    if math.isinf(value):
        return f"{sla.metric} has no finite value (it lies among the failed requests) and"
    return f"{sla.metric} {format_quantity(value, metric(sla.metric).unit)}"


def _limit(sla: Sla) -> str:
    return sla.written or format_quantity(sla.limit, metric(sla.metric).unit)


def _relation(sla: Sla, held: bool) -> str:
    if sla.ceiling:
        return "is within" if held else "exceeds"
    return "reaches" if held else "is below"


def _remedy(needed: int | None, launches: int) -> str:
    if needed is None:
        return "the observed share is the allowed one, no number of requests would decide"
    return f"about {needed:,} requests{' per launch' if launches > 1 else ''} would decide"


def _of(sla: Sla) -> str:
    """What is counted; gaps and tokens are less independent of each other than requests."""
    return {"icl": "chunk gaps", "itl": "tokens"}.get(metric(sla.metric).family.name, "requests")


def _percent(share: float) -> str:
    """Whole percents, more digits only where they would round to 100 %."""
    for digits in (0, 1, 2, 3):
        text = f"{100 * share:.{digits}f}"
        if float(text) < 100:
            return f"{text} %"
    return "> 99.999 %"
