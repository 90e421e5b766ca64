"""Whether samples cover a window: what was seen at one end of it, or before it, says nothing of the rest."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Final

from pytest_llmperf.records import Window

__all__ = ["LINES_S", "PAGES_S", "gap_in", "short_of"]

PAGES_S: Final = 1.0
"""Between two samples of what is asked for about once a second, or more often."""
LINES_S: Final = 10.0
"""Between two lines of a log that an engine sums its state up in."""
_SHARE: Final = 0.1
"""Of the window that may go unseen at a stretch."""
_AT_AN_END, _BETWEEN = 1.5, 3.0
"""Intervals that may go unseen at either end, and between two samples. In a window of a few intervals half of it."""


def gap_in(times_ns: Sequence[int], window: Window, every_s: float = PAGES_S) -> str | None:
    """Why samples at ``times_ns``, rising, taken every ``every_s`` or more often, do not cover ``window``; None where
    they do. One that is before or after the window counts: it bounds what is not seen."""
    seconds, start, end = window.seconds, window.start_ns, window.end_ns
    long = max(_AT_AN_END * every_s, _SHARE * seconds)
    between = max(long, min(_BETWEEN * every_s, seconds / 2))
    # A line of a log comes when its time has come: a window shorter than that has one or none.
    at_an_end = long if every_s > PAGES_S else min(long, seconds / 2)
    before = [t for t in times_ns if t <= start]
    inside = [t for t in times_ns if start < t < end]
    after = [t for t in times_ns if t >= end]
    marks = [start, *inside, end]
    gaps = [(later - earlier) / 1e9 for earlier, later in pairwise(marks)]
    longest = max(gaps)
    fits = [
        (gaps[0], between if before else at_an_end),
        *((gap, between) for gap in gaps[1:-1]),
        (gaps[-1], between if after else at_an_end),
    ]
    if len(gaps) == 1:  # nobody looked while it went on
        fits = [(longest, between if before and after else 0.0)]
    if all(gap <= allowed for gap, allowed in fits):
        return None
    return f"not seen for {longest:.1f} s of the window of {seconds:.3g} s"


def short_of(times_ns: Sequence[int], window: Window, every_s: float = PAGES_S) -> str | None:
    """Why the span from the first to the last of ``times_ns``, all inside ``window``, is too short to stand for it.

    What happens between two samples of a counter is in their difference: only the ends count.
    """
    allowed = min(max(_AT_AN_END * every_s, _SHARE * window.seconds), window.seconds / 2)
    if not times_ns:
        return "no sample in the window"
    gaps = (times_ns[0] - window.start_ns) / 1e9, (window.end_ns - times_ns[-1]) / 1e9
    if max(gaps) <= allowed:
        return None
    which = "before the first" if gaps[0] > gaps[1] else "after the last"
    return f"not seen for {max(gaps):.1f} s {which} sample in the window of {window.seconds:.3g} s"
