"""One test's table for the terminal, and the message of a test that failed."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from io import StringIO
from textwrap import wrap
from typing import Final

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from pytest_llmperf.catalog import metric
from pytest_llmperf.gate import VerdictName
from pytest_llmperf.plan import LoadProfile
from pytest_llmperf.reports.schedule import extent_of
from pytest_llmperf.result import CheckReport, MetricReport, SlowRequest, TestReport, TrialReport
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
        console.print(Text.assemble((test.verdict, f"bold {style}"), "  ", (test.nodeid, "bold")), soft_wrap=True)
        for line in _facts(test):
            _paragraph(console, line, width)
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
    lines.append(f"{test.verdict}: {len(failed)} of {len(test.slas)} checks not passed")
    for check in failed:
        lines += _wrap(f"{check.verdict} {_check_line(check)}", width, "  ", "      ")
    lines += _slowest(test, failed)
    lines += _failures(test, width)
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
    yield " · ".join((*who, f"{plan.workload.api} {plan.workload.name}", _load(plan.load)))
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
    )


def _load(load: LoadProfile) -> str:
    return f"{load.describe()}, {extent_of(load)} after {load.warmup_requests} to warm up"


def _latencies(metrics: dict[str, MetricReport]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, show_edge=False, header_style="dim")
    table.add_column("")
    for heading in (*_STATISTICS, "n"):
        table.add_column(heading, justify="right", no_wrap=True)
    for family in _SHOWN_FAMILIES:
        found = [metrics.get(f"{family}_{statistic}") for statistic in _STATISTICS]
        known = [entry for entry in found if entry is not None]
        if not known or (family in _OPTIONAL_FAMILIES and all(entry.value is None for entry in known)):
            continue
        # A percentile without a finite value, but with values, lies among the failed requests.
        cells = [
            "n/a" if e is None else "∞" if e.value is None and e.n else format_quantity(e.value, e.unit) for e in found
        ]
        table.add_row(family.upper(), *cells, f"{max(entry.n for entry in known):,}")
    return table


def _scalars(metrics: dict[str, MetricReport]) -> str:
    parts = []
    share = metrics.get("goodput_share")
    for name, label in _SCALARS:
        entry = metrics.get(name)
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
    if check.kind == "validity":
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
    if check.value is None:
        rest.append("it lies among the failed requests")
    return f"{check.metric} {value} {sign} {limit}  ({', '.join(rest)})"


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


def _slowest(test: TestReport, failed: Sequence[CheckReport]) -> list[str]:
    """The slowest ok requests by the metric that failed, else by E2E."""
    families = [metric(check.metric).family.name for check in failed if check.kind == "sla"]
    by = next((family for family in families if family in ("ttft", "tpot", "e2e")), "e2e")
    many = len(test.trials) > 1

    def key(item: tuple[TrialReport, SlowRequest]) -> float:
        value = getattr(item[1], f"{by}_s")
        return float(value) if value is not None else -1.0

    rows = [(trial, slow) for trial in test.trials for slow in trial.slowest if slow.outcome == "ok"]
    rows = sorted(rows, key=key, reverse=True)[:_SLOWEST]
    if not rows:
        return []
    lines = [f"slowest requests by {by.upper()}:"]
    lines.append(f"  {'request':>8} {'TTFT':>8} {'TPOT':>8} {'E2E':>8} {'prompt':>6} {'output':>6}  outcome")
    for trial, slow in rows:
        name = f"{trial.launch}.{trial.replay}#{slow.index}" if many else f"#{slow.index}"
        times = " ".join(f"{format_quantity(value, 's'):>8}" for value in (slow.ttft_s, slow.tpot_s, slow.e2e_s))
        tokens = " ".join(f"{'?' if n is None else n:>6}" for n in (slow.prompt_tokens, slow.output_tokens))
        lines.append(f"  {name:>8} {times} {tokens}  {slow.outcome}")
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
