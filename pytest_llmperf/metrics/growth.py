"""What an engine's counters and histograms grew by between pages of its metrics.

They only grow, so a window is the difference of two pages: of the last one at or before its start and the first one
at or after its end, where there are such. The pages of several processes are differenced apart, then added up: where
one of them restarts, the sum need not fall.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from pytest_llmperf.metrics.coverage import short_of
from pytest_llmperf.records import Trial, Window
from pytest_llmperf.samples import COUNTERS, Buckets, Counter, EngineSample, Histogram, Quantity

__all__ = [
    "Growth",
    "falls",
    "growth",
    "histogram_growth",
    "is_several",
    "mean_growth",
    "pages_of",
    "pooled",
    "unstated",
]

_SEVERAL: Final = 2


@dataclass(frozen=True, slots=True)
class Growth:
    """How much counters grew over ``seconds``."""

    by: Mapping[Counter, float]
    seconds: float


@dataclass(frozen=True, slots=True)
class _Step:
    """Two pages of one process in turn; what a page leaves out is as the page before had it."""

    before: EngineSample
    """Empty where the process was restarted in between: it began at 0."""
    after: EngineSample
    restarted: bool


def pages_of(trial: Trial) -> list[EngineSample]:
    """Its pages of metrics, without lines of the log."""
    return [sample for sample in trial.telemetry.engine if not sample.logged]


def falls(samples: Sequence[EngineSample]) -> int:
    """How often a counter or histogram of one process was lower than before: it was restarted, or another one
    answered. Of several processes the most."""
    return max((sum(step.restarted for step in _steps(pages)) for pages in _processes(samples)), default=0)


def is_several(trial: Trial) -> bool:
    """Whether the pages seem to be of several servers, that answer in turn."""
    return falls(pages_of(trial)) >= _SEVERAL


def unstated(trial: Trial, quantity: Quantity, *, whole: bool = False) -> str | None:
    """Why the pages that state ``quantity`` do not tell how much it grew over the window, or the ``whole`` load; None
    where they do, or where no page states it."""
    pages, window = pages_of(trial), _load(trial) if whole else trial.window
    states = [page.t_ns for page in pages if quantity in page.values or quantity in page.histograms]
    if not states:
        return None
    if _begins_unknown(pages, quantity, 0 if whole else _around(trial, pages)[0]):
        return "the engine's first pages state it as what it cannot be"
    # One that is on no page at first began at 0 afterwards: any page before bounds it.
    ends = [min(max(t, window.start_ns), window.end_ns) for t in (pages[0].t_ns, states[-1])]
    gap = short_of(ends, window)
    return None if gap is None else f"the engine's pages leave some of the window out: {gap}"


def _load(trial: Trial) -> Window:
    """From the first request to the last answer, the window included."""
    sent = [record.sent_ns for record in trial.records if record.sent_ns is not None]
    closed = [record.closed_ns for record in trial.records if record.closed_ns is not None]
    return Window(min((trial.window.start_ns, *sent)), max((trial.window.end_ns, *closed)))


def growth(trial: Trial, quantities: Sequence[Counter], *, whole: bool = False) -> Growth | None:
    """Growth of ``quantities`` around the window, or over the ``whole`` load. After a fall a counter began at 0, and
    so did one that is on no page before: engines make some counters when they first count.

    None where no page states one of them, there are fewer than two, they are of several servers, or the
    first ones state what cannot be.
    """
    pages = pages_of(trial)
    told = all(any(quantity in page.values for page in pages) for quantity in quantities)
    first, last = (0, len(pages) - 1) if whole else _around(trial, pages)
    if not told or last <= first or is_several(trial):
        return None
    if any(_begins_unknown(pages, quantity, first) for quantity in quantities):
        return None
    steps = [step for each in _processes(pages) for step in list(_steps(each))[first:last]]
    by = {
        name: math.fsum(step.after.values.get(name, 0.0) - step.before.values.get(name, 0.0) for step in steps)
        for name in quantities
    }
    return Growth(by, (pages[last].t_ns - pages[first].t_ns) / 1e9)


def histogram_growth(trial: Trial, name: Histogram, *, whole: bool = False) -> tuple[Buckets, float] | None:
    """What was added to a histogram, and over how many seconds; as ``growth``."""
    pages = pages_of(trial)
    first, last = (0, len(pages) - 1) if whole else _around(trial, pages)
    if not any(name in page.histograms for page in pages) or last <= first or is_several(trial):
        return None
    if _begins_unknown(pages, name, first):
        return None
    steps = [step for each in _processes(pages) for step in list(_steps(each))[first:last]]
    added = [_added(step.before.histograms.get(name), after) for step in steps
             if (after := step.after.histograms.get(name))]  # fmt: skip
    return pooled(added) or Buckets(0, 0), (pages[last].t_ns - pages[first].t_ns) / 1e9


def mean_growth(trial: Trial, name: Histogram) -> float | None:
    """Mean in seconds of what a histogram observed over the whole load; None where it is not told."""
    found = histogram_growth(trial, name, whole=True)
    return found[0].total / found[0].count if found and found[0].count > 0 else None


def pooled(parts: Sequence[Buckets]) -> Buckets | None:
    """The sum of those that observed anything; without buckets where their bounds differ. None for no part."""
    counted = [part for part in parts if part.count] or parts[:1]
    if not counted:
        return None
    bounds = counted[0].bounds if len({part.bounds for part in counted}) == 1 else ()
    counts = tuple(map(sum, zip(*(part.counts for part in counted), strict=True))) if bounds else ()
    return Buckets(sum(part.count for part in counted), math.fsum(part.total for part in counted), bounds, counts)


def _processes(samples: Sequence[EngineSample]) -> list[tuple[EngineSample, ...]]:
    """The pages of each process; of samples that do not all have as many, the samples themselves."""
    apart = [sample.pages or (sample,) for sample in samples]
    if len({len(pages) for pages in apart}) > 1:
        apart = [(sample,) for sample in samples]
    return list(zip(*apart, strict=True))


def _steps(pages: Sequence[EngineSample]) -> Iterator[_Step]:
    known = pages[0]
    for _, page in pairwise(pages):
        restarted = _fell(known, page)
        before = EngineSample(known.t_ns, {}) if restarted else known
        values, histograms = {**before.values, **page.values}, {**before.histograms, **page.histograms}
        known = EngineSample(page.t_ns, values, histograms)
        yield _Step(before, known, restarted)


def _fell(before: EngineSample, after: EngineSample) -> bool:
    numbers = [(before.values[q], after.values[q]) for q in before.values.keys() & after.values.keys() & COUNTERS]
    both = before.histograms.keys() & after.histograms.keys()
    numbers += [(before.histograms[q].count, after.histograms[q].count) for q in both]
    return any(later < earlier for earlier, later in numbers)


def _around(trial: Trial, pages: Sequence[EngineSample]) -> tuple[int, int]:
    """From the last page at or before the start of the window to the first at or after its end."""
    before = [at for at, page in enumerate(pages) if page.t_ns <= trial.window.start_ns]
    after = [at for at, page in enumerate(pages) if page.t_ns >= trial.window.end_ns]
    return max(before, default=0), min(after, default=len(pages) - 1)


def _begins_unknown(pages: Sequence[EngineSample], quantity: Quantity, first: int) -> bool:
    """Whether nobody knows where ``quantity`` began: it was there on the first pages, as what it cannot be."""
    stated = next((at for at, page in enumerate(pages) if quantity in page.values or quantity in page.histograms), None)
    return stated is not None and stated > first and any(quantity in page.untold for page in pages[:stated])


def _added(before: Buckets | None, after: Buckets) -> Buckets:
    if before is None or not before.count:
        return after
    same = before.bounds == after.bounds
    counts = tuple(b - a for a, b in zip(before.counts, after.counts, strict=True)) if same else ()
    return Buckets(after.count - before.count, after.total - before.total, after.bounds if same else (), counts)
