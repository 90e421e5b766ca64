"""Launches for tests of the gate, from lists of values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pytest_llmperf.stats.launches import Judgement, LaunchValues, MetricJudgement

ALIASES = {"throughput": "output_throughput", "peak_mem": "peak_memory", "itl_p99": "icl_p99"}
"""Short names of the worked examples."""


def arm(
    values: Mapping[str, Sequence[float]],
    orders: Sequence[int] | None = None,
    *,
    session: str = "today",
    n_requests: int = 2000,
    n_failed: Sequence[int] | int = 0,
) -> list[LaunchValues]:
    """One launch per place of the lists."""
    n = len(next(iter(values.values())))
    failed = [n_failed] * n if isinstance(n_failed, int) else n_failed
    return [
        LaunchValues(
            metrics={ALIASES.get(name, name): float(each[i]) for name, each in values.items()},
            order=orders[i] if orders is not None else i,
            block=i,
            session=session,
            n_requests=n_requests,
            n_failed=failed[i],
            n_tokens=400_000,
        )
        for i in range(n)
    ]


BASELINE_ORDERS = (0, 3, 4, 7, 8, 11, 12, 15)
CANDIDATE_ORDERS = (1, 2, 5, 6, 9, 10, 13, 14)


def arms(
    baseline: Mapping[str, Sequence[float]], candidate: Mapping[str, Sequence[float]], blocks: int | None = None
) -> tuple[list[LaunchValues], list[LaunchValues]]:
    """Both arms of a job in the order ABBA."""
    return arm(baseline, BASELINE_ORDERS)[:blocks], arm(candidate, CANDIDATE_ORDERS)[:blocks]


def about(judgement: Judgement, metric: str) -> MetricJudgement:
    return next(each for each in judgement.metrics if each.metric == ALIASES.get(metric, metric))
