"""Chunks of many requests side by side in flat arrays, so that a million of them cost fractions of a second.

Gaps, gaps per token and token credits are those of ``metrics.request`` and ``rates.spread_tokens``, which define them
on one request; tests hold the two against each other. numpy is imported where it is used: a run without ``--llmperf``
must not pay for it.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pytest_llmperf.metrics.request import known_tokens, output_ns
from pytest_llmperf.records import RequestRecord

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["Credits", "Flat", "credit", "flatten", "gaps", "gaps_per_token"]

MOST_TOKENS: Final = 10_000_000
"""Of one response; no model writes more."""
_NS: Final = 1e-9


@dataclass(frozen=True, slots=True)
class Flat:
    """The chunk times of some requests, one request after the other."""

    stamps: NDArray[np.int64]
    starts: NDArray[np.int64]
    """The chunks of request i are ``stamps[starts[i]:starts[i + 1]]``; one entry more than requests."""

    def gaps_ns(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Gaps between successive chunks of one request, and where each request's gaps start (one entry more)."""
        import numpy as np

        counts = np.diff(self.starts)
        between = np.diff(self.stamps)
        keep = np.ones(len(between), bool)
        edges = self.starts[1:][counts > 0] - 1  # the last chunk of each request that has any
        keep[edges[edges < len(between)]] = False
        return between[keep], _starts(np.maximum(counts - 1, 0))


@dataclass(frozen=True, slots=True)
class Credits:
    """Output tokens by time stamp; requests whose tokens are unknown are not in ``shares`` but counted apart."""

    stamps: NDArray[np.int64]
    shares: NDArray[np.float64]
    spans: NDArray[np.int64]
    """(first chunk, last chunk) of each request with output and known tokens."""
    unknown: NDArray[np.int64]
    """The same of requests with output and unknown tokens."""


def flatten(records: Sequence[RequestRecord]) -> Flat:
    """Chunk times of ``records``, which may be tuples or arrays of int64."""
    return _flat([r.chunk_ns for r in records])


def _flat(parts: Sequence[Sequence[int]]) -> Flat:
    import numpy as np

    starts = _starts(np.fromiter(map(len, parts), np.int64, len(parts)))
    return Flat(_join(parts, int(starts[-1])), starts)


def gaps(records: Sequence[RequestRecord]) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """ICL in s of all ``records``, unordered, and the number of each record."""
    import numpy as np

    found, starts = flatten(records).gaps_ns()
    return np.multiply(found, _NS, dtype=np.float64), np.diff(starts)


def gaps_per_token(records: Sequence[RequestRecord]) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """ITL in s, once per token, ascending, and the number of tokens that each record gave one for.

    A chunk of no tokens passes its gap on to the next that has some. A record whose tokens are not counted per
    chunk gives none.
    """
    import numpy as np

    counted = [r if _plausible(r) else None for r in records]
    known = [r for r in counted if r is not None]
    flat = flatten(known)
    tokens = _join([r.chunk_tokens or () for r in known], len(flat.stamps))
    owner = np.repeat(np.arange(len(known)), np.diff(flat.starts))
    first = np.zeros(len(tokens), bool)
    first[flat.starts[:-1][np.diff(flat.starts) > 0]] = True
    marks = np.flatnonzero(first | (tokens > 0))
    later = marks[1:][~first[marks[1:]]]
    earlier = marks[:-1][~first[marks[1:]]]
    each = (flat.stamps[later] - flat.stamps[earlier]) * _NS / tokens[later]
    numbers = np.zeros(len(records), np.int64)
    numbers[[i for i, r in enumerate(counted) if r is not None]] = np.bincount(
        owner[later], weights=tokens[later], minlength=len(known)
    ).astype(np.int64)
    order = np.argsort(each)
    return np.repeat(each[order], tokens[later][order]), numbers


def _plausible(record: RequestRecord) -> bool:
    """Whether tokens were counted per chunk, by numbers that can be true: a lie must not cost the memory either."""
    tokens = record.chunk_tokens
    return tokens is not None and len(tokens) == len(record.chunk_ns) and sum(tokens) <= MOST_TOKENS


def credit(records: Sequence[RequestRecord]) -> Credits:
    """Each chunk's share of its request's output tokens, as ``rates.spread_tokens`` defines it."""
    import numpy as np

    having = [r for r in records if len(output_ns(r))]
    totals = [known_tokens(r) for r in having]
    known = [r for r, total in zip(having, totals, strict=True) if total is not None]
    flat = _flat([output_ns(r) for r in known])
    sizes = np.diff(flat.starts)
    weights = np.ones(len(flat.stamps))
    for number, record in enumerate(known):
        counts = record.chunk_tokens
        if counts is not None and len(counts) == sizes[number] and sum(counts) > 0:
            weights[flat.starts[number] : flat.starts[number + 1]] = counts
    sums = np.add.reduceat(weights, flat.starts[:-1]) if known else np.zeros(0)
    each = np.array([total for total in totals if total is not None]) / sums
    unknown = [r for r, total in zip(having, totals, strict=True) if total is None]
    return Credits(flat.stamps, weights * np.repeat(each, sizes), _spans(known), _spans(unknown))


def _spans(records: Sequence[RequestRecord]) -> NDArray[np.int64]:
    import numpy as np

    spans = [(stamps[0], stamps[-1]) for stamps in map(output_ns, records)]
    return np.array(spans, np.int64).reshape(-1, 2)


def _starts(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    import numpy as np

    return np.concatenate([np.zeros(1, np.int64), np.cumsum(counts, dtype=np.int64)])


def _join(parts: Sequence[Sequence[int]], total: int) -> NDArray[np.int64]:
    import numpy as np

    joined = np.empty(total, np.int64)
    at = 0
    for part in parts:
        # An array of int64 is copied as it lies in memory; numpy would look at a tuple twice, fromiter does it once.
        if isinstance(part, array) and part.typecode == "q":
            joined[at : at + len(part)] = np.frombuffer(part, np.int64)
        else:
            joined[at : at + len(part)] = np.fromiter(part, np.int64, len(part))
        at += len(part)
    return joined
