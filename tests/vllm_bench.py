"""The latencies of ``vllm bench serve`` out of our records, by its definitions, and why they differ from ours.

Its definitions (since its change of September 2026 that ends E2EL at the last event with choices): everything counts
from the send; TTFT ends at the first event with choices, whatever is in it; ITL are the gaps between all such events;
TPOT is (E2EL - TTFT) / (output tokens - 1), and there is none for a single token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from pytest_llmperf.metrics.request import e2e, tpot, ttft
from pytest_llmperf.records import RequestRecord

__all__ = ["Difference", "VllmBench", "convert", "explain", "reference"]


@dataclass(frozen=True)
class VllmBench:
    """One request; seconds."""

    ttft: float
    tpot: float | None
    itl: tuple[float, ...]
    e2el: float


@dataclass(frozen=True)
class Difference:
    """Why one of their figures is not ours: theirs = ours + ``seconds``, for ``cause``."""

    figure: str
    seconds: float
    cause: str


def convert(record: RequestRecord) -> VllmBench:
    """What ``vllm bench serve`` would say of the request.

    Records keep the first and the last event and those that bore output. Events without output between them are not
    in ``itl`` one by one: their gaps are joined, the sum is the same. So are events of one read: gaps of zero.
    """
    sent, first, last = record.sent_ns, record.first_event_ns, record.last_event_ns
    assert sent is not None
    assert first is not None
    assert last is not None
    stamps = sorted({first, *record.chunk_ns, last})
    tokens = record.output_tokens
    span = (last - first) / 1e9
    return VllmBench(
        ttft=(first - sent) / 1e9,
        tpot=span / (tokens - 1) if tokens is not None and tokens > 1 else None,
        itl=tuple((later - earlier) / 1e9 for earlier, later in pairwise(stamps)),
        e2el=(last - sent) / 1e9,
    )


def explain(record: RequestRecord) -> list[Difference]:
    """Every step from our figures to theirs; those of a figure add up to the whole difference."""
    theirs, found = convert(record), []
    assert record.sent_ns is not None
    assert record.start_ns is not None
    waited = (record.start_ns - record.sent_ns) / 1e9
    early = ((record.first_event_ns or 0) - (record.first_output_ns or 0)) / 1e9
    late = ((record.last_event_ns or 0) - (record.last_output_ns or 0)) / 1e9
    for figure in ("ttft", "e2e"):
        found.append(Difference(figure, waited, "counts from the send, not from the planned time"))
    found.append(Difference("ttft", early, "an event without output (role, progress) ends it"))
    found.append(Difference("e2e", late, "an event after the last output (finish reason) ends it"))
    found.append(Difference("sum of gaps", late - early, "gaps before the first and after the last output are ITL"))
    ours, tokens = tpot(record), record.output_tokens
    if ours is not None and theirs.tpot is not None and tokens is not None:
        in_first = record.chunk_tokens[0] if record.chunk_tokens else 1
        span = ours * (tokens - in_first)
        found.append(Difference("tpot", (late - early) / (tokens - 1), "those gaps are in its numerator"))
        divided = span / (tokens - 1) - ours
        found.append(Difference("tpot", divided, "divides by all tokens but one, not by those after the first chunk"))
    return [difference for difference in found if difference.seconds]


def total(differences: Sequence[Difference], figure: str) -> float:
    """What the differences of one figure come to."""
    return sum(difference.seconds for difference in differences if difference.figure == figure)


def ours(record: RequestRecord) -> dict[str, float | None]:
    """Our figures under the names that ``explain`` uses."""
    gaps = record.chunk_ns[-1] - record.chunk_ns[0]
    return {"ttft": ttft(record), "e2e": e2e(record), "tpot": tpot(record), "sum of gaps": gaps / 1e9}


def reference(sent_ns: int, events: Sequence[tuple[int, Any]]) -> VllmBench:
    """The same figures straight from (time, parsed event), without anything of ours."""
    begun = previous = 0
    gaps: list[float] = []
    tokens = 1
    for at, event in events:
        if event == "[DONE]":
            continue
        if event.get("choices"):
            if begun == 0:
                begun = at
            else:
                gaps.append((at - previous) / 1e9)
            previous = at
        elif event.get("usage"):
            tokens = event["usage"]["completion_tokens"]
    first, last = (begun - sent_ns) / 1e9, (previous - sent_ns) / 1e9
    return VllmBench(first, (last - first) / (tokens - 1) if tokens > 1 else None, tuple(gaps), last)
