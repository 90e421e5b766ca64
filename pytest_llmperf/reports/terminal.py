"""One test's tables for the terminal, and the last lines of a run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from io import StringIO
from typing import Final

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from pytest_llmperf.comparisons import ComparisonReport
from pytest_llmperf.reports.compared import (
    UNDECIDED,
    change_text,
    compared_line,
    count_line,
    detects,
    differences,
    effort,
    judged,
    not_judged,
    partner,
    percent,
    sureness,
    undecided,
    value_texts,
)
from pytest_llmperf.reports.phrases import (
    MARKS,
    OPTIONAL_FAMILIES,
    SCALARS,
    SEPARATOR,
    SHOWN_FAMILIES,
    absent_of,
    cell_text,
    check_line,
    notes_of,
    warnings_of,
    wrapped,
)
from pytest_llmperf.reports.schedule import describe_load
from pytest_llmperf.result import MetricReport, TestReport
from pytest_llmperf.units import format_quantity

__all__ = ["render", "render_summary"]

_STATISTICS: Final = ("mean", "p50", "p90", "p95", "p99")


def render(test: TestReport, width: int, color: bool) -> str:
    """The test's tables, at most ``width`` columns.

    ``color`` adds terminal escapes and changes nothing else.
    """
    console = _console(width, color)
    with console.capture() as captured:
        style = MARKS.get(test.verdict, ("", "yellow"))[1]
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
        for warning in warnings_of(test):
            _paragraph(console, f"! {warning}", width, "bold magenta")
        if test.verdict in ("NOT_RUN", "INFRA") and test.message:
            _paragraph(console, test.message.strip().splitlines()[0], width)
        if test.metrics and test.trials:
            console.print(Padding(_latencies(test.metrics), (0, 0, 0, 2)))
            _paragraph(console, _scalars(test.metrics), width)
        for check in test.slas:
            mark, style = MARKS.get(check.verdict, ("?", "yellow"))
            _paragraph(console, f"{mark} {check_line(check)}", width, style)
        if test.judgement is not None:
            _comparison(console, test, width)
        for said in test.notes:
            _paragraph(console, said, width)
        for note in (*absent_of(test), *notes_of(test)):
            _paragraph(console, f"note: {note}", width, "dim")
    return _text(captured.get())


def render_summary(tests: Sequence[TestReport], width: int, color: bool) -> str:
    """How many comparisons were made, and again every test that could not be decided: it is no PASS."""
    console = _console(width, color)
    with console.capture() as captured:
        for line in undecided(tests):
            _paragraph(console, f"! {line}", width, "bold yellow", indent="")
        _paragraph(console, count_line(tests), width, indent="")
    return _text(captured.get())


def _comparison(console: Console, test: TestReport, width: int) -> None:
    """The comparison with the baseline: verdict, table, what differs, what it rests on, what to do."""
    judgement = test.judgement
    assert judgement is not None
    mark, style = MARKS.get(judgement.verdict, ("?", "yellow"))
    loud = "bold " if judgement.verdict in UNDECIDED else ""
    _paragraph(console, f"{mark} compared: {judgement.verdict}: {judgement.reason}", width, loud + style)
    _paragraph(console, partner(judgement), width, indent="    ")
    entries = judged(test.comparisons)
    if entries:
        table = _comparisons(entries)
        if console.measure(table).maximum + 4 <= width:
            console.print(Padding(table, (0, 0, 0, 4)))
        else:
            for entry in entries:
                mark, style = MARKS.get(entry.verdict, ("?", "yellow"))
                _paragraph(console, f"{mark} {compared_line(entry)}", width, style, indent="    ")
    for sentence in differences(judgement, "confounding", "escalating"):
        _paragraph(console, f"! {sentence}", width, "bold magenta", indent="    ")
    rest = list(differences(judgement, "came_with", "unverified"))
    if shown := not_judged(test.comparisons):
        rest.append(f"not judged: {', '.join(shown)}")
    if judgement.blocks:
        rest += [effort(judgement), sureness(test)]
    rest += [text for text in (detects(judgement),) if text is not None]
    rest += [f"note: {note}" for note in judgement.notes]
    for sentence in rest:
        _paragraph(console, sentence, width, "dim", indent="    ")
    if judgement.remedy:
        _paragraph(console, f"next: {judgement.remedy}", width, "bold", indent="    ")


def _comparisons(entries: Sequence[ComparisonReport]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, show_edge=False, header_style="dim")
    table.add_column("", no_wrap=True)
    for heading in ("baseline", "candidate", "change (interval)", "allowed", "ruled out"):
        table.add_column(heading, justify="right", no_wrap=True)
    for entry in entries:
        mark, style = MARKS.get(entry.verdict, ("?", "yellow"))
        ruled_out = f"{'wide ' if entry.widened else ''}> {percent(entry.ruled_out)}" if entry.ruled_out else ""
        cells = (*value_texts(entry), change_text(entry), percent(entry.allowed), ruled_out)
        table.add_row(*(Text(cell, style=style) for cell in (f"{mark} {entry.metric}", *cells)))
    return table


def _console(width: int, color: bool) -> Console:
    return Console(
        file=StringIO(), width=width, force_terminal=color, color_system="standard" if color else None,
        highlight=False, emoji=False, markup=False, legacy_windows=False, no_color=not color,
    )  # fmt: skip


def _text(captured: str) -> str:
    return "\n".join(line.rstrip() for line in captured.splitlines()) + "\n"


def _facts(test: TestReport) -> Iterator[str]:
    plan = test.plan
    who = [f"server {plan.server.name}"]
    if test.identity is not None:
        who.append(f"{test.identity.value('engine')} {test.identity.value('version')}")
        who.append(f"model {test.identity.value('model')}")
    sent = " ".join(dict.fromkeys((plan.workload.api, plan.workload.name)))
    yield " · ".join((*who, sent, describe_load(plan.load)))
    if not test.counted:
        return
    trials = test.counted
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
    for family in SHOWN_FAMILIES:
        found = [metrics.get(f"{family}_{statistic}") for statistic in _STATISTICS]
        known = [entry for entry in found if entry is not None]
        absent = all(entry.value is None and entry.invalid is None for entry in known)
        if not known or (family in OPTIONAL_FAMILIES and absent):
            continue
        table.add_row(family.upper(), *map(cell_text, found), f"{max(entry.n for entry in known):,}")
    return table


def _scalars(metrics: dict[str, MetricReport]) -> str:
    parts = []
    share = metrics.get("goodput_share")
    for name, label in SCALARS:
        entry = metrics.get(name)
        if entry is not None and entry.invalid is not None:
            parts.append(f"{label} invalid")
        if entry is None or entry.value is None:
            continue
        parts.append(f"{label} {format_quantity(entry.value, entry.unit)}")
        if name == "goodput" and share is not None and share.value is not None:
            parts[-1] += f" ({format_quantity(share.value, share.unit)})"
    return SEPARATOR.join(parts)


def _paragraph(console: Console, text: str, width: int, style: str = "", indent: str = "  ") -> None:
    for line in wrapped(text, width, indent, f"{indent}    "):
        console.print(Text(line, style=style), soft_wrap=True)
