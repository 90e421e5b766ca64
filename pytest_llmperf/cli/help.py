"""``pytest-llmperf help TOPIC``: what the names in markers and reports mean."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Final

from pytest_llmperf.catalog import FAMILIES, METRICS, UNMEASURED, Family
from pytest_llmperf.errors import UsageError, nearest
from pytest_llmperf.units import DIMENSIONS

__all__ = ["SUMMARY", "TOPICS", "configure"]

SUMMARY = "explain a topic: metrics, units, records, exit-codes, verdicts, gate"


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
    meaning = family.meaning + (" (not measured by this version)" if family.name in UNMEASURED else "")
    return f"  {family.name:<22} {family.unit:<6} {better:<17} {family.definition:<24} {meaning}"


def _records() -> str:
    return """\
records/*.jsonl.gz beside report.json: one JSON object per request, in the order of the plan, warm-up included.
All times are integer ns of one monotonic clock; null where it did not come to that.

  index phase            position in the plan; "warmup" or "measured"
  scheduled_ns           open loop: the planned time, which latencies count from
  cap_wait_ns            how long the cap on what is in flight held it back after that
  connect_start_ns connected_ns   opening the connection, TLS included; null where an open one was used again
  sent_ns                just before the first byte of the request was written; closed loop: latencies count from here
  first_byte_ns          first byte of the response
  first_output_ns first_answer_ns last_output_ns   first output, first that is not reasoning, last output
  first_event_ns last_event_ns   first and last event of the generation, bearing output or not
  closed_ns              end of the response
  chunk_ns               times of the output-bearing chunks: the first in full, then the difference to the one before
  chunk_tokens           tokens of each chunk where the server counts them, else null
  prompt_tokens output_tokens cached_tokens token_source   as the server counts them, and where the counts come from
  tokenizer_tokens       output tokens by the configured tokenizer, beside what the server counts
  requested_input_tokens requested_output_tokens            what the plan asked for
  streamed               false: the reply was asked for as a whole
  conversation turn      number of the conversation in the plan, position in it
  outcome detail         "ok", "cut" (ended by us), or the class of the failure and what exactly happened
  finish_reason http_status connection                      as received; number of the connection

Percentiles interpolate linearly between order statistics (numpy's default); a failed request counts as infinitely slow.
TPOT = (last_output_ns - first_output_ns) / (output_tokens - tokens of the first chunk, 1 where that is not told); it is
not defined for a request with a single token, or where all chunks have one time stamp. Means are over ok requests.

telemetry/*.jsonl.gz beside them: what was sampled of the server meanwhile. The first object has what is told once:

  gpus                   NVML indices of its GPUs; null: it computes on the CPU
  notes                  why a source is absent, and gaps of the sampler
  preemption_warnings    new lines of the server's log that say that a request was preempted; null: no such log
  log_errors             the first lines of the log, written while the load ran, that report an error

Then one for each sample, at t_ns of the same clock; a field that was not told is absent. Of the host:

  rss_bytes cpu_seconds processes   resident memory of the server's process tree, its CPU time so far, its processes

Of one GPU (what costs the driver more is asked for more seldom):

  gpu used_bytes server_bytes       NVML index, memory in use, and that of the server's processes
  foreign_pids                      processes that compute on it and are not the server's
  utilization                       share of the driver's sampling period in which a kernel ran
  power_w energy_j temperature_c    power; energy since the driver was loaded; temperature
  sm_clock_mhz memory_clock_mhz     clocks
  throttle                          NVML's clock event reasons, a bit mask
  sm_activity dram_activity         share of SMs with a warp on them, and of the peak memory bandwidth (GPM)

Of the engine's own page of metrics, under the names that every engine has here:

  values       running waiting (requests), kv_usage (ratio), kv_capacity_tokens, acceptance_length (tokens per check of
               drafts), prompt_throughput generation_throughput (tokens per second), and what only grows since the
               server began: preemptions, prefix_queries prefix_hits prompt_tokens accepted_tokens (tokens), requests
               (finished well), drafts (verification steps)
  histograms   ttft queue_wait prefill_time decode_time e2e: count and total (seconds) of what was observed since
               the server began, and for each upper bound of bounds in counts how many lay at or below it
  pages        the same for each process of the server, where several are read
  untold       what the page states as something that it cannot be (negative, no number, a share over 1), and how
  logged       true: lines of the server's log told it, since no page did

peak_memory is the largest rss_bytes or, on GPUs, the largest sum of server_bytes (used_bytes where any is null) over
the samples of one time; memory_growth is the median of the slopes between all pairs of the same,
inside the window."""


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
  1   baseline list: a file of the store is refused; baseline prune: nothing removed, as --yes is missing;
      doctor gpu: no GPU can be seen; doctor reap: something stale is left (it could not be ended, or --dry-run)
  2   wrong usage, or a file that is missing, unreadable or of an unknown schema; baseline promote: refused
  baseline refresh and doctor noise end as the pytest run that they start"""


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


def _gate() -> str:
    return """\
How a regression is told from noise, and why it takes the launches that it takes.

The unit is one launch of the server. Requests of a launch share its memory layout, compiled kernels and clocks; a
thousand of them say much about that launch and little about the next. So each launch gives one value per metric, over
all its replays, and a verdict rests on several launches. A percentile needs ten requests beyond it in each launch to be
gated (p95: 200, p99: 1000); with fewer it is shown, not judged.

A/B (--llmperf-ab) starts both servers in turn, B C, C B, B C: a host that warms up or has a bad minute hits both, and a
straight drift is taken out. After each block from the second on it is asked whether a regression is shown, then whether
one is ruled out; else one more block runs, 8 at most. "3 %" means: FAIL needs a change of about 3 % or more that is
shown, PASS needs a change of 6 % or more ruled out. In between no honest answer exists, and none is given.

A stored baseline was measured on another day. What the day did to all launches together no number of new ones averages
out. So it can acquit (PASS: it fits in with what several days gave), and convicts only of the gross: every launch
beyond the whole limit. All else is INCONCLUSIVE, with the A/B command that decides it. Three sessions on different days
are worth more than many launches on one; a baseline of one session rarely acquits. A live server (--llmperf-url) is one
launch, perhaps an unlucky one: it is acquitted or left open, never convicted.

What each guard is for:
  runner's noise    two blocks cannot know their own noise; that of earlier jobs on this runner counts in (at most as
                    much as four degrees of freedom, so a stale memory cannot mislead). None yet: cautious figures
  job noise         a job noisier than its runner usually is widens every interval; from twice the variance on p-values
                    double as well
  outlier blocks    from four blocks on, up to a quarter that something outside the server upset are left out, and named
  all metrics       twenty metrics at 1 % each would fail one healthy build in six; the 1 % holds for all metrics and
                    all looks of a test together
  smallest effect   a change of half the limit is not called a regression, however certain it is
  widened limits    a tail too noisy for its limit is ruled out beyond a wider one, which the report prints; never for
                    ttft_p50, tpot_mean, output_throughput
  too noisy         when the blocks left could not decide, the run stops and says how many would
  errors            over 1 % failed requests in two launches is FAIL; a value that is missing never passes
  continuing        a rerun of an undecided comparison goes on where it ended; starting anew until it passes would cheat

Same servers fail at most 1 test in 100 (usually under 1 in 300). A regression of 5 % on a runner whose launches vary by
1 % is found in 98 of 100 tests, in 4 to 5 blocks; where they vary by 2 %, in about 60; 10 % is found nearly always."""


TOPICS: Final[dict[str, Callable[[], str]]] = {
    "metrics": _metrics,
    "units": _units,
    "records": _records,
    "exit-codes": _exit_codes,
    "verdicts": _verdicts,
    "gate": _gate,
}
