"""``pytest-llmperf help TOPIC``: what the names in markers and reports mean."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Final

from pytest_llmperf.catalog import FAMILIES, METRICS, Family
from pytest_llmperf.errors import UsageError, nearest
from pytest_llmperf.units import DIMENSIONS

__all__ = ["SUMMARY", "TOPICS", "configure"]

SUMMARY = "explain a topic: metrics, units, exit-codes, verdicts"


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("topic", nargs="?", metavar="TOPIC", help=", ".join(TOPICS))
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    if arguments.topic is None:
        print(f"topics: {', '.join(TOPICS)}")
        return 0
    if arguments.topic not in TOPICS:
        raise UsageError(f"unknown topic {arguments.topic!r}{nearest(arguments.topic, tuple(TOPICS))}")
    print(TOPICS[arguments.topic]())
    return 0


def _metrics() -> str:
    scalars = {entry.family.name: entry.family for entry in METRICS.values() if entry.family.name not in FAMILIES}
    return "\n".join(
        (
            "Per request: NAME_mean or a percentile, NAME_p50 NAME_p95 NAME_p99 NAME_p99_9 ...",
            *(_row(family) for family in FAMILIES.values()),
            "",
            "Per run:",
            *(_row(family) for family in scalars.values()),
        )
    )


def _row(family: Family) -> str:
    better = f"{family.better} is better"
    return f"  {family.name:<22} {family.unit:<6} {better:<17} {family.definition:<24} {family.meaning}"


def _units() -> str:
    lines = [
        "A quantity is a number, an optional space and a unit, case as written: '500 ms', '72 GiB', '1 %'.",
        "",
    ]
    for base, spellings in DIMENSIONS.items():
        names = " ".join(name for name in spellings if name)
        bare = "or a bare number" if "" in spellings else ""
        lines.append(f"  {base:<6} {f'{names} {bare}'.strip()}")
    return "\n".join(lines)


def _exit_codes() -> str:
    return """\
pytest:
  0   nothing failed
  1   something failed; a server that does not start is that too
  2-5 pytest's own: interrupted, internal error, wrong usage, no tests collected
  10  the only failures are undecided tests, under --llmperf-undecided fail
  12  the only trouble is INFRA, which says nothing about performance
The first of 2-5, 1, 10, 12 that applies.

pytest-llmperf:
  0   done
  2   wrong usage, or a file that is missing, unreadable or of an unknown schema"""


def _verdicts() -> str:
    return """\
Each check has a verdict; a test shows the strongest of them, in this order:
  INVALID       the trial cannot be trusted, or the metric was not measured; fails the test
  CONFOUNDED    more differs than the one declared variable; fails the test
  FAIL          a limit is missed; fails the test
  INCONCLUSIVE  the data cannot decide it, and the check says how many requests would;
                fails the test with --llmperf-undecided fail
  NO_BASELINE   a comparison was asked for and there is nothing to compare with; as INCONCLUSIVE
  PASS          every check passed
Beside them: INFRA, a pytest error for trouble that says nothing about performance, and NOT_RUN."""


TOPICS: Final[dict[str, Callable[[], str]]] = {
    "metrics": _metrics,
    "units": _units,
    "exit-codes": _exit_codes,
    "verdicts": _verdicts,
}
