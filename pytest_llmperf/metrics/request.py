"""Formulas on one request. Seconds; None where a value is not defined, never 0 in its place."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import islice, pairwise
from operator import sub
from typing import Final

from pytest_llmperf.records import RequestRecord

__all__ = [
    "PER_REQUEST",
    "connect_time",
    "e2e",
    "first_chunk_known",
    "icl_gaps",
    "itl_gaps",
    "known_tokens",
    "longest_gap",
    "output_ns",
    "tpot",
    "ttfb",
    "ttfot",
    "ttft",
]

_NS: Final = 1e-9


def ttft(record: RequestRecord) -> float | None:
    """first_output - start, where start is the schedule (open loop) or the send; None for a reply not streamed."""
    return _span(record.start_ns, record.first_output_ns) if record.streamed else None


def output_ns(record: RequestRecord) -> Sequence[int]:
    """When output came: the chunks, or the end of a reply that was not streamed."""
    if record.streamed:
        return record.chunk_ns
    return () if record.last_output_ns is None else (record.last_output_ns,)


def ttfb(record: RequestRecord) -> float | None:
    """first_byte - start."""
    return _span(record.start_ns, record.first_byte_ns)


def ttfot(record: RequestRecord) -> float | None:
    """first_answer - start; None for a reply of reasoning alone, or one not streamed."""
    return _span(record.start_ns, record.first_answer_ns) if record.streamed else None


def e2e(record: RequestRecord) -> float | None:
    """last_output - start. Usage chunk, terminator and close of the stream are not in it."""
    return _span(record.start_ns, record.last_output_ns)


def connect_time(record: RequestRecord) -> float | None:
    """connected - connect_start, TLS included; None where an open connection was used again."""
    return _span(record.connect_start_ns, record.connected_ns)


def tpot(record: RequestRecord) -> float | None:
    """(last_output - first_output) / (output tokens - tokens in the first chunk).

    A first chunk of unknown size counts as one token (see ``first_chunk_known``). None without a token count,
    and where numerator or denominator is not positive: one token, one chunk, or all chunks in one read. A 0
    would pass any ceiling.
    """
    tokens = known_tokens(record)
    if tokens is None or len(record.chunk_ns) < 2:
        return None
    first = record.chunk_tokens[0] if record.chunk_tokens else 1
    elapsed = record.chunk_ns[-1] - record.chunk_ns[0]
    return elapsed * _NS / (tokens - first) if tokens > first and elapsed > 0 else None


def first_chunk_known(record: RequestRecord) -> bool:
    """Whether the server said how many tokens the first chunk held."""
    return bool(record.chunk_tokens)


def icl_gaps(record: RequestRecord) -> list[float]:
    """Gaps between successive output-bearing chunks.

    As many as chunks less one, adding up to last - first.
    """
    stamps = record.chunk_ns
    return [(later - earlier) * _NS for earlier, later in pairwise(stamps)]


def longest_gap(record: RequestRecord) -> float | None:
    """The largest of ``icl_gaps``; None for fewer than two chunks."""
    stamps = record.chunk_ns
    longest = max(map(sub, islice(stamps, 1, None), stamps), default=None)
    return None if longest is None else longest * _NS


def itl_gaps(record: RequestRecord) -> list[float] | None:
    """Each chunk's gap / its tokens, once per token; None where the server does not count tokens per chunk.

    The gap before a chunk of no tokens (half a character, say) belongs to the next chunk that has some.
    """
    if record.chunk_tokens is None or len(record.chunk_tokens) != len(record.chunk_ns):
        return None
    gaps: list[float] = []
    waited = 0.0
    for gap, tokens in zip(icl_gaps(record), record.chunk_tokens[1:], strict=True):
        waited += gap
        if tokens > 0:
            gaps.extend([waited / tokens] * tokens)
            waited = 0.0
    return gaps


def known_tokens(record: RequestRecord) -> int | None:
    """Output tokens as the server counted them.

    For a request that broke off, those counted so far. Never chunks.
    """
    if record.output_tokens is not None:
        return record.output_tokens
    return sum(record.chunk_tokens) if record.chunk_tokens else None


PER_REQUEST: Final[Mapping[str, Callable[[RequestRecord], float | None]]] = {
    "ttft": ttft,
    "ttfb": ttfb,
    "ttfot": ttfot,
    "tpot": tpot,
    "e2e": e2e,
    "connect_time": connect_time,
}
"""Families with one value per request; icl and itl have many."""


def _span(start_ns: int | None, end_ns: int | None) -> float | None:
    return None if start_ns is None or end_ns is None else (end_ns - start_ns) * _NS
