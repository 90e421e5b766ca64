"""``pytest-llmperf help TOPIC``: what the names in markers and reports mean."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Final

from pytest_llmperf.catalog import FAMILIES, METRICS, Family
from pytest_llmperf.errors import UsageError, nearest
from pytest_llmperf.units import DIMENSIONS

__all__ = ["SUMMARY", "TOPICS", "configure"]

SUMMARY = "explain a topic: metrics, units, records, exit-codes, verdicts"


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


def _records() -> str:
    return """\
records/*.jsonl.gz beside report.json: one JSON object per request, in the order of the plan, warm-up included.
All times are integer ns of one monotonic clock; null where it did not come to that.

  index phase            position in the plan; "warmup" or "measured"
  scheduled_ns           open loop: the planned time, which latencies count from
  connect_start_ns connected_ns   opening the connection, TLS included; null where an open one was used again
  sent_ns                just before the first byte of the request was written; closed loop: latencies count from here
  first_byte_ns          first byte of the response
  first_output_ns first_answer_ns last_output_ns   first output, first that is not reasoning, last output
  closed_ns              end of the response
  chunk_ns               times of the output-bearing chunks: the first in full, then the difference to the one before
  chunk_tokens           tokens of each chunk where the server counts them, else null
  prompt_tokens output_tokens cached_tokens token_source   as the server counts them, and where the counts come from
  requested_input_tokens requested_output_tokens            what the plan asked for
  outcome detail         "ok", "cut" (ended by us), or the class of the failure and what exactly happened
  finish_reason http_status connection                      as received; number of the connection

Percentiles interpolate linearly between order statistics (numpy's default); a failed request counts as infinitely slow.
TPOT = (last_output_ns - first_output_ns) / (output_tokens - tokens of the first chunk, 1 where that is not told); it is
not defined for a request with a single token, or where all chunks have one time stamp. Means are over ok requests."""


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
  1   baseline list: a file of the store is refused; baseline prune: nothing removed, as --yes is missing
  2   wrong usage, or a file that is missing, unreadable or of an unknown schema; baseline promote: refused
  baseline refresh ends as the pytest run that it starts"""


def _verdicts() -> str:
    return """\
Each check has a verdict; a test shows the strongest of them, in this order:
  INVALID       the trial cannot be trusted, the metric was not measured, or expects= is unmet; fails the test
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
    "records": _records,
    "exit-codes": _exit_codes,
    "verdicts": _verdicts,
}
