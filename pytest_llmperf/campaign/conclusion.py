"""From a judgement to what is stored and shown of it. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from pytest_llmperf.catalog import metric
from pytest_llmperf.checks import invalid_check
from pytest_llmperf.comparisons import ComparisonReport, DifferenceReport, JudgementReport
from pytest_llmperf.gate import Verdict, VerdictName
from pytest_llmperf.stats.launches import Judgement, LaunchValues, MetricJudgement

__all__ = ["Comparison", "comparison_rows", "judgement_report", "standing", "unmeasured"]


@dataclass(frozen=True, slots=True)
class Comparison:
    """What a test was compared with, and what came of it."""

    mode: Literal["stored", "interleaved", "targeted"]
    against: str
    """The partner, and why this one."""
    judgement: Judgement | None = None
    """None where it did not come to that; then one of ``missing``, ``invalid`` or the differences says why."""
    missing: str | None = None
    """Why there is no partner."""
    invalid: str | None = None
    """Why the launches cannot be judged."""
    variable: str | None = None
    differences: tuple[DifferenceReport, ...] = ()
    asked: tuple[str, ...] = ()
    """Metrics that the test names: without a judgement of each there is no PASS."""
    max_blocks: int = 0
    sequence: int = 1
    detects: Mapping[str, float] = field(default_factory=dict)
    remedy: str | None = None
    notes: tuple[str, ...] = ()

    @property
    def verdict(self) -> VerdictName:
        """By precedence; what was not compared is never PASS."""
        roles = {each.role for each in self.differences}
        if self.invalid is not None:
            return "INVALID"
        if "confounding" in roles:
            return "CONFOUNDED"
        if self.missing is not None:
            return "NO_BASELINE"
        if self.judgement is None or self.judgement.result == "CONTINUE" or "escalating" in roles:
            return "INCONCLUSIVE"
        return "INCONCLUSIVE" if self.judgement.result == "PASS" and self._unjudged else self.judgement.result

    @property
    def _unjudged(self) -> dict[str, str]:
        """Metrics that were asked for and not judged, with the reason."""
        return (
            {}
            if self.judgement is None
            else {name: why for name, why in self.judgement.not_gated.items() if name in self.asked}
        )

    @property
    def reason(self) -> str:
        """One sentence for a person."""
        if self.invalid is not None:
            return self.invalid
        for role, text in (
            ("confounding", "differs in more than the one variable"),
            ("escalating", "ran elsewhere: only launches side by side can tell the change from the machine"),
        ):
            found = [f"{d.name} ({d.baseline} → {d.candidate})" for d in self.differences if d.role == role]
            if found and not (role == "escalating" and self.missing is not None):
                return f"the baseline {text}: {', '.join(found)}"
        if self.missing is not None:
            return self.missing
        if self.judgement is None:
            return "the comparison did not come to an end"
        if self.judgement.result == "PASS" and self._unjudged:
            told = ", ".join(f"{name} ({why})" for name, why in self._unjudged.items())
            return f"asked for and not judged: {told}"
        return self.judgement.reason


def unmeasured(comparison: Comparison) -> Verdict:
    """Where no load was worth its time; the comparison says why. One that passed by the launches of an earlier job
    alone is no PASS: nobody has looked at the limits."""
    if comparison.verdict == "PASS":
        return Verdict("INVALID", (invalid_check("no load ran in this job, so its limits are not judged"),))
    return Verdict(comparison.verdict, ())


def judgement_report(comparison: Comparison) -> JudgementReport:
    judged = comparison.judgement or Judgement("INCONCLUSIVE", "")
    return JudgementReport(
        mode=comparison.mode,
        verdict=comparison.verdict,
        reason=comparison.reason,
        against=comparison.against,
        variable=comparison.variable,
        differences=comparison.differences,
        blocks=judged.blocks,
        blocks_used=judged.blocks_used,
        blocks_pruned=judged.blocks_pruned,
        max_blocks=comparison.max_blocks,
        blocks_needed=judged.blocks_needed,
        kappa=judged.kappa,
        p_global=judged.p_global,
        detects=dict(comparison.detects),
        sequence=comparison.sequence,
        remedy=comparison.remedy,
        notes=(*comparison.notes, *judged.warnings),
    )


def comparison_rows(
    comparison: Comparison, baseline: Sequence[LaunchValues], candidate: Sequence[LaunchValues]
) -> tuple[ComparisonReport, ...]:
    """One row per judged metric, then those that were asked for and not judged, with the reason."""
    judged = comparison.judgement
    if judged is None:
        return ()
    sizes = len(baseline), len(candidate)
    rows = [_row(each, comparison, sizes) for each in judged.metrics]
    for name, why in judged.not_gated.items():
        entry = metric(name)
        before, after = _mean(baseline, name), _mean(candidate, name)
        rows.append(
            ComparisonReport(
                metric=name,
                unit=entry.unit,
                better=entry.better,
                verdict="NOT_RUN",
                baseline=before,
                candidate=after,
                change=after / before - 1 if before and after is not None else None,
                baseline_launches=sizes[0],
                candidate_launches=sizes[1],
                reason=f"not judged: {why}",
            )
        )
    return tuple(rows)


def _row(judged: MetricJudgement, comparison: Comparison, sizes: tuple[int, int]) -> ComparisonReport:
    entry = metric(judged.metric)
    # The estimate is positive where worse; the change shown is that of the value itself.
    bounds = [(judged.estimate, judged.lower, judged.upper), (-judged.estimate, -judged.upper, -judged.lower)]
    change, low, high = (_ratio(value) for value in bounds[entry.better == "higher"])
    return ComparisonReport(
        metric=judged.metric,
        unit=entry.unit,
        better=entry.better,
        verdict=_metric_verdict(judged, comparison),
        baseline=_finite(judged.baseline),
        candidate=_finite(judged.candidate),
        change=change,
        change_low=low,
        change_high=high,
        allowed=_allowed(judged),
        ruled_out=math.expm1(judged.limit),
        widened=judged.widened,
        p=judged.p,
        p_seq=judged.p_seq,
        q=judged.q,
        baseline_launches=sizes[0],
        candidate_launches=sizes[1],
        reason=_sentence(judged),
    )


def _allowed(judged: MetricJudgement) -> float:
    """The tolerance as it was written: a plain one, T, has the limit log(1 + 2T) and half of it as its floor."""
    plain = judged.widened or math.isclose(judged.limit, 2 * judged.floor, rel_tol=1e-9)
    return math.expm1(2 * judged.floor) / 2 if plain else math.expm1(judged.floor)


def _metric_verdict(judged: MetricJudgement, comparison: Comparison) -> VerdictName:
    if comparison.verdict in ("CONFOUNDED", "INVALID", "NO_BASELINE"):
        return comparison.verdict
    if judged.regressed:
        return "FAIL" if comparison.verdict == "FAIL" else "INCONCLUSIVE"
    return "PASS" if judged.upper < judged.limit else "INCONCLUSIVE"


def _sentence(judged: MetricJudgement) -> str:
    limit = f"{100 * math.expm1(judged.limit):.3g} %"
    if judged.regressed:
        return f"shown worse (p {judged.p_seq:.2g}), by more than the {100 * _allowed(judged):.3g} % allowed"
    if judged.upper < judged.limit:
        return f"shown no worse: a change beyond {limit} is ruled out"
    if not (math.isfinite(judged.baseline) and math.isfinite(judged.candidate)):
        return "not decided: some launch has no value of it"
    if not judged.upper < math.inf:
        return "not decided: no bound of its change is known"
    return f"not decided: a change up to {100 * math.expm1(min(judged.upper, 5)):.3g} % is not ruled out"


def _ratio(log_change: float) -> float | None:
    """None where the bound is infinite: there is no telling."""
    return math.expm1(log_change) if math.isfinite(log_change) and log_change < 50 else None


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _mean(launches: Sequence[LaunchValues], name: str) -> float | None:
    """Geometric mean of the launches that have a positive value."""
    values = [launch.metrics[name] for launch in launches if name in launch.metrics]
    if not values or not all(0 < value < math.inf for value in values):
        return None
    return math.exp(math.fsum(map(math.log, values)) / len(values))


def standing(nodeid: str, judged: Judgement | None, most: int) -> str:
    """Blocks done, current effect, blocks likely left."""
    if judged is None:
        return ""
    worst = max(judged.metrics, key=lambda each: each.estimate / each.limit, default=None)
    effect = "" if worst is None else f", {worst.metric} {100 * worst.estimate:+.1f} % worse"
    left = f", {most - judged.blocks} at most left" if judged.result == "CONTINUE" else ""
    return f"{nodeid.rpartition('::')[2]}: {judged.blocks} blocks{effect}{left}"
