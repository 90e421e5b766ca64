"""How a user's code sees the public names; checked by mypy, never run."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_llmperf import (
    GateConfig,
    Identity,
    Judgement,
    LaunchValues,
    LlmperfError,
    Plan,
    Prior,
    Result,
    RunReport,
    Trial,
    judge_interleaved,
    judge_stored,
)


def use(result: Result, report: RunReport, trial: Trial) -> float:
    identity: Identity = result.identity
    plan: Plan = report.tests[0].plan
    error: type[Exception] = LlmperfError
    print(identity, plan, error)
    return result.value("ttft_p95") + trial.window.seconds


def judge(baseline: Sequence[LaunchValues], candidate: Sequence[LaunchValues]) -> list[str]:
    config = GateConfig(metrics=("ttft_p50", "tpot_mean"), max_blocks=6)
    side_by_side: Judgement = judge_interleaved(baseline, candidate, prior={"ttft_p50": (1e-4, 4.0)}, config=config)
    stored: Judgement = judge_stored(baseline, candidate, prior=Prior.from_history([baseline]))
    return [*side_by_side.regressed, stored.reason, *(f"{each.metric} {each.upper}" for each in stored.metrics)]
