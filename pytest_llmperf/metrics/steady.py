"""Was the load in a steady state while it was measured?

Three series over the window, each in at most 64 means: TTFT and TPOT of the ok requests in the order of their start,
and (closed loop; in open loop the arrivals decide it) the output token rate. One mean spans at least one *generation*:
as many requests as are in flight together. They share their queue and their batch, and in closed loop they start and
end as a convoy, so anything finer would take the convoy's own rhythm for a change. In open loop only requests that are
being answered count, or an endless queue would hide itself; its TTFT is held against stricter limits, since a queue
near capacity remembers more than one generation. A window of fewer than 8 generations cannot tell and is not checked.

Each series is asked for a trend and for a change of level (``stats.stationarity``). It must be shown *and* be at
least a tenth of the mean: a drift of 1 % can be certain and harmless, and a trend of 10 % puts the mean 5 % off what
the load has come to. Values are winsorised at the 5th and 95th percentile first, so that one stall is no level.

The check looks only at the part of the window in which the load was fed: after the last send a load of a given number
of requests drains, and its falling rate is the plan's doing. Where the plan itself changes the load (ramp, trace) there
is no steady state to check: ``LoadFacts.stationary`` is False and nothing is asked.

An unsettled trial is not INVALID: the numbers are what happened, product.md does not list it there, and on a shared
machine one load in five would fail for a neighbour's doing. But a mean over two states describes neither, and another
run would mix them differently; so it is a flag of its own, shown above the numbers with its remedy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Final

from pytest_llmperf.metrics.chunks import credit, flatten
from pytest_llmperf.metrics.request import e2e, tpot, ttft
from pytest_llmperf.records import Outcome, Phase, RequestRecord, Trial
from pytest_llmperf.stats.stationarity import FEWEST, MOST, Memory, Shift, level_change, trend
from pytest_llmperf.units import format_quantity

__all__ = ["MIN_CHANGE", "Steadiness", "steadiness"]

MIN_CHANGE: Final = 0.10
_TOKENS: Final = "output rate"
_CHUNKS: Final = "chunk rate"
_CLIPPED: Final = 0.05
_EARLY: Final = 0.4
"""A change for the better before this share of the window is a warm-up that was too short."""


@dataclass(frozen=True, slots=True)
class Steadiness:
    """``unsettled`` says what changed and what to do; ``checked`` is False where the window cannot tell."""

    checked: bool
    unsettled: str | None = None


def steadiness(trial: Trial, open_loop: bool) -> Steadiness:
    """Look for a trend and for a change of level inside the window of ``trial``."""
    ok = sorted((r for r in trial.records if _counts(r)), key=lambda r: r.start_ns or 0)
    lengths = [value for record in ok if (value := e2e(record)) is not None and value > 0]
    start_ns = trial.window.start_ns
    end_ns = min(trial.window.end_ns, max((r.sent_ns or 0 for r in ok), default=0))
    if not lengths or end_ns <= start_ns:
        return Steadiness(False)
    seconds, typical = (end_ns - start_ns) / 1e9, median(lengths)
    flying = _in_flight(trial, start_ns, end_ns, open_loop)
    points = min(MOST, int(len(ok) / max(1.0, flying)))
    # Requests begun in the last generation end while the load drains, or were cut before they could end.
    whole = [r for r in ok if (r.start_ns or 0) <= end_ns - typical * 1e9]
    series = {
        "TTFT": _means([v for r in ok if (v := ttft(r)) is not None], points),
        "TPOT": _means([v for r in whole if (v := tpot(r)) is not None], points),
    }
    if not open_loop:
        series |= _rates(trial, start_ns, end_ns, min(MOST, int(seconds / typical)))
    usable = {name: values for name, values in series.items() if len(values) >= FEWEST and sum(values) > 0}
    found = [
        (name, shift)
        for name, values in usable.items()
        if (shift := _shift(values, "long" if open_loop and name == "TTFT" else "short"))
    ]
    if not found:
        return Steadiness(bool(usable))
    found.sort(key=lambda item: -abs(item[1].change))
    said = "; ".join(_say(name, shift) for name, shift in found[:2])
    return Steadiness(True, f"{said}: {_remedy(found, open_loop)}")


def _counts(record: RequestRecord) -> bool:
    return record.phase is Phase.MEASURED and record.outcome is Outcome.OK and record.start_ns is not None


def _in_flight(trial: Trial, start_ns: int, end_ns: int, open_loop: bool) -> float:
    """Requests between send (open loop: first output) and last output, on average."""
    overlap = 0
    for record in trial.records:
        begun, over = record.first_output_ns if open_loop else record.sent_ns, record.last_output_ns
        if begun is not None and over is not None:
            overlap += max(0, min(over, end_ns) - max(begun, start_ns))
    return overlap / (end_ns - start_ns)


def _means(values: Sequence[float], points: int) -> list[float]:
    """Means of ``points`` successive groups of equal size of the winsorised values."""
    n, points = len(values), min(points, len(values))
    if points < FEWEST:
        return []
    ordered = sorted(values)
    low, high = ordered[round(_CLIPPED * (n - 1))], ordered[round((1 - _CLIPPED) * (n - 1))]
    clipped = [min(max(value, low), high) for value in values]
    edges = [round(i * n / points) for i in range(points + 1)]
    return [sum(clipped[a:b]) / (b - a) for a, b in pairwise(edges)]


def _rates(trial: Trial, start_ns: int, end_ns: int, points: int) -> dict[str, list[float]]:
    """Output tokens per second in ``points`` equal parts; chunks where some requests have no token count.

    Requests that were cut have none unless the server counts as it goes; a change of the rate shows in chunks too.
    """
    import numpy as np

    if points < FEWEST:
        return {}
    credited = credit(trial.records)
    name, stamps, shares = _TOKENS, credited.stamps, credited.shares
    if len(credited.unknown):
        name, stamps = _CHUNKS, flatten(trial.records).stamps
        shares = np.ones(len(stamps))
    amounts, _ = np.histogram(stamps, points, (start_ns, end_ns), weights=shares)
    return {name: [float(amount) for amount in amounts / ((end_ns - start_ns) / 1e9 / points)]}


def _shift(values: Sequence[float], memory: Memory) -> Shift | None:
    """The change that is shown and large enough to matter; of two the one that describes the series better."""
    both = (level_change(values, memory), trend(values, memory))
    shown = [shift for shift in both if shift.shown and abs(shift.change) >= MIN_CHANGE]
    return min(shown, key=lambda shift: shift.left, default=None)


def _say(name: str, shift: Shift) -> str:
    before, after = (_quantity(name, max(0.0, value)) for value in (shift.before, shift.after))
    where = "in the course of" if shift.at is None else f"after {100 * shift.at:.0f} % of"
    return f"{name} {'rose' if shift.change > 0 else 'fell'} from {before} to {after} {where} the window"


def _quantity(name: str, value: float) -> str:
    if name == _CHUNKS:
        return f"{value:,.0f} chunks/s"
    return format_quantity(value, "tok/s" if name == _TOKENS else "s")


def _remedy(found: Sequence[tuple[str, Shift]], open_loop: bool) -> str:
    name, shift = found[0]
    worse = shift.change < 0 if name in (_TOKENS, _CHUNKS) else shift.change > 0
    if not worse and (shift.at is None or shift.at <= _EARLY):
        return "the server was still warming up; use a longer warmup="
    if worse and open_loop and any(which == "TTFT" for which, _ in found):
        return "the queue grows; lower request_rate, or measure longer if the server can catch up"
    if worse and shift.at is None:
        return "the server slows down under this load; look at memory, clocks and other load, then measure longer"
    return "the window holds two states; look for other load on the machine, then measure longer (duration=, requests=)"
