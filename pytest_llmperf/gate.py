"""Limits, expectations and measured values in, verdict out. Pure: the same evidence gives the same verdict.

Precedence: INVALID > CONFOUNDED > FAIL > INCONCLUSIVE > NO_BASELINE > PASS. "Not measured" is INVALID, never PASS.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pytest_llmperf.checks import check_errors, check_expectation, check_sla, invalid_check
from pytest_llmperf.plan import Expectation, Sla
from pytest_llmperf.stats.value import MetricValue
from pytest_llmperf.verdict import PRECEDENCE, Check, Verdict, VerdictName, strongest

__all__ = ["PRECEDENCE", "Check", "Verdict", "VerdictName", "judge", "strongest"]


def judge(
    slas: Sequence[Sla],
    measured: Mapping[str, MetricValue],
    *,
    invalid: Sequence[str],
    ok: int,
    failed: int,
    expects: Sequence[Expectation] = (),
) -> Verdict:
    """Judge every limit, the error rate, the validity of what was measured, and whether it is what was expected.

    ``invalid`` are the reasons why the trials cannot be trusted; ``ok`` and ``failed`` count measured
    requests, those that we cut excluded. An SLA on ``error_rate`` replaces the default limit of 1 %.
    """
    reasons = list(invalid)
    if ok + failed == 0 and not reasons:
        reasons.append("no request was measured")
    checks = [invalid_check(reason) for reason in reasons]
    checks += [check_expectation(each, measured.get(each.metric)) for each in expects]
    checks += [check_sla(sla, measured.get(sla.metric)) for sla in slas]
    if failed and all(sla.metric != "error_rate" for sla in slas):
        checks.append(check_errors(ok, failed))
    return Verdict(strongest([check.verdict for check in checks]), tuple(checks))
