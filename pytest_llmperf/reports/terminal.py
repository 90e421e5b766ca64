"""One test's table for the terminal, and the message of a test that failed."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from io import StringIO
from textwrap import shorten, wrap
from typing import Final

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from pytest_llmperf.catalog import metric
from pytest_llmperf.gate import VerdictName
from pytest_llmperf.reports.schedule import describe_load
from pytest_llmperf.result import CheckReport, MetricReport, TestReport
from pytest_llmperf.units import format_quantity

__all__ = ["failure_message", "render"]

_MARKS: Final[dict[VerdictName, tuple[str, str]]] = {
    "PASS": ("✓", "green"),
    "FAIL": ("✗", "red"),
    "INVALID": ("!", "magenta"),
    "CONFOUNDED": ("!", "magenta"),
    "INCONCLUSIVE": ("?", "yellow"),
    "NO_BASELINE": ("?", "yellow"),
}
_STATISTICS: Final = ("mean", "p50", "p90", "p95", "p99")
_SHOWN_FAMILIES: Final = ("ttft", "tpot", "icl", "itl", "e2e")
_OPTIONAL_FAMILIES: Final = ("itl",)  # few servers count tokens per chunk
_SCALARS: Final = (
    ("output_throughput", "output"),
    ("total_throughput", "total"),
    ("request_throughput", "requests"),
    ("goodput", "goodput"),
    ("peak_memory", "peak memory"),
)
_SEPARATOR: Final = " · "
_DETAIL: Final = 160
_SLOWEST: Final = 5
_SLOW_HEADING: Final = f"{'request':>9} {'TTFT':>8} {'TPOT':>8} {'E2E':>8} {'prompt':>6} {'output':>6}"


def render(test: TestReport, width: int, color: bool) -> str:
    """The test's table, at most ``width`` columns.

    ``color`` adds terminal escapes and changes nothing else.
    """
    console = Console(
        file=StringIO(), width=width, force_terminal=color, color_system="standard" if color else None,
        highlight=False, emoji=False, markup=False, legacy_windows=False, no_color=not color,
    )  # fmt: skip
    with console.capture() as captured:
        style = _MARKS.get(test.verdict, ("", "yellow"))[1]
        itself = (
            f"  ({test.outcome} by itself)"
            if test.outcome in ("failed", "error") and test.verdict in ("PASS", "INCONCLUSIVE")
            else ""
        )
        console.print(
            Text.assemble((test.verdict, f"bold {style}"), "  ", (test.nodeid, "bold"), itself), soft_wrap=True
        )
        for line in _facts(test):
            _paragraph(console, line, width)
        for warning in _warnings(test):
            _paragraph(console, f"! {warning}", width, "bold magenta")
        if test.verdict in ("NOT_RUN", "INFRA") and test.message:
            _paragraph(console, test.message.strip().splitlines()[0], width)
        if test.metrics:
            console.print(Padding(_latencies(test.metrics), (0, 0, 0, 2)))
            _paragraph(console, _scalars(test.metrics), width)
        for check in test.slas:
            mark, style = _MARKS.get(check.verdict, ("?", "yellow"))
            _paragraph(console, f"{mark} {_check_line(check)}", width, style)
        for note in _notes(test):
            _paragraph(console, f"note: {note}", width, "dim")
    return "\n".join(line.rstrip() for line in captured.get().splitlines()) + "\n"


def failure_message(test: TestReport, report: str | None = None, width: int = 100) -> str:
    """Why the test failed, in plain text: failed checks, slowest requests, failures, where to read on."""
    lines: list[str] = []
    failed = [check for check in test.slas if check.verdict != "PASS"]
    # pytest's short summary shows the first line alone, so it holds the first reason.
    first = next((_check_line(check) for check in failed if check.verdict == test.verdict), "no check")
    more = f" (and {len(failed) - 1} more)" if len(failed) > 1 else ""
    room = width - len(test.verdict) - len(more) - 2
    lines.append(f"{test.verdict}: {shorten(first, room, placeholder=' …')}{more}")
    if len(failed) > 1 or len(first) > room:
        for check in failed:
            lines += _wrap(f"{check.verdict} {_check_line(check)}", width, "  ", "      ")
    if test.plan.slo is not None and any(check.metric.startswith("goodput") for check in failed):
        limits = ", ".join(f"{name} ≤ {format_quantity(limit, 's')}" for name, limit in test.plan.slo.limits.items())
        lines.append(f"a good request has {limits}")
    lines += _slowest(test, failed, width)
    lines += _failures(test, width)
    for warning in _warnings(test):
        lines += _wrap(warning, width, "", "  ")
    for note in _notes(test):
        lines += _wrap(f"note: {note}", width, "", "  ")
    files = [trial.records for trial in test.trials if trial.records]
    if report is not None:
        lines.append(f"report: {report}" + (f" (requests: {', '.join(files)})" if files else ""))
    return "\n".join(lines)


def _facts(test: TestReport) -> Iterator[str]:
    plan = test.plan
    who = [f"server {plan.server.name}"]
    if test.identity is not None:
        who.append(f"{test.identity.value('engine')} {test.identity.value('version')}")
        who.append(f"model {test.identity.value('model')}")
    yield " · ".join((*who, f"{plan.workload.api} {plan.workload.name}", describe_load(plan.load)))
    if not test.trials:
        return
    trials = test.trials
    seconds = sum(trial.window.seconds for trial in trials)
    ok, failed, cut = (sum(getattr(trial, name) for trial in trials) for name in ("ok", "failed", "cut"))
    runs = f" in {len(trials)} replays" if len(trials) > 1 else ""
    flying = sum(trial.in_flight_mean * trial.window.seconds for trial in trials) / seconds if seconds else 0.0
    yield (
        f"{sum(trial.attempted for trial in trials)} requests{runs}: {ok} ok, {failed} failed, {cut} cut"
        f" · window {format_quantity(seconds, 's')}"
        f" · in flight {flying:.1f} mean, {max(trial.in_flight_max for trial in trials)} max"
        + ("" if all(trial.validity.steady_checked for trial in trials) else " · steady state not checked")
    )


def _latencies(metrics: dict[str, MetricReport]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, show_edge=False, header_style="dim")
    table.add_column("")
    for heading in (*_STATISTICS, "n"):
        table.add_column(heading, justify="right", no_wrap=True)
    for family in _SHOWN_FAMILIES:
        found = [metrics.get(f"{family}_{statistic}") for statistic in _STATISTICS]
        known = [entry for entry in found if entry is not None]
        absent = all(entry.value is None and entry.invalid is None for entry in known)
        if not known or (family in _OPTIONAL_FAMILIES and absent):
            continue
        table.add_row(family.upper(), *map(_cell, found), f"{max(entry.n for entry in known):,}")
    return table


def _cell(entry: MetricReport | None) -> str:
    if entry is None:
        return "n/a"
    if entry.invalid is not None:
        return "invalid"
    # A percentile without a finite value, but with values, lies among the failed requests.
    return "∞" if entry.value is None and entry.n else format_quantity(entry.value, entry.unit)


def _scalars(metrics: dict[str, MetricReport]) -> str:
    parts = []
    share = metrics.get("goodput_share")
    for name, label in _SCALARS:
        entry = metrics.get(name)
        if entry is not None and entry.invalid is not None:
            parts.append(f"{label} invalid")
        if entry is None or entry.value is None:
            continue
        parts.append(f"{label} {format_quantity(entry.value, entry.unit)}")
        if name == "goodput" and share is not None and share.value is not None:
            parts[-1] += f" ({format_quantity(share.value, share.unit)})"
    return _SEPARATOR.join(parts)


def _check_line(check: CheckReport) -> str:
    """Metric, value, limit and what they rest on.

    The gate's own sentence where there is no plain comparison.
    """
    if check.kind in ("validity", "expects"):
        return check.reason
    if check.verdict not in ("PASS", "FAIL") or check.kind == "errors":
        name = "errors" if check.kind == "errors" else check.metric
        return f"{name}: {check.reason}"
    sign = (
        ("≤" if check.verdict == "PASS" else ">")
        if check.better == "lower"
        else ("≥" if check.verdict == "PASS" else "<")
    )
    value = "∞" if check.value is None else format_quantity(check.value, check.unit)
    limit = check.written or format_quantity(check.limit, check.unit)
    rest = [f"n={check.n:,}"]
    if check.beyond is not None:
        rest.append(f"{check.beyond:,} beyond")
    if check.confidence is not None:
        required = f", {100 * check.required_confidence:g} % required" if check.required_confidence else ""
        rest.append(f"confidence {_percent(check.confidence)}{required}")
    if check.launches is not None:
        rest.append(f"{check.launches_shown} of {check.launches} launch{'es' if check.launches > 1 else ''}")
    if check.value is None:
        rest.append("it lies among the failed requests")
    return f"{check.metric} {value} {sign} {limit}  ({', '.join(rest)})"


def _warnings(test: TestReport) -> list[str]:
    """What must be read before the numbers are: trials that are INVALID or in no steady state."""
    found, many = [], len(test.trials)
    invalid = sum(not trial.validity.valid for trial in test.trials)
    if invalid:
        which = f"{invalid} of {many} trials are" if many > 1 else "the trial is"
        found.append(f"do not use these numbers: {which} INVALID, for the reasons given")
    unsettled = [trial for trial in test.trials if trial.validity.unsettled is not None]
    reasons = dict.fromkeys(str(trial.validity.unsettled) for trial in unsettled)
    which = f" ({len(unsettled)} of {many} trials)" if many > 1 else ""
    return [*found, *(f"UNSETTLED{which}: {reason}" for reason in reasons)]


def _notes(test: TestReport) -> list[str]:
    """What qualifies the numbers, each once: of the trials, and of the shown metrics that have no value."""
    found: dict[str, None] = {}
    for trial in test.trials:
        found |= dict.fromkeys((*trial.validity.notes, *trial.warnings))
    absent: dict[str, list[str]] = {}
    for family in (*_SHOWN_FAMILIES, *(name for name, _ in _SCALARS)):
        if family in _OPTIONAL_FAMILIES or family == "goodput":
            continue
        entry = test.metrics.get(f"{family}_mean") or test.metrics.get(family)
        if entry is not None and entry.note and (entry.value is None or "lower bound" in entry.note):
            absent.setdefault(entry.note, []).append(family)
    found |= {f"{', '.join(names)}: {note}": None for note, names in absent.items()}
    return list(found)


def _slowest(test: TestReport, failed: Sequence[CheckReport], width: int) -> list[str]:
    """The slowest ok requests by each latency whose limit was missed, else by E2E; beyond the limit is marked."""
    limits = {
        family: check.limit
        for check in failed
        if check.kind == "sla" and (family := metric(check.metric).family.name) in ("ttft", "tpot", "e2e")
    }
    rows = [(trial, slow) for trial in test.trials for slow in trial.slowest if slow.outcome == "ok"]
    if not rows:
        return []
    many = len(test.trials) > 1
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
    for trial in test.trials:
        for name, count in trial.failures.items():
            totals[name] = totals.get(name, 0) + count
    lines = ["failed requests:"] if totals else []
    for name, count in sorted(totals.items(), key=lambda item: -item[1]):
        example = next((s for t in test.trials for s in t.slowest if s.outcome == name), None)
        text = f"{count} {name}"
        if example is not None and example.detail:
            detail = " ".join(example.detail.split())
            shown = detail if len(detail) <= _DETAIL else f"{detail[: _DETAIL - 1]}…"
            text += f", e.g. request #{example.index}: {shown}"
        lines += _wrap(text, width, "  ", "    ")
    return lines


def _paragraph(console: Console, text: str, width: int, style: str = "") -> None:
    for line in _wrap(text, width, "  ", "      "):
        console.print(Text(line, style=style), soft_wrap=True)


def _wrap(text: str, width: int, first: str = "", rest: str = "") -> list[str]:
    """Lines of at most ``width`` columns; a number stays with its unit, and what lies between two dots together."""
    glued = _SEPARATOR.join(_glue(part, width) for part in text.split(_SEPARATOR))
    lines = wrap(glued, width, initial_indent=first, subsequent_indent=rest, break_on_hyphens=False)
    return [line.replace("\u00a0", " ") for line in lines]


def _glue(part: str, width: int) -> str:
    if len(part) < width // 3:
        return part.replace(" ", "\u00a0")
    return re.sub(r"(?<=\d) (?=[%A-Za-z])|(?<=[<>≤≥]) (?=\d)", "\u00a0", part)


def _percent(share: float) -> str:
    return "> 99.9 %" if share > 0.999 else f"{100 * share:.1f} %"
