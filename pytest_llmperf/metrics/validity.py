"""Whether a trial can be trusted: reasons that make it INVALID, and notes that only qualify it.

A false INVALID costs its user a day, so a reason needs a deviation that changes the numbers for certain, and it
names the remedy; whatever may be as intended (lengths that stop early, beginnings that a data set's texts share) is
a note. Two findings are neither: gaps between chunks that the client could not tell apart make ICL and ITL alone
invalid (``metrics.reads``, applied by ``metrics.trial.measure``), and a load that was not in a steady state is
unsettled (``metrics.steady``). What the server itself says (its counters, its log) is judged in ``metrics.observed``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from pytest_llmperf.catalog import metric
from pytest_llmperf.metrics.counting import token_truth
from pytest_llmperf.metrics.facts import LoadFacts
from pytest_llmperf.metrics.gpu_validity import gpu_state
from pytest_llmperf.metrics.invariants import check_invariants
from pytest_llmperf.metrics.observed import observed
from pytest_llmperf.metrics.reads import GAP_FAMILIES, gap_fault
from pytest_llmperf.metrics.request import known_tokens, ttft
from pytest_llmperf.metrics.steady import steadiness
from pytest_llmperf.metrics.trial import counts, mean_in_flight
from pytest_llmperf.records import Outcome, Phase, RequestRecord, Trial
from pytest_llmperf.units import format_quantity

__all__ = ["LoadFacts", "Validity", "assess"]

MIN_RATE_SHARE: Final = 0.98
SLIP_FLOOR_S: Final = 0.020
SLIP_SHARE: Final = 0.10
"""The 99th percentile of the slip may be 20 ms or a tenth of the median TTFT, whichever is more."""
MIN_FED: Final = 0.90
"""Closed loop: share of the asked requests in flight; from 98 % down it is a note."""
LOST_FLOOR_S: Final = 0.5
"""In a window of a fraction of a second one hiccup of the machine takes more than a tenth: a note then."""
CLIENT_BUSY: Final = 0.9
"""Share of the wall time; above it times queue behind one another in the client instead of in the server."""
OUTPUT_OFF: Final = 0.005
PROMPT_OFF: Final = 0.20
CUT: Final = 0.05
OVER_TOKENS: Final = 2
OVER_SHARE: Final = 0.1
RETRIED: Final = 0.01
RECONNECTED: Final = 0.05
"""Of the median TTFT: below it a new connection in place of a closed one moves no figure."""

_REMEDY: Final = "give the client a CPU core of its own, or lower request_rate"
_REMEDY_CLOSED: Final = "give the client a CPU core of its own, or lower concurrency"
_TOKEN_FAMILIES: Final = ("tpot", "itl", "output_throughput", "total_throughput", "cpu_seconds_per_mtok")


@dataclass(frozen=True, slots=True)
class Validity:
    """``reasons`` make the trial INVALID."""

    reasons: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    unsettled: str | None = None
    """What changed inside the window and what to do; the numbers are real, but of no single state."""
    steady_checked: bool = False
    """Whether the window was long enough, and its load even enough, to ask."""

    @property
    def valid(self) -> bool:
        return not self.reasons


def assess(trial: Trial, facts: LoadFacts) -> Validity:
    """Judge one trial on its own evidence."""
    measured = [record for record in trial.records if record.phase is Phase.MEASURED]
    ok = [record for record in measured if record.outcome is Outcome.OK]
    late, stalled = _late(trial, facts, measured)
    starved, slower = _fed(trial, facts, measured)
    miscounted, counting = token_truth(ok)
    watched = observed(trial, facts)
    slowed, gpu_notes = gpu_state(trial, facts.gpu)
    reasons = [
        *_incomplete(trial, measured, ok, facts),
        *late,
        *starved,
        *_broken(trial),
        *_overcounted(ok),
        *miscounted,
        *watched.reasons,
        *slowed,
    ]
    notes = [
        *stalled,
        *slower,
        *_counting(ok, facts),
        *counting,
        *_lengths(ok),
        *watched.notes,
        *_cut(measured),
        *_retried(trial),
        *_reads(trial, facts),
        *_busy(trial),
        *gpu_notes,
    ]
    steady = steadiness(trial, facts.request_rate is not None) if facts.stationary and measured else None
    return Validity(
        tuple(reasons), tuple(notes), steady.unsettled if steady else None, steady.checked if steady else False
    )


def _incomplete(
    trial: Trial, measured: Sequence[RequestRecord], ok: Sequence[RequestRecord], facts: LoadFacts
) -> list[str]:
    reasons = []
    if not trial.complete:
        reasons.append("the run was interrupted before its load was complete: run it again")
    elif len(measured) < trial.planned:
        reasons.append(
            f"only {len(measured)} of {trial.planned} planned requests were sent: "
            "see the warnings of the trial, then run it again"
        )
    if not measured:
        reasons.append("no request was measured: raise requests or duration")
    elif not ok and (measured[0].outcome is Outcome.CUT or "error_rate" in facts.asked):
        # Else the error rate says so, as a failure of the server and not of the measurement.
        classes = ", ".join(f"{n} {name}" for name, n in counts(trial).failures.items()) or "all were cut"
        reasons.append(
            f"none of {len(measured)} measured requests finished well: {classes}; "
            "see the failed requests and the log of the server"
        )
    if measured and trial.window.seconds <= 0:
        reasons.append("the measuring window has no length: raise requests or duration")
    return reasons


def _overcounted(ok: Sequence[RequestRecord]) -> list[str]:
    """A server that counts clearly more tokens than it was allowed to make counts something else."""
    known = [(n, record.requested_output_tokens) for record in ok if (n := known_tokens(record)) is not None]
    over = sum(n > asked + max(OVER_TOKENS, OVER_SHARE * asked) for n, asked in known)
    if over <= 0.01 * len(known):
        return []
    counted = f"the server counts more output tokens than max_tokens allows in {over} of {len(known)} requests"
    return [f"{counted}: its usage cannot be trusted; see the records of this trial and the log of the server"]


def _late(trial: Trial, facts: LoadFacts, measured: Sequence[RequestRecord]) -> tuple[list[str], list[str]]:
    """Open loop: reasons and notes where the schedule was not kept.

    Compared with the schedule itself, not with the rate: Poisson draws differ. In fewer than 100 requests the 99th
    percentile of the slip is the largest, and one stall of the machine is not a slow client: a note.
    """
    pairs = [(r.scheduled_ns, r.sent_ns) for r in measured if r.scheduled_ns is not None and r.sent_ns is not None]
    if facts.request_rate is None or len(pairs) < 2:
        return [], []
    due, sent = zip(*pairs, strict=True)
    planned, taken = (max(due) - min(due)) / 1e9, (max(sent) - min(sent)) / 1e9
    share = planned / taken if taken > 0 else 1.0
    found: list[tuple[float, str]] = []
    # In a short run one late request in the normal range moves the share by more than 2 %.
    if share < MIN_RATE_SHARE and taken - planned > SLIP_FLOOR_S:
        missed = f"missed schedule: requests were sent at {100 * share:.1f} % of the planned rate"
        found.append((SLIP_FLOOR_S, f"{missed} (at least {100 * MIN_RATE_SHARE:.0f} %): {_REMEDY}"))
    slip = trial.client.slip_p99_ns
    typical = [value for record in measured if not record.failed and (value := ttft(record)) is not None]
    allowed = max(SLIP_FLOOR_S, SLIP_SHARE * median(typical)) if typical else SLIP_FLOOR_S
    if slip is not None and slip / 1e9 > allowed:
        lag = f"client lag: 1 % of requests were sent {format_quantity(slip / 1e9, 's')} or more after their"
        found.append((allowed, f"{lag} scheduled time (allowed: {format_quantity(allowed, 's')}): {_REMEDY}"))
    second, latest = sorted((sent - due) / 1e9 for due, sent in pairs)[-2:]
    reasons = [reason for limit, reason in found if second > limit]
    if reasons or not found:
        return reasons, []
    return [], [
        f"one request was sent {format_quantity(latest, 's')} after its scheduled time: two make a trial INVALID"
    ]


def _counting(ok: Sequence[RequestRecord], facts: LoadFacts) -> list[str]:
    uncounted = sum(known_tokens(record) is None for record in ok)
    if not uncounted:
        return []
    asked = sorted(name for name in facts.asked if name.startswith(_TOKEN_FAMILIES))
    where = f"; {', '.join(asked)} rests on it" if asked else ""
    every = "any" if uncounted == len(ok) else f"{uncounted} of {len(ok)}"
    return [f"no usage: the server gave no token count for {every} request{'s' if every != 'any' else ''}{where}"]


def _lengths(ok: Sequence[RequestRecord]) -> list[str]:
    notes = []
    outputs = [(r.requested_output_tokens, n) for r in ok if (n := known_tokens(r)) is not None]
    asked, got = sum(want for want, _ in outputs), sum(have for _, have in outputs)
    if asked and abs(got - asked) > OUTPUT_OFF * asked:
        short = sum(have < want for want, have in outputs)
        notes.append(
            f"length mismatch: {got:,} output tokens of {asked:,} requested ({100 * got / asked:.1f} %); "
            f"{short} of {len(outputs)} requests stopped early"
        )
    prompts = [
        (r.requested_input_tokens, r.prompt_tokens)
        for r in ok
        if r.prompt_tokens is not None and r.requested_input_tokens is not None
    ]
    asked, got = sum(want for want, _ in prompts), sum(have for _, have in prompts)
    if asked and abs(got - asked) > PROMPT_OFF * asked:
        notes.append(
            f"length mismatch: prompts had {got:,} tokens where {asked:,} were asked for ({100 * got / asked:.0f} %)"
        )
    return notes


def _cut(measured: Sequence[RequestRecord]) -> list[str]:
    cut = sum(record.outcome is Outcome.CUT for record in measured)
    if cut <= CUT * len(measured):
        return []
    return [f"{cut} of {len(measured)} requests were cut at the end: latencies lean towards short requests"]


def _retried(trial: Trial) -> list[str]:
    """Requests that found their connection closed: worth a word where there are some, and a new connection takes time.

    Some servers close every connection after a streamed response, which nobody can change; on one machine it costs
    microseconds.
    """
    retried = trial.client.retried
    if retried <= RETRIED * len(trial.records):
        return []
    opened = [(r.connected_ns - r.connect_start_ns) / 1e9 for r in trial.records
              if r.connected_ns is not None and r.connect_start_ns is not None]  # fmt: skip
    waits = [value for record in trial.records if not record.failed and (value := ttft(record)) is not None]
    if opened and waits and median(opened) < RECONNECTED * median(waits):
        return []
    twice = f"{retried} of {len(trial.records)} requests were sent a second time"
    return [f"{twice}, since the server closed their idle connection just then: raise its keep-alive time"]


def _busy(trial: Trial) -> list[str]:
    """A client that computed nearly all the time: a note, since it parses while it waits; lateness shows by itself."""
    client = trial.client
    load = client.busiest or (client.cpu_seconds / client.wall_seconds if client.wall_seconds > 0 else 0.0)
    if load <= CLIENT_BUSY:
        return []
    return [f"the client was busy for {100 * load:.0f} % of the time: it may be what limits the throughput"]


def _fed(trial: Trial, facts: LoadFacts, measured: Sequence[RequestRecord]) -> tuple[list[str], list[str]]:
    """Closed loop: reasons and notes where fewer requests were in flight than asked for, while there were more to send.

    Between the end of one request and the next send lie the client's wake-up and, where the server closes its
    connections, the next connect. What they take is missing from the throughput. A load of less than two requests
    per stream is over before it can be told.
    """
    start = trial.window.start_ns
    end = min(trial.window.end_ns, max((r.sent_ns or 0 for r in measured), default=0))
    if facts.concurrency is None or not facts.stationary or end <= start or len(measured) < 2 * facts.concurrency:
        return [], []
    share = mean_in_flight(trial.records, start, end) / facts.concurrency
    if share >= MIN_RATE_SHARE:
        return [], []
    flying = f"{share * facts.concurrency:.2g} of {facts.concurrency} requests in flight on average"
    if share >= MIN_FED or (1 - share) * (end - start) / 1e9 <= LOST_FLOOR_S:
        return [], [f"{flying}: the client was late with the next send, throughput is too low by as much"]
    lag = trial.client.wake_lag_p99_ns
    waited = "" if lag is None else f", 1 % of reads waited {format_quantity(lag / 1e9, 's')} or more for the client"
    return [f"missed load: {flying} (at least {100 * MIN_FED:.0f} %){waited}: {_REMEDY_CLOSED}"], []


def _broken(trial: Trial) -> list[str]:
    fault = "a fault of pytest-llmperf, please report it with the records of this trial"
    return [f"{problem} ({fault})" for problem in check_invariants(trial)]


def _reads(trial: Trial, facts: LoadFacts) -> list[str]:
    notes = []
    if trial.client.stamps == "user":
        notes.append("no kernel receive stamps: times were taken when the client got round to reading")
    fault = gap_fault([trial.client])
    # Where a limit was set on them, its check says so.
    if fault is not None and not any(metric(name).family.name in GAP_FAMILIES for name in facts.asked):
        notes.append(f"ICL and ITL are INVALID: {fault}")
    return notes
