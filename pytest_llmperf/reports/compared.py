"""A comparison in words: what changed, what was allowed, with what it was compared and how sure that is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from pytest_llmperf.comparisons import ComparisonReport, DifferenceReport, JudgementReport
from pytest_llmperf.gate import PRECEDENCE, VerdictName
from pytest_llmperf.reports.phrases import digits, fact_text
from pytest_llmperf.result import TestReport
from pytest_llmperf.units import format_quantity

__all__ = [
    "UNDECIDED",
    "change_text",
    "compared_line",
    "count_line",
    "detects",
    "differences",
    "effort",
    "judged",
    "limits_text",
    "not_judged",
    "partner",
    "percent",
    "sureness",
    "undecided",
    "value_texts",
]

UNDECIDED: Final = ("INCONCLUSIVE", "NO_BASELINE")
NOISY: Final = 2.0
"""Variance of the job over that of the runner's history from which on it is said."""
_DECIDED: Final = ("PASS", "FAIL", "INCONCLUSIVE")
_SAYINGS: Final[dict[str, str]] = {
    "confounding": "differs beyond the declared variable",
    "escalating": "only launches side by side can tell, since this differs from the stored baseline",
    "came_with": "came with it",
    "unverified": "not verified, unknown on both sides",
}


def judged(comparisons: Sequence[ComparisonReport]) -> list[ComparisonReport]:
    """The gated metrics, the strongest verdict first."""
    gated = [entry for entry in comparisons if entry.allowed is not None]
    order: list[VerdictName] = [*PRECEDENCE, "INFRA", "NOT_RUN"]
    return sorted(gated, key=lambda entry: order.index(entry.verdict))


def not_judged(comparisons: Sequence[ComparisonReport]) -> list[str]:
    """Metrics that are shown only, each with the reason."""
    return [
        entry.metric + (f" ({entry.reason})" if entry.reason else "") for entry in comparisons if entry.allowed is None
    ]


def value_texts(entry: ComparisonReport) -> tuple[str, str]:
    """Baseline and candidate; ∞ where the candidate failed for having no finite value."""
    infinite = entry.candidate is None and entry.verdict == "FAIL"
    return (
        format_quantity(entry.baseline, entry.unit),
        "∞" if infinite else format_quantity(entry.candidate, entry.unit),
    )


def change_text(entry: ComparisonReport) -> str:
    """E.g. ``+18.2 % (+15.1 … +21.4)``: the sign is that of the metric, not of better and worse."""
    if entry.change is None:
        return "n/a"
    bounds = ""
    if entry.change_low is not None or entry.change_high is not None:
        bounds = f" ({_signed(entry.change_low)} … {_signed(entry.change_high)})"
    return f"{_signed(entry.change)} %{bounds}"


def limits_text(entry: ComparisonReport) -> str:
    """What was allowed, and of a PASS what was ruled out."""
    text = f"allowed {percent(entry.allowed)}" if entry.allowed is not None else "not judged"
    if entry.ruled_out is not None:
        text += f", ruled out beyond {percent(entry.ruled_out)}"
        text += " (widened: this metric is noisy here)" if entry.widened else ""
    return text


def compared_line(entry: ComparisonReport) -> str:
    """The whole comparison of one metric in a line."""
    before, after = value_texts(entry)
    worse = ""
    if entry.change is not None and entry.verdict == "FAIL":
        worse = " worse" if (entry.change > 0) == (entry.better == "lower") else " better"
    reason = f": {entry.reason}" if entry.reason and entry.verdict != "PASS" else ""
    change = f", {change_text(entry)}{worse}" if entry.change is not None else ""
    return f"{entry.metric} {before} → {after}{change}, {limits_text(entry)}{reason}"


def partner(judgement: JudgementReport) -> str:
    """With what it was compared, and the one thing that was meant to differ."""
    if judgement.verdict == "NO_BASELINE":
        return f"against {judgement.against or 'nothing: none is stored'}"
    variable = f"variable {judgement.variable}" if judgement.variable else "nothing is meant to differ"
    return f"against {judgement.against} · {variable}"


def differences(judgement: JudgementReport, *roles: str) -> Iterator[str]:
    """One sentence for each of ``roles`` that has a difference, in the order given."""
    for role in roles:
        found = [each for each in judgement.differences if each.role == role]
        if found:
            yield f"{_SAYINGS[role]}: {(', ' if role == 'unverified' else '; ').join(map(_difference, found))}"


def effort(judgement: JudgementReport) -> str:
    """How much was run for it."""
    interleaved = judgement.mode == "interleaved"
    unit = "blocks (a launch of each arm)" if interleaved else "candidate launches"
    most = f" of at most {judgement.max_blocks}" if judgement.max_blocks else ""
    text = f"{judgement.blocks}{most} {unit}"
    if interleaved and judgement.blocks_used:
        text += f", {len(judgement.blocks_used)} used"
    if judgement.blocks_pruned:
        text += f", {len(judgement.blocks_pruned)} pruned as outliers (index {_listed(judgement.blocks_pruned)})"
    if judgement.blocks_needed is not None:
        text += f", about {judgement.blocks_needed} would decide"
    if judgement.sequence > 1:
        text += f", sequence {judgement.sequence} for this pair"
    return text


def sureness(test: TestReport) -> str:
    """Launches, the probability of such a result by chance, and the noise of the job."""
    judgement = test.judgement
    assert judgement is not None
    entries = judged(test.comparisons)
    launches = ""
    if entries:
        candidate, baseline = (max(getattr(e, f"{arm}_launches") for e in entries) for arm in ("candidate", "baseline"))
        launches = f"{baseline} baseline and {candidate} candidate launches, "
    place = "interleaved" if judgement.mode == "interleaved" else f"{judgement.mode} baseline"
    if judgement.mode == "targeted":
        place = "running server, nothing could be launched"
    text = f"{launches}{place}"
    if judgement.p_global < 1:
        text += f"; p = {judgement.p_global:.2g} over all metrics and looks if nothing were worse"
    if judgement.kappa > NOISY:
        text += f"; this job's variance is {judgement.kappa:.1f} times the one expected"
    return text


def detects(judgement: JudgementReport) -> str | None:
    """The smallest change that this job could show, the sharpest metric first."""
    if not judgement.detects:
        return None
    sorted_by_size = sorted(judgement.detects.items(), key=lambda item: item[1])
    return "detects " + ", ".join(f"{name} ≥ {percent(size)}" for name, size in sorted_by_size)


def undecided(tests: Sequence[TestReport]) -> list[str]:
    """What must not be mistaken for a PASS: every undecided test with what would decide it.

    Why it is undecided is said where the test is told of.
    """
    lines = []
    for test in tests:
        judgement = test.judgement
        if judgement is not None and judgement.verdict in UNDECIDED:
            remedy = f" · decide: {judgement.remedy}" if judgement.remedy else ""
            lines.append(f"{judgement.verdict} {test.nodeid}{remedy}")
    return lines


def count_line(tests: Sequence[TestReport]) -> str:
    """How many comparisons were made. A gate that compares nothing must be seen to do so."""
    asked = [test for test in tests if test.judgement is not None]
    made = [
        entry.verdict
        for test in asked
        if test.judgement is not None and test.judgement.verdict not in ("NO_BASELINE", "CONFOUNDED", "INVALID")
        for entry in judged(test.comparisons)
        if entry.verdict in _DECIDED
    ]
    parts = [_count(len(made), "comparison")]
    if made:
        kinds = (("FAIL", "failed"), ("INCONCLUSIVE", "undecided"), ("PASS", "passed"))
        parts[0] += f" ({', '.join(f'{made.count(name)} {word}' for name, word in kinds if name in made)})"
    for verdict, words in (
        ("NO_BASELINE", "without baseline"),
        ("CONFOUNDED", "confounded"),
        ("INVALID", "with invalid data"),
    ):
        many = sum(test.judgement is not None and test.judgement.verdict == verdict for test in asked)
        if many:
            parts.append(f"{_count(many, 'test')} {words}")
    if not asked and all(test.verdict not in ("NOT_RUN", "INFRA") for test in tests):
        parts.append("no test asked for one")
    elif not made:
        parts.append("NOTHING WAS COMPARED")
    elif len(asked) < len(tests):
        parts.append(f"{_count(len(tests) - len(asked), 'test')} asked for none")
    return ", ".join(parts)


def percent(ratio: float | None) -> str:
    """A ratio as a percentage of three digits."""
    return "n/a" if ratio is None else f"{digits(100 * ratio)} %"


def _signed(ratio: float | None) -> str:
    return "?" if ratio is None else f"{100 * ratio:+,.1f}".replace("-", "−")


def _difference(found: DifferenceReport) -> str:
    if found.role == "unverified":
        return found.name
    note = f" ({found.note})" if found.note else ""
    before, after = (fact_text(found.name, value) for value in (found.baseline, found.candidate))
    return f"{found.name} {before} → {after}{note}"


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))


def _count(many: int, noun: str) -> str:
    return f"{many} {noun}{'' if many == 1 else 's'}"
