"""What trials come to: the metrics of a test over all its launches, and the values of one launch for the gate."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from pytest_llmperf.metrics import MEASURED, counts, measure
from pytest_llmperf.metrics.gpu import cost_value
from pytest_llmperf.metrics.request import known_tokens
from pytest_llmperf.metrics.start import START_METRICS, start_values, unseen_start
from pytest_llmperf.plan import Plan, ServerSpec
from pytest_llmperf.records import Phase, Trial
from pytest_llmperf.samples import StartUp
from pytest_llmperf.stats.launches import LaunchValues
from pytest_llmperf.stats.quantile import quantile
from pytest_llmperf.stats.value import MetricValue

__all__ = ["launch_values", "metrics_of"]


def metrics_of(
    plan: Plan,
    trials: Sequence[Trial],
    starts: Sequence[StartUp],
    usd_per_hour: float | None = None,
    *,
    gpu: str = "",
    cache: str = "",
) -> dict[str, MetricValue]:
    """Everything measured, and every metric that the plan limits. ``starts``: of each launch, cold ones included; none
    where it is about loads alone. ``usd_per_hour``: price of the server's GPUs, of which one is called ``gpu``;
    ``cache``: folder of its compile caches."""
    wanted = dict.fromkeys(name for name in (*MEASURED, *plan.named) if name not in START_METRICS)
    found = measure(trials, plan.slo.limits if plan.slo else None, wanted)
    found |= _launches_apart(plan, trials, found)
    if usd_per_hour is not None or "cost_per_mtok" in wanted:
        found["cost_per_mtok"] = cost_value(found["output_throughput"], usd_per_hour, gpu)
    found |= start_values(starts)
    for name in plan.named if starts else ():
        if name in START_METRICS and name not in found:
            found[name] = unseen_start(name, starts, memory=_place(plan.server), cache=cache)
    return found


def _place(spec: ServerSpec) -> str:
    if spec.launched_by == "container":
        return "they are in a container"
    return "they are not known to be of this machine" if spec.elsewhere else "its GPUs could not be sampled"


def launch_values(
    plan: Plan, trials: Sequence[Trial], start: StartUp, *, order: int, block: int, session: str
) -> LaunchValues:
    """All replays of one launch as the gate takes them: one value per metric, infinite where a quantile lies among
    failed requests; what is invalid, not measured or known by its bucket alone is absent."""
    measured = metrics_of(plan, trials, [start])
    found = [counts(trial) for trial in trials]
    values = {name: _gate_value(each) for name, each in measured.items()}
    if not _one_token_chunks(trials):
        values.pop("icl_p50", None)  # means the same in both arms only where each chunk holds one token
    tokens = [known_tokens(r) for trial in trials for r in trial.records if r.phase is Phase.MEASURED and not r.failed]
    known = [count for count in tokens if count is not None]
    return LaunchValues(
        metrics={name: value for name, value in values.items() if value is not None},
        order=order,
        block=block,
        session=session,
        n_requests=sum(each.ok + each.failed for each in found),
        n_failed=sum(each.failed for each in found),
        n_tokens=sum(known) if len(known) == len(tokens) else None,
        sources={name: each.source for name, each in measured.items() if each.source and values.get(name) is not None},
    )


def _one_token_chunks(trials: Sequence[Trial]) -> bool:
    """Whether every chunk of (nearly) every request held one token."""
    measured = [r for trial in trials for r in trial.records if r.phase is Phase.MEASURED and not r.failed]
    chunks, tokens = sum(len(r.chunk_ns) for r in measured), [known_tokens(r) for r in measured]
    return None not in tokens and abs(chunks - sum(each or 0 for each in tokens)) <= 0.005 * chunks


def _gate_value(found: MetricValue) -> float | None:
    if found.lower is not None:
        return None  # which bucket it lies in is no number
    if found.value is None and found.values and found.metric.quantile is not None:
        value = quantile(found.values, found.metric.quantile)
        return value if math.isinf(value) else None
    return found.value


def _launches_apart(
    plan: Plan, trials: Sequence[Trial], found: dict[str, MetricValue]
) -> Iterator[tuple[str, MetricValue]]:
    """The values of each launch apart, for the limits that every launch has to show on its own."""
    launches = dict.fromkeys(trial.launch for trial in trials)
    strict = dict.fromkeys(sla.metric for sla in plan.slas if sla.confidence is not None)
    if len(launches) < 2 or not strict:
        return
    apart = [measure([trial for trial in trials if trial.launch == launch], None, strict) for launch in launches]
    for name in strict:
        if found[name].values is not None:
            yield name, replace(found[name], by_launch=tuple(one[name].values or () for one in apart))
