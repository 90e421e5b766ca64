"""How a user's code sees the public names; checked by mypy, never run."""

from __future__ import annotations

from pytest_llmperf import Identity, LlmperfError, Plan, Result, RunReport, Trial


def use(result: Result, report: RunReport, trial: Trial) -> float:
    identity: Identity = result.identity
    plan: Plan = report.tests[0].plan
    error: type[Exception] = LlmperfError
    print(identity, plan, error)
    return result.value("ttft_p95") + trial.window.seconds
