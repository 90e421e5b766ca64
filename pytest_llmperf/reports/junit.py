"""What JUnit says of a test beside its outcome, as name and value."""

from __future__ import annotations

from pytest_llmperf.reports.compared import judged
from pytest_llmperf.result import TestReport

__all__ = ["properties"]


def properties(test: TestReport) -> list[tuple[str, object]]:
    """The figures that can be trusted, in base units, and what each metric's comparison came to (changes as ratios).

    Of a trial that is INVALID no figure is given, and none of a metric that a check calls INVALID.
    """
    found: list[tuple[str, object]] = []
    if all(trial.validity.valid for trial in test.counted):
        refused = {check.metric for check in test.slas if check.verdict == "INVALID"}
        found += [
            (f"llmperf_{name}", entry.value)
            for name, entry in test.metrics.items()
            if entry.value is not None and entry.invalid is None and name not in refused
        ]
    judgement = test.judgement
    if judgement is not None:
        found += [("llmperf_comparison", judgement.verdict), ("llmperf_against", judgement.against)]
        if judgement.variable is not None:
            found.append(("llmperf_variable", judgement.variable))
        if judgement.verdict != "PASS":
            found.append(("llmperf_comparison_reason", judgement.reason))
    for entry in judged(test.comparisons):
        found.append((f"llmperf_comparison_{entry.metric}", entry.verdict))
        if entry.verdict not in ("INVALID", "CONFOUNDED") and entry.change is not None:
            found.append((f"llmperf_change_{entry.metric}", entry.change))
    return found
