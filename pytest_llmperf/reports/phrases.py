"""Sentences that several reports share: what was judged, what must be read first, lines of a given width."""

from __future__ import annotations

import re
from textwrap import wrap
from typing import Final

from pytest_llmperf.gate import Check, VerdictName
from pytest_llmperf.result import MetricReport, TestReport
from pytest_llmperf.units import format_bounds, format_quantity

__all__ = [
    "MARKS",
    "OPTIONAL_FAMILIES",
    "SCALARS",
    "SEPARATOR",
    "SHOWN_FAMILIES",
    "absent_of",
    "cell_text",
    "check_line",
    "digits",
    "fact_text",
    "notes_of",
    "warnings_of",
    "wrapped",
]

MARKS: Final[dict[VerdictName, tuple[str, str]]] = {
    "PASS": ("✓", "green"),
    "FAIL": ("✗", "red"),
    "INVALID": ("!", "magenta"),
    "CONFOUNDED": ("!", "magenta"),
    "INCONCLUSIVE": ("?", "yellow"),
    "NO_BASELINE": ("?", "yellow"),
}
"""Verdict → its sign and colour."""
SHOWN_FAMILIES: Final = ("ttft", "tpot", "icl", "itl", "e2e")
OPTIONAL_FAMILIES: Final = ("itl",)  # few servers count tokens per chunk
_BY_ENGINE: Final = ("queue_wait", "prefill_time")
_OF_ENGINE: Final = "n counts what the engine finished around the window, warm-up included"
SCALARS: Final = (
    ("output_throughput", "output"),
    ("total_throughput", "total"),
    ("request_throughput", "requests"),
    ("goodput", "goodput"),
    ("peak_memory", "peak memory"),
)
SEPARATOR: Final = " · "


_UNITS: Final = {"swap_space": "GiB", "kv_offloading_size": "GiB"}


def fact_text(name: str, value: str) -> str:
    """The value of a fact, with its unit where it has one."""
    number = value.replace(".", "", 1).isdecimal()
    return f"{float(value):g} {_UNITS[name]}" if name in _UNITS and number else value


def check_line(check: Check) -> str:
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
    if check.lower is not None:
        beyond = "within" if check.verdict == "PASS" else "beyond"
        lies = format_bounds(check.lower, check.upper, check.unit)
        return f"{check.metric} {lies}, {beyond} {limit}  (n={check.n:,}, by the engine's buckets)"
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


def warnings_of(test: TestReport) -> list[str]:
    """What must be read before the numbers are: trials that are INVALID or in no steady state."""
    found, many = [], len(test.counted)
    invalid = sum(not trial.validity.valid for trial in test.counted)
    if invalid:
        which = f"{invalid} of {many} trials are" if many > 1 else "the trial is"
        found.append(f"do not use these numbers: {which} INVALID, for the reasons given")
    unsettled = [trial for trial in test.counted if trial.validity.unsettled is not None]
    reasons = dict.fromkeys(str(trial.validity.unsettled) for trial in unsettled)
    which = f" ({len(unsettled)} of {many} trials)" if many > 1 else ""
    return [*found, *(f"UNSETTLED{which}: {reason}" for reason in reasons)]


def absent_of(test: TestReport) -> list[str]:
    """Rows of the table of latencies that are left out, with the reason."""
    entry = test.metrics.get("itl_mean")
    uncounted = entry is not None and entry.value is None and "no token count per chunk" in (entry.note or "")
    return ["ITL is not shown: the server states no token counts per chunk"] if uncounted else []


_FIGURE: Final = re.compile(r"\d[\d.,]*")


def notes_of(test: TestReport) -> list[str]:
    """What qualifies the numbers, each once: of the trials, of the shown metrics that have no value, and of those that
    a limit or an expectation names."""
    found: dict[str, None] = {}
    for trial in test.counted:
        found |= dict.fromkeys((*trial.validity.notes, *trial.warnings))
    absent: dict[str, list[str]] = {}
    for family in (*SHOWN_FAMILIES, *(name for name, _ in SCALARS)):
        if family in OPTIONAL_FAMILIES or family == "goodput":
            continue
        entry = test.metrics.get(f"{family}_mean") or test.metrics.get(family)
        qualifies = family not in SHOWN_FAMILIES or (entry is not None and entry.value is None)
        if entry is not None and entry.note and qualifies:
            absent.setdefault(entry.note, []).append(family)
    for name in dict.fromkeys(check.metric for check in test.slas):
        entry = test.metrics.get(name)
        if entry is not None and entry.note and entry.value is not None:
            of_engine = name.startswith(_BY_ENGINE)
            absent.setdefault(f"{entry.note}; {_OF_ENGINE}" if of_engine else entry.note, []).append(name)
    found |= {f"{', '.join(dict.fromkeys(names))}: {note}": None for note, names in absent.items()}
    alike: dict[str, list[str]] = {}
    for note in found:
        alike.setdefault(_FIGURE.sub("#", note), []).append(note)
    return [notes[0] if len(notes) == 1 else f"{notes[0]} (and in {len(notes) - 1} more trials)"
            for notes in alike.values()]  # fmt: skip


def cell_text(entry: MetricReport | None) -> str:
    if entry is None:
        return "n/a"
    if entry.invalid is not None:
        return "invalid"
    if entry.lower is not None:
        return format_bounds(entry.lower, entry.upper, entry.unit)
    # A percentile without a finite value, but with values, lies among the failed requests.
    return "∞" if entry.value is None and entry.n else format_quantity(entry.value, entry.unit)


def digits(value: float, significant: int = 3) -> str:
    """``value`` with so many significant digits and never a power of ten above: ``0.23``, ``5``, ``1,250``."""
    whole = abs(value) >= 10**significant - 0.5
    return f"{value:,.0f}" if whole else f"{value:.{significant}g}"


def wrapped(text: str, width: int, first: str = "", rest: str = "") -> list[str]:
    """Lines of at most ``width`` columns; a number stays with its unit, and what lies between two dots together."""
    glued = SEPARATOR.join(_glue(part, width) for part in text.split(SEPARATOR))
    lines = wrap(glued, width, initial_indent=first, subsequent_indent=rest, break_on_hyphens=False)
    return [line.replace("\u00a0", " ") for line in lines]


def _glue(part: str, width: int) -> str:
    if len(part) < width // 3:
        return part.replace(" ", "\u00a0")
    return re.sub(r"(?<=\d) (?=[%A-Za-z])|(?<=[<>≤≥]) (?=\d)", "\u00a0", part)


def _percent(share: float) -> str:
    return "> 99.9 %" if share > 0.999 else f"{100 * share:.1f} %"
