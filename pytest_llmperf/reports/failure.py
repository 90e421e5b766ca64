"""The message of a test that failed: the verdict first, then the evidence, in plain text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from textwrap import shorten
from typing import Final

from pytest_llmperf.catalog import metric
from pytest_llmperf.comparisons import JudgementReport
from pytest_llmperf.gate import Check
from pytest_llmperf.reports.compared import compared_line, differences, effort, judged, partner, sureness
from pytest_llmperf.reports.phrases import check_line, notes_of, warnings_of, wrapped
from pytest_llmperf.result import TestReport
from pytest_llmperf.units import format_quantity

__all__ = ["failure_message"]

MOST_LINES: Final = 25
_MOST_CHECKS: Final = 6
_MOST_OF_ONE: Final = 4
"""Lines of one sentence of the evidence."""
_TABLE_HEAD: Final = 2
_DETAIL: Final = 160
_SLOWEST: Final = 5
_SLOW_HEADING: Final = f"{'request':>9} {'TTFT':>8} {'TPOT':>8} {'E2E':>8} {'prompt':>6} {'output':>6}"


def failure_message(test: TestReport, report: str | None = None, width: int = 100) -> str:
    """Why the test failed, in plain text: verdict, failed checks, their evidence, where to read on.

    At most ``MOST_LINES`` long where the slowest requests and notes, which give way first, make that possible.
    """
    checks = [check for check in test.slas if check.verdict != "PASS"]
    said = [(check.verdict, check_line(check)) for check in checks] + _compared(test)
    head = _verdict(test.verdict, said, width)
    if test.plan.slo is not None and any(check.metric.startswith("goodput") for check in checks):
        limits = ", ".join(f"{name} ≤ {format_quantity(limit, 's')}" for name, limit in test.plan.slo.limits.items())
        head.append(f"a good request has {limits}")
    if test.judgement is not None and test.judgement.verdict != "PASS":
        head += _evidence(test, test.judgement, width)
    failures = _failures(test, width)
    warnings = [line for warning in warnings_of(test) for line in wrapped(warning, width, "", "  ")]
    notes = [line for note in notes_of(test) for line in wrapped(f"note: {note}", width, "", "  ")]
    files = [trial.records for trial in test.trials if trial.records]
    where = []
    if report is not None:
        where.append(f"report: {report}" + (f" (requests: {', '.join(files)})" if len(files) in (1, 2) else ""))
    room = MOST_LINES - len(head) - len(failures) - len(warnings) - len(where)
    # The slowest requests explain a missed limit; of a change from a baseline they say nothing.
    slowest = _slowest(test, checks, width) if checks else []
    if len(slowest) > room:
        slowest = slowest[:room] if room > _TABLE_HEAD else []
    notes = _cut(notes, room - len(slowest))
    return "\n".join((*head, *slowest, *failures, *warnings, *notes, *where))


def _compared(test: TestReport) -> list[tuple[str, str]]:
    """What the comparison holds against the test: its verdict as such, or the metrics that bear it."""
    judgement = test.judgement
    if judgement is None or judgement.verdict == "PASS":
        return []
    bearing = [entry for entry in judged(test.comparisons) if entry.verdict == judgement.verdict]
    if judgement.verdict == "FAIL" and bearing:
        return [(entry.verdict, compared_line(entry)) for entry in bearing]
    return [(judgement.verdict, judgement.reason)]


def _verdict(verdict: str, said: list[tuple[str, str]], width: int) -> list[str]:
    """pytest's short summary shows the first line alone, so it holds the first reason."""
    first = next((text for name, text in said if name == verdict), "no check")
    more = f" (and {len(said) - 1} more)" if len(said) > 1 else ""
    room = width - len(verdict) - len(more) - 2
    lines = [f"{verdict}: {shorten(first, room, placeholder=' …')}{more}"]
    if len(said) > 1 or len(first) > room:
        for name, text in said[:_MOST_CHECKS]:
            lines += wrapped(f"{name} {text}", width, "  ", "      ")
        if len(said) > _MOST_CHECKS:
            lines.append(f"  … and {len(said) - _MOST_CHECKS} more in the report")
    return lines


def _evidence(test: TestReport, judgement: JudgementReport, width: int) -> Iterator[str]:
    """With what it was compared, what differs, how sure it is, what to do next."""
    yield from wrapped(partner(judgement), width, "", "  ")
    if judgement.verdict == "INCONCLUSIVE":
        for entry in judged(test.comparisons)[:_MOST_CHECKS]:
            if entry.verdict != "PASS":
                yield from wrapped(compared_line(entry), width, "  ", "      ")
    sentences = [*differences(judgement, "confounding", "escalating", "came_with")]
    if judgement.blocks:
        sentences.append(f"how sure: {sureness(test)}; {effort(judgement)}")
    for sentence in sentences:
        yield from _cut(wrapped(sentence, width, "", "  "), _MOST_OF_ONE)
    if judgement.remedy:
        yield from wrapped(f"next: {judgement.remedy}", width, "", "  ")


def _cut(lines: list[str], most: int) -> list[str]:
    if len(lines) <= most:
        return lines
    return [*lines[: most - 1], f"  … {len(lines) - most + 1} more lines in the report"] if most > 0 else []


def _slowest(test: TestReport, failed: Sequence[Check], width: int) -> list[str]:
    """The slowest ok requests by each latency whose limit was missed, else by E2E; beyond the limit is marked."""
    limits = {
        family: check.limit
        for check in failed
        if check.kind == "sla" and (family := metric(check.metric).family.name) in ("ttft", "tpot", "e2e")
    }
    rows = [(trial, slow) for trial in test.counted for slow in trial.slowest if slow.outcome == "ok"]
    if not rows:
        return []
    many = len(test.counted) > 1
    lines = []
    for by, limit in (limits or {"e2e": None}).items():
        lines += [f"slowest requests by {by.upper()}:", _SLOW_HEADING]
        known = [(value, trial, slow) for trial, slow in rows if (value := getattr(slow, f"{by}_s")) is not None]
        for value, trial, slow in sorted(known, key=lambda row: -row[0])[:_SLOWEST]:
            name = f"{trial.launch}.{trial.replay}#{slow.index}" if many else f"#{slow.index}"
            times = " ".join(f"{format_quantity(time, 's'):>8}" for time in (slow.ttft_s, slow.tpot_s, slow.e2e_s))
            tokens = " ".join(f"{'?' if n is None else n:>6}" for n in (slow.prompt_tokens, slow.output_tokens))
            beyond = " beyond the limit" if limit is not None and value > limit else ""
            lines.append(f"{name:>9} {times} {tokens}{beyond}"[:width])
    return lines


def _failures(test: TestReport, width: int) -> list[str]:
    """Failure classes with their counts, the most frequent first, and one example each."""
    totals: dict[str, int] = {}
    for trial in test.counted:
        for name, count in trial.failures.items():
            totals[name] = totals.get(name, 0) + count
    lines = ["failed requests:"] if totals else []
    for name, count in sorted(totals.items(), key=lambda item: -item[1]):
        example = next((s for t in test.counted for s in t.slowest if s.outcome == name), None)
        text = f"{count} {name}"
        if example is not None and example.detail:
            detail = " ".join(example.detail.split())
            shown = detail if len(detail) <= _DETAIL else f"{detail[: _DETAIL - 1]}…"
            text += f", e.g. request #{example.index}: {shown}"
        lines += wrapped(text, width, "  ", "    ")
    return lines
