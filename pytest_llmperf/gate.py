"""Limits and measured values in, verdict out. Pure: the same evidence gives the same verdict.

Precedence: INVALID > CONFOUNDED > FAIL > INCONCLUSIVE > NO_BASELINE > PASS. "Not measured" is INVALID, never
PASS; a quantile that lies among failed requests is infinite and misses every ceiling.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from pytest_llmperf.catalog import Better, metric
from pytest_llmperf.plan import Sla
from pytest_llmperf.stats.binomial import confidence_met, confidence_missed, decide, needed_n
from pytest_llmperf.stats.quantile import quantile
from pytest_llmperf.stats.value import MetricValue
from pytest_llmperf.units import format_quantity

__all__ = ["PRECEDENCE", "Check", "Verdict", "VerdictName", "judge", "strongest"]

VerdictName = Literal["INVALID", "CONFOUNDED", "FAIL", "INCONCLUSIVE", "NO_BASELINE", "PASS", "INFRA", "NOT_RUN"]
"""Strongest first (product order); INFRA and NOT_RUN are tests that gave no verdict on performance."""

PRECEDENCE: Final[tuple[VerdictName, ...]] = (
    "INVALID",
    "CONFOUNDED",
    "FAIL",
    "INCONCLUSIVE",
    "NO_BASELINE",
    "PASS",
)
ALLOWED_ERROR_RATE: Final = 0.01
_SHOWN: Final[dict[str, VerdictName]] = {"met": "PASS", "missed": "FAIL", "undecided": "INCONCLUSIVE"}


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was judged, with all that its sentence needs."""

    kind: Literal["sla", "errors", "validity"]
    metric: str
    verdict: VerdictName
    value: float | None
    limit: float | None
    unit: str
    better: Better
    n: int
    reason: str
    beyond: int | None = None
    """Percentile limits: values beyond the limit, failures included."""
    confidence: float | None = None
    """Percentile limits: how sure the data are of the statement made, by the exact binomial."""
    required_confidence: float | None = None
    needed_n: int | None = None
    written: str | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """The strongest of the checks; PASS where there are none."""

    name: VerdictName
    checks: tuple[Check, ...]


def judge(
    slas: Sequence[Sla],
    measured: Mapping[str, MetricValue],
    *,
    invalid: Sequence[str],
    ok: int,
    failed: int,
) -> Verdict:
    """Judge every limit, the error rate and the validity of what was measured.

    ``invalid`` are the reasons why the trials cannot be trusted; ``ok`` and ``failed`` count measured
    requests, those that we cut excluded. An SLA on ``error_rate`` replaces the default limit of 1 %.
    """
    reasons = list(invalid)
    if ok + failed == 0 and not reasons:
        reasons.append("no request was measured")
    checks = [_invalid(reason) for reason in reasons]
    checks += [_sla(sla, measured.get(sla.metric)) for sla in slas]
    if failed and all(sla.metric != "error_rate" for sla in slas):
        checks.append(_errors(ok, failed))
    return Verdict(strongest([check.verdict for check in checks]), tuple(checks))


def strongest(verdicts: Sequence[VerdictName]) -> VerdictName:
    """The first in the order of precedence; PASS for none."""
    return min(verdicts, key=PRECEDENCE.index, default="PASS")


def _sla(sla: Sla, found: MetricValue | None) -> Check:
    if found is None or (found.value is None and not found.values):
        why = (found.note if found else None) or "nothing in this run measures it"
        return _check(sla, "INVALID", None, found.n if found else 0, f"not measured: {why}")
    q = metric(sla.metric).quantile
    if q is None or found.values is None:
        return _scalar(sla, found)
    return _percentile(sla, found, q, found.values)


def _scalar(sla: Sla, found: MetricValue) -> Check:
    value = found.value
    assert value is not None
    held = value <= sla.limit if sla.ceiling else value >= sla.limit
    reason = f"{_show(value, sla)} {_relation(sla, held)} {_limit(sla)}"
    if found.note:
        reason += f" ({found.note})"
    return _check(sla, "PASS" if held else "FAIL", value, found.n, reason)


def _percentile(sla: Sla, found: MetricValue, q: float, values: Sequence[float]) -> Check:
    n = len(values)
    value = quantile(values, q)
    held = value <= sla.limit if sla.ceiling else value >= sla.limit
    beyond = sum(v > sla.limit for v in values) if sla.ceiling else sum(v < sla.limit for v in values)
    allowed = 1 - q if sla.ceiling else q
    text = f"{_show(value, sla)} {_relation(sla, held)} {_limit(sla)}; {beyond} of {n} {_of(sla)} beyond"
    needed: int | None = None
    verdict: VerdictName
    if sla.confidence is None:
        verdict = "PASS" if held else "FAIL"
        sure = (confidence_met if held else confidence_missed)(n, beyond, allowed)
        text += f", confidence {_percent(sure)}"
    else:
        shown = decide(n, beyond, allowed, sla.confidence)
        verdict = _SHOWN[shown]
        below = beyond / n <= allowed if shown == "undecided" else shown == "met"
        sure = (confidence_met if below else confidence_missed)(n, beyond, allowed)
        required = _percent(sla.confidence)
        if shown == "undecided":
            needed = needed_n(n, beyond, allowed, sla.confidence)
            text = f"not decidable with n={n}: {beyond} beyond; {_remedy(needed)} at confidence {required}"
        else:
            text += f", shown {shown} with confidence {_percent(sure)} ({required} required)"
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
    )


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
        written=sla.written,
    )


def _errors(ok: int, failed: int) -> Check:
    sent = ok + failed
    rate = failed / sent
    too_many = rate > ALLOWED_ERROR_RATE
    shown = format_quantity(rate, "ratio")
    relation = "above" if too_many else "within"
    return Check(
        kind="errors",
        metric="error_rate",
        verdict="FAIL" if too_many else "PASS",
        value=rate,
        limit=ALLOWED_ERROR_RATE,
        unit="ratio",
        better="lower",
        n=sent,
        reason=f"{failed} of {sent} requests failed, {shown}: {relation} the allowed 1 %",
        beyond=failed,
    )


def _invalid(reason: str) -> Check:
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


def _remedy(needed: int | None) -> str:
    if needed is None:
        return "the observed share is the allowed one, no number of requests would decide"
    return f"about {needed:,} requests would decide"


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
