"""Latency metrics: the values of one family pooled over requests, their mean and quantiles."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from pytest_llmperf.catalog import Metric
from pytest_llmperf.metrics.chunks import gaps, gaps_per_token
from pytest_llmperf.metrics.request import PER_REQUEST, first_chunk_known, known_tokens
from pytest_llmperf.records import FAILURES, Outcome, Phase, RequestRecord
from pytest_llmperf.stats.quantile import quantile
from pytest_llmperf.stats.value import MetricValue

__all__ = ["Pool", "latency_value", "pool"]

_CONNECT_FAILURES: Final = frozenset({Outcome.CONNECT_FAILED, Outcome.CONNECT_TIMEOUT, Outcome.TLS_FAILED})


@dataclass(frozen=True, slots=True)
class Pool:
    """One family's values over the measured requests that we did not cut."""

    family: str
    values: Sequence[float]
    """Ascending; a failed request is one +inf, so that it is never faster than a finished one."""
    requests: int
    """Requests looked at: ok + failed."""
    failed: int
    """Failed requests among ``values``."""
    excluded: int
    """Ok requests for which the family is not defined."""
    untold: int
    """Those among them that have a value which we do not know."""
    why: str | None
    """What excluded them, and what was assumed."""

    @property
    def finite(self) -> Sequence[float]:
        return self.values[: len(self.values) - self.failed]


def pool(records: Iterable[RequestRecord], family: str) -> Pool:
    """Pool ``family`` over ``records``; warm-up and cut requests take no part."""
    judged = [r for r in records if r.phase is Phase.MEASURED and r.outcome is not Outcome.CUT]
    if family in ("icl", "itl"):
        return _pool_gaps(judged, family)
    values: list[float] = []
    excluded: list[RequestRecord] = []
    # Only failing to open a connection is a failure of connect_time, and a later failure does not undo it.
    connecting = family == "connect_time"
    failures, formula = _CONNECT_FAILURES if connecting else FAILURES, PER_REQUEST[family]
    for record in judged:
        value = math.inf if record.outcome in failures else formula(record)
        if value is not None:
            values.append(value)
        elif not record.failed:
            excluded.append(record)
    values.sort()
    failed = values.count(math.inf)
    untold = sum(map(_untold, excluded)) if family == "tpot" else 0
    return Pool(family, tuple(values), len(judged), failed, len(excluded), untold, _why(judged, excluded, family))


def _untold(record: RequestRecord) -> bool:
    """Whether a request without a TPOT has one all the same: its tokens were not counted, or its reads came as one."""
    tokens = known_tokens(record)
    return tokens is None or (record.streamed and tokens > 1 and len(record.chunk_ns) > 1)


def latency_value(metric: Metric, pooled: Pool) -> MetricValue:
    """Mean over the ok requests, or the quantile with failures as +inf.

    None where there is no finite value.
    """
    why = pooled.why
    untold = pooled.untold / pooled.requests if pooled.requests else 0.0
    if metric.quantile is None:
        finite = pooled.finite
        if pooled.failed:
            lost = f"{pooled.failed} of {pooled.requests} requests failed and are not in the mean"
            why = "; ".join(filter(None, (lost, why)))
        if not finite:
            return MetricValue(metric, None, 0, why or "no measured requests", excluded=pooled.excluded)
        mean = math.fsum(finite) / len(finite)
        return MetricValue(metric, mean, len(finite), why, excluded=pooled.excluded, untold=untold)
    # Where no finished request has a value, failures beside them do not make a measurement of it.
    if not pooled.values or (pooled.excluded and not pooled.finite):
        return MetricValue(metric, None, 0, why or "no measured requests", excluded=pooled.excluded)
    value: float | None = quantile(pooled.values, metric.quantile)
    if pooled.failed:
        lost = f"{pooled.failed} of {pooled.requests} requests failed"
        if value is not None and math.isinf(value):
            value, lost = None, f"{lost}: the quantile lies among them"
        why = "; ".join(filter(None, (lost, why)))
    return MetricValue(metric, value, len(pooled.values), why, pooled.values, pooled.excluded, untold)


def _pool_gaps(judged: list[RequestRecord], family: str) -> Pool:
    """As ``pool``, for the families with many values per request; of a failed one, the chunk that never came."""
    import numpy as np

    ok = [record for record in judged if not record.failed]
    found, numbers = gaps(ok) if family == "icl" else gaps_per_token(ok)
    found.sort()
    failed = len(judged) - len(ok)
    values = array("d")
    values.frombytes(np.append(found, np.full(failed, np.inf)).tobytes())
    excluded = [record for record, number in zip(ok, numbers, strict=True) if not number]
    untold = len(excluded) if family == "itl" else 0
    return Pool(family, values, len(judged), failed, len(excluded), untold, _why(judged, excluded, family))


def _why(judged: list[RequestRecord], excluded: list[RequestRecord], family: str) -> str | None:
    parts: list[str] = []
    total = len(judged)
    if family == "tpot":
        uncounted = sum(known_tokens(record) is None for record in excluded)
        if uncounted:
            parts.append(f"{uncounted} of {total} requests have no token count from the server")
        if len(excluded) > uncounted:
            parts.append(f"{len(excluded) - uncounted} of {total} requests have a single token or time stamp: no TPOT")
        left_out = {id(record) for record in excluded}
        assumed = sum(not first_chunk_known(r) for r in judged if not r.failed and id(r) not in left_out)
        if assumed:
            parts.append(f"tokens of the first chunk unknown in {assumed} of {total} requests: taken as 1")
    elif excluded:
        unstreamed = sum(not record.streamed for record in excluded)
        reason = (
            "were not streamed"
            if unstreamed == len(excluded)
            else {
                "ttfot": "sent no answer besides reasoning",
                "icl": "came in a single chunk",
                "itl": "have no token count per chunk from the server",
                "connect_time": "used an open connection again",
            }.get(family, "lack it")
        )
        parts.append(f"{len(excluded)} of {total} requests {reason}")
    return "; ".join(parts) or None
