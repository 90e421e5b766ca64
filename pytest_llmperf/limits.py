"""Limits on what is measured, as written → as planned: of whole tests (``sla``) and of single requests (``slo``).

Whatever is not understood is a MarkerError with the argument, the value and what would be right.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from pytest_llmperf.catalog import ENGINE_FAMILIES, METRICS, Metric, metric
from pytest_llmperf.errors import MarkerError, nearest
from pytest_llmperf.plan import Sla, Slo
from pytest_llmperf.units import parse_quantity

__all__ = ["SHARES", "known_metric", "quantity", "read_slas", "read_slo"]

SHARES: Final = ("error_rate", "goodput_share", "prefix_hit_rate", "kv_usage_p95")
"""Ratios that cannot exceed 1."""
POOLED: Final = ("icl", "itl")
"""Gaps within one request are not independent, so there is no exact confidence for their percentiles."""
SAMPLED: Final = ("kv_usage_p95",)
"""Percentiles over time."""
PER_REQUEST: Final = ("ttft", "ttfb", "ttfot", "tpot", "icl", "itl", "e2e", "connect_time")
"""What can be asked of a single request; of icl and itl the largest gap."""


def read_slas(layers: Sequence[Mapping[str, Any]]) -> tuple[Sla, ...]:
    """The limits of all ``sla`` layers (the farthest first): per metric the closest, with its layer's confidence."""
    limits: dict[str, tuple[Any, Any]] = {}
    for layer in layers:
        confidence = layer.get("confidence")
        names = [name for name in layer if name != "confidence"]
        if not names:
            raise MarkerError("sla", "", "names no metric; write e.g. ttft_p95='500 ms'")
        limits.update({name: (layer[name], confidence) for name in names})
    slas = []
    for name, (written, confidence) in limits.items():
        known = known_metric("sla", name, "confidence")
        limit = quantity("sla", name, written, known.unit)
        if name in SHARES and limit > 1:
            raise MarkerError("sla", name, f"{written!r} is more than all of them; write a share, e.g. 0.05 or '5 %'")
        if confidence is not None:
            _check_confidence(confidence)
            if (why := _no_confidence(known)) is not None:
                problem = f"does not apply to {name}: {why}; limit it in a marker of its own"
                raise MarkerError("sla", "confidence", problem)
        slas.append(
            Sla(
                metric=name,
                limit=limit,
                written=written if isinstance(written, str) else repr(written),
                confidence=confidence if known.quantile is not None else None,
            )
        )
    strict = limits and all(confidence is not None for _, confidence in limits.values())
    if strict and not any(sla.confidence for sla in slas):
        raise MarkerError("sla", "confidence", "applies to percentiles (ttft_p95 ...), and none is limited here")
    return tuple(slas)


def _no_confidence(known: Metric) -> str | None:
    """Why nothing is known of how sure a percentile is; a metric that is none needs no reason."""
    if known.family.name in POOLED:
        return "gaps within one request are not independent"
    if known.name in SAMPLED or (known.family.name in ENGINE_FAMILIES and known.quantile is not None):
        return "the server states no values of single requests"
    return None


def _check_confidence(given: object) -> None:
    if isinstance(given, bool) or not isinstance(given, float) or not 0.5 < given < 1:
        raise MarkerError("sla", "confidence", f"{given!r} is not a number between 0.5 and 1, e.g. 0.95")


def read_slo(given: object, slas: Sequence[Sla]) -> Slo | None:
    """The per-request limits: as given, else the limit of the highest percentile of each latency in ``slas``.

    A percentile of pooled gaps is no limit on the largest gap of each request, so icl and itl are taken as given only.
    """
    if given is None:
        highest: dict[str, tuple[float, float]] = {}
        for sla in slas:
            known = metric(sla.metric)
            if known.quantile is not None and known.family.name in PER_REQUEST and known.family.name not in POOLED:
                best = highest.get(known.family.name, (0.0, 0.0))
                highest[known.family.name] = max(best, (known.quantile, sla.limit))
        return Slo(limits={name: limit for name, (_, limit) in highest.items()}) if highest else None
    if not isinstance(given, Mapping) or not given:
        raise MarkerError("llmperf", "slo", f"{given!r} is not a dict such as {{'ttft': '500 ms', 'tpot': '30 ms'}}")
    limits = {}
    for name, written in given.items():
        if name not in PER_REQUEST:
            raise MarkerError("llmperf", "slo", f"unknown per-request metric {name!r}{nearest(str(name), PER_REQUEST)}")
        try:
            limits[name] = quantity("llmperf", "slo", written, "s")
        except MarkerError as error:
            raise MarkerError("llmperf", "slo", f"{name}: {error.problem}") from None
        if not limits[name]:
            raise MarkerError("llmperf", "slo", f"{name}: {written!r} is a limit that no request can meet")
    return Slo(limits=limits)


def known_metric(marker: str, name: str, *beside: str) -> Metric:
    """The metric called ``name``; ``beside`` are other arguments of the marker, which it may be meant for."""
    try:
        return metric(name)
    except KeyError as error:
        problem = str(error.args[0])
        if problem.startswith("unknown metric"):
            problem = f"unknown metric {name!r}{nearest(name, (*METRICS, *beside))}"
        raise MarkerError(marker, name, problem) from None


def quantity(marker: str, argument: str, written: Any, unit: str) -> float:
    """``written`` in base unit ``unit``, not negative."""
    try:
        found = parse_quantity(written, unit)
    except ValueError as error:
        raise MarkerError(marker, argument, str(error)) from None
    if found.value < 0:
        raise MarkerError(marker, argument, f"{written!r} is negative")
    return found.value
