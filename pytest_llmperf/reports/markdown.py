"""``report.md``: a run for a pull request or a step summary, what needs a decision first."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Final

from pytest_llmperf.comparisons import ComparisonReport, JudgementReport
from pytest_llmperf.gate import PRECEDENCE, VerdictName
from pytest_llmperf.reports.compared import (
    UNDECIDED,
    change_text,
    count_line,
    detects,
    differences,
    effort,
    judged,
    not_judged,
    percent,
    sureness,
    value_texts,
)
from pytest_llmperf.reports.markup import Block, assemble, code, fenced, plain
from pytest_llmperf.reports.phrases import absent_of, check_line, digits, fact_text, notes_of, warnings_of
from pytest_llmperf.reports.spent import spent_text
from pytest_llmperf.result import RunReport, TestReport

__all__ = ["LIMIT", "MARKDOWN_NAME", "SIGNATURE", "render"]

MARKDOWN_NAME: Final = "report.md"
LIMIT: Final = 60_000
"""Characters; a comment on GitHub may have 65,536."""
SIGNATURE: Final = "<!-- pytest-llmperf report -->"
"""First line of every report: what carries it may be replaced."""

_SIGNS: Final[dict[VerdictName, str]] = {
    "PASS": "✅",
    "FAIL": "❌",
    "INVALID": "⛔",
    "CONFOUNDED": "⛔",
    "INCONCLUSIVE": "⚠️",
    "NO_BASELINE": "⚠️",
    "INFRA": "🔧",
    "NOT_RUN": "⏭️",
}
_ORDER: Final[tuple[VerdictName, ...]] = (*PRECEDENCE[:-1], "INFRA", "NOT_RUN", "PASS")
_HEADING: Final = (
    "| test | metric | baseline | candidate | change (interval) | allowed | verdict |\n|---|---|---|---|---|---|---|"
)
_LIMITS_HEADING: Final = "| test | limit and value | verdict |\n|---|---|---|"


def render(report: RunReport) -> str:
    """The whole report, at most ``LIMIT`` characters."""
    return assemble(_blocks(report), LIMIT)


def _blocks(report: RunReport) -> Iterator[Block]:
    names = _names(report.tests)
    yield Block("heading", (SIGNATURE + "\n" + _heading(report),))
    if report.partial:
        yield Block("state", ("⚠️ **Partial**: the run was interrupted or is still going on.",))
    open_tests = sorted((test for test in report.tests if _open(test)), key=lambda test: _ORDER.index(test.verdict))
    yield Block("comparisons to look at", tuple(_rows(open_tests, names)), before=_HEADING)
    yield Block("limits not met", tuple(_missed(open_tests, names)), before=_LIMITS_HEADING)
    yield Block("tests that ended by themselves", tuple(_by_themselves(open_tests, names)))
    yield Block("summary", tuple(_summary(report)))
    yield Block("evidence", tuple(_evidence(report.tests, names)))
    passed = [test for test in report.tests if not _open(test)]
    yield _folded("Comparisons of tests that passed", _rows(passed, names), _HEADING)
    yield _folded("All limits", _limits(report.tests, names), _LIMITS_HEADING)
    yield _folded("What the numbers rest on", _qualified(report.tests, names))
    yield _folded("What ran", _identities(report))
    yield _folded("How to accept a known trade", _acceptances(open_tests))
    yield Block("footer", (f"pytest-llmperf {plain(report.plugin_version)} · {plain(report.created)} · report.json",))


def _heading(report: RunReport) -> str:
    tests = report.tests
    if not tests:
        return "⚠️ llmperf: **no test was run**"
    worst = min((test.verdict for test in tests), key=_ORDER.index)
    many = sum(test.verdict == worst for test in tests)
    which = f"{many} of {len(tests)} tests" if len(tests) > 1 else "1 test"
    sign = _SIGNS[worst]
    itself = sum(test.verdict == "PASS" and test.outcome in ("failed", "error") for test in tests)
    if report.partial and worst == "PASS":
        sign = "⚠️"
    parts = [f"llmperf: **{worst}**{' so far' if report.partial else ''} · {which}"]
    if itself:
        sign = "❌" if worst == "PASS" else sign
        parts.append(f"**{itself} failed by itself**")
    variables = dict.fromkeys(test.judgement.variable for test in tests if test.judgement and test.judgement.variable)
    parts += [code(variable) for variable in variables if variable][:2]
    parts += dict.fromkeys(text for test in tests[:100] if (text := _place(test)))
    return f"{sign} {' · '.join(parts[:5])}"


def _place(test: TestReport) -> str:
    """Engine, model and device."""
    found = test.identity
    if found is None:
        return ""
    known = [found.value(name) for name in ("engine", "version", "model", "quantization")]
    parts = [plain(" ".join(text for text in known[:2] if text != "unknown"))]
    parts.append(plain(" ".join(text for text in known[2:] if text != "unknown")))
    device, count = found.value("gpu"), found.value("gpu_count")
    if device not in ("unknown", "cpu"):
        parts.append(plain(f"{count} × {device}" if count != "unknown" else device))
    return " · ".join(part for part in parts if part)


def _open(test: TestReport) -> bool:
    """Whether a person has to look at it."""
    return test.verdict != "PASS" or test.outcome != "passed"


def _names(tests: Sequence[TestReport]) -> dict[str, str]:
    """Node id → what the tables call the test: its last part where no other test has the same."""
    parts = [test.nodeid.partition("[") for test in tests]
    short = [where.rpartition("::")[2] + opening + rest for where, opening, rest in parts]
    return {
        test.nodeid: code(name if short.count(name) == 1 else test.nodeid)
        for test, name in zip(tests, short, strict=True)
    }


def _rows(tests: Sequence[TestReport], names: dict[str, str]) -> Iterator[str]:
    for test in tests:
        judgement, name = test.judgement, names[test.nodeid]
        if judgement is None:
            continue
        entries = judged(test.comparisons)
        if judgement.verdict not in ("PASS", "FAIL") or not entries:
            verdict = f"{_SIGNS[judgement.verdict]} **{judgement.verdict}**: {plain(judgement.reason)}"
            yield f"| {name} | | | | | | {verdict} |"
        for entry in entries:
            yield f"| {name} | {_row(entry)} |"


def _row(entry: ComparisonReport) -> str:
    before, after = value_texts(entry)
    verdict = f"{_SIGNS[entry.verdict]} {entry.verdict}"
    if entry.ruled_out is not None:
        verdict += f", ruled out > {percent(entry.ruled_out)}{' (widened)' if entry.widened else ''}"
    if entry.reason and entry.verdict != "PASS":
        verdict += f": {plain(entry.reason)}"
    cells = (code(entry.metric), before, after, change_text(entry), percent(entry.allowed), verdict)
    return " | ".join(cells)


def _missed(tests: Sequence[TestReport], names: dict[str, str]) -> Iterator[str]:
    for test in tests:
        for check in test.slas:
            if check.verdict != "PASS":
                sign = _SIGNS[check.verdict]
                yield f"| {names[test.nodeid]} | {plain(check_line(check))} | {sign} {check.verdict} |"


def _limits(tests: Sequence[TestReport], names: dict[str, str]) -> Iterator[str]:
    for test in tests:
        for check in test.slas:
            sign = _SIGNS[check.verdict]
            yield f"| {names[test.nodeid]} | {plain(check_line(check))} | {sign} {check.verdict} |"


def _by_themselves(tests: Sequence[TestReport], names: dict[str, str]) -> Iterator[str]:
    """Tests whose failure no check explains: an assertion of their own, an error, no turn."""
    for test in tests:
        explained = test.verdict in ("FAIL", "INVALID", "CONFOUNDED", *UNDECIDED)
        if explained and (test.outcome == "passed" or test.slas or test.judgement):
            continue
        lines = (test.message or "").strip().splitlines()
        # pytest marks the lines that say what went wrong.
        first = next((line[1:] for line in lines if line.startswith("E ")), lines[0] if lines else "")
        said = f": {plain(first)}" if first else ""
        yield f"- {_SIGNS[test.verdict]} {names[test.nodeid]} {test.verdict}, {test.outcome}{said}"


def _summary(report: RunReport) -> Iterator[str]:
    passed = sum(not _open(test) for test in report.tests)
    counts = f"{count_line(report.tests)}."
    yield (f"✅ {passed} of {len(report.tests)} tests passed. " if passed else "") + counts
    checks = [check for test in report.tests for check in test.slas if check.kind == "sla"]
    if checks:
        met = sum(check.verdict == "PASS" for check in checks)
        yield f"Limits: {met} of {len(checks)} met."
    if text := spent_text(report):
        yield f"Spent {text}."


def _evidence(tests: Sequence[TestReport], names: dict[str, str]) -> Iterator[str]:
    """Each sentence once, with the tests that it is true of where that is not all."""
    found: dict[str, list[str]] = {}
    asked = [(test, test.judgement) for test in tests if test.judgement is not None]
    for test, judgement in asked:
        for sentence in _sentences(test, judgement):
            found.setdefault(sentence, []).append(names[test.nodeid])
    for sentence, of in found.items():
        shown = ", ".join(of[:3]) + (f" and {len(of) - 3} more" if len(of) > 3 else "")
        yield f"- {sentence}" + (f" — {shown}" if len(of) < len(asked) else "")


def _sentences(test: TestReport, judgement: JudgementReport) -> Iterator[str]:
    yield f"Against {plain(judgement.against)}"
    for sentence in differences(judgement, "confounding", "escalating", "came_with", "unverified"):
        yield plain(sentence[:1].upper() + sentence[1:], 800)
    if shown := not_judged(test.comparisons):
        yield plain(f"Not judged: {', '.join(shown)}")
    if judgement.blocks:
        sure = "; a false alarm is at most 1 % per test" if judgement.mode != "targeted" else ""
        found = detects(judgement)
        yield plain(f"How sure: {sureness(test)}{sure}; {effort(judgement)}{f'; {found}' if found else ''}", 800)
    for note in judgement.notes:
        yield f"Note: {plain(note)}"
    if judgement.remedy and judgement.verdict != "PASS":
        yield f"Next: {code(judgement.remedy, 400)}"


def _qualified(tests: Sequence[TestReport], names: dict[str, str]) -> Iterator[str]:
    """What must be read before the numbers are."""
    for test in tests:
        for warning in warnings_of(test):
            yield f"- {names[test.nodeid]}: {plain(warning)}"
        for reason in dict.fromkeys(reason for trial in test.trials for reason in trial.validity.reasons):
            yield f"- {names[test.nodeid]}: INVALID: {plain(reason)}"
        for note in (*absent_of(test), *notes_of(test)):
            yield f"- {names[test.nodeid]}: {plain(note)}"


def _identities(report: RunReport) -> Iterator[str]:
    for campaign in report.campaigns:
        launches = f"{len(campaign.launches)} launch{'' if len(campaign.launches) == 1 else 'es'}"
        yield f"- server {code(campaign.server)}, {launches}, {len(campaign.tests)} tests"
        for launch in campaign.launches:
            if launch.error is not None:
                yield f"  - launch {launch.index}: {plain(launch.error)}"
        if campaign.identity is not None:
            for kind in ("input", "environment", "consequence"):
                facts = getattr(campaign.identity, kind)
                shown = ", ".join(f"{name} {fact_text(name, fact.value)}" for name, fact in facts.items())
                if shown:
                    yield f"  - {kind}: {plain(shown, 1200)}"


def _acceptances(tests: Sequence[TestReport]) -> Iterator[str]:
    """What to write into the configuration; reason, date and name are for a person to fill in."""
    for test in tests:
        for entry in judged(test.comparisons):
            if entry.verdict == "FAIL" and entry.change is not None:
                worst = max(abs(bound) for bound in (entry.change, entry.change_low, entry.change_high) if bound)
                lines = (
                    "[[tool.llmperf.accept]]",
                    f"test = {json.dumps(test.nodeid)}",
                    f"metric = {json.dumps(entry.metric)}",
                    f'up_to = "{digits(100 * worst).replace(",", "")} %"',
                    'reason = "…"',
                    'until = "…"',
                    'approved_by = "…"',
                )
                yield fenced("\n".join(lines), "toml")


def _folded(title: str, rows: Iterator[str], heading: str = "") -> Block:
    before = f"<details><summary>{title}</summary>\n" + (f"\n{heading}" if heading else "")
    return Block(title, tuple(rows), before=before, after="\n</details>")
