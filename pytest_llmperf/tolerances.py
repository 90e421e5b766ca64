"""Tolerated changes against a baseline, as written in ``regression`` markers → as planned.

Whatever is not understood is a MarkerError with the argument, the value and what would be right.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from pytest_llmperf.errors import MarkerError
from pytest_llmperf.limits import known_metric, quantity
from pytest_llmperf.plan import Regression, ToleratedChange
from pytest_llmperf.stats.family import gate_row, why_not_gateable

__all__ = ["COMPARED_REPLAYS", "read_regression", "require_enough"]

MARKER: Final = "regression"
COMPARED_REPLAYS: Final = 2
"""Replays of a load in each launch that is compared, where nothing says how many."""
FAMILY: Final = "metrics"
EXAMPLE: Final = "write e.g. '3 %', or '3 %..5 %' to set apart what may fail and what must be ruled out"


def read_regression(layers: Sequence[Mapping[str, Any]]) -> Regression | None:
    """The comparison that all ``regression`` layers (the farthest first) ask for; None without any.

    A layer's ``metrics`` replaces the family, and with it the tolerances of farther layers outside of it; a metric
    that a closer layer names without ``metrics`` joins the family.
    """
    if not layers:
        return None
    family: tuple[str, ...] | None = None
    changes: dict[str, ToleratedChange] = {}
    for layer in layers:
        named = {name: _change(name, written) for name, written in layer.items() if name != FAMILY}
        if FAMILY in layer:
            family = _family(layer[FAMILY])
            for name in named:
                if name not in family:
                    raise MarkerError(MARKER, name, f"has a tolerance, but is not in {FAMILY}={list(family)}: add it")
            changes = {name: change for name, change in changes.items() if name in family}
        elif family is not None:
            family = tuple(dict.fromkeys((*family, *named)))
        changes |= named
    return Regression(tolerances=changes, metrics=family)


def require_enough(regression: Regression | None, requests: int | None, replays: int | None) -> None:
    """Raise MarkerError where a named metric needs more requests of every launch than the load sends.

    ``requests``: of one replay, None where only the clock ends it; ``replays`` of each launch, None: as usual.
    """
    if regression is None or requests is None:
        return
    sent = requests * (replays or COMPARED_REPLAYS)
    for name in dict.fromkeys((*regression.tolerances, *(regression.metrics or ()))):
        row = gate_row(name)
        if row is not None and row.min_ok > sent:
            each = -(-row.min_ok // (replays or COMPARED_REPLAYS))
            problem = f"{name} takes {row.min_ok} requests of every launch, and the load sends {sent}"
            raise MarkerError(MARKER, name, f"{problem}: give it requests={each} or more replays, or gate the median")


def _family(given: object) -> tuple[str, ...]:
    if not isinstance(given, list | tuple) or not given:
        raise MarkerError(MARKER, FAMILY, f"{given!r} is not a list such as ['ttft_p50', 'output_throughput']")
    for name in given:
        if not isinstance(name, str):
            raise MarkerError(MARKER, FAMILY, f"{name!r} is not the name of a metric")
        try:
            _require_gateable(name)
        except MarkerError as error:
            raise MarkerError(MARKER, FAMILY, error.problem) from None
        if given.count(name) > 1:
            raise MarkerError(MARKER, FAMILY, f"{name!r} is listed twice")
    return tuple(given)


def _require_gateable(name: str) -> None:
    known_metric(MARKER, name, FAMILY)
    if gate_row(name) is None:
        why = why_not_gateable(name)
        instead = "" if "sla" in why else "; or limit it with sla, which takes every metric"
        raise MarkerError(MARKER, name, f"{name} cannot be gated: {why}{instead}")


def _change(name: str, written: Any) -> ToleratedChange:
    _require_gateable(name)
    if isinstance(written, str) and ".." in written:
        low, _, high = written.partition("..")
        floor, limit = (_ratio(name, end.strip(), written) for end in (low, high))
        if floor > limit:
            raise MarkerError(MARKER, name, f"{written!r} is reversed: the smaller change comes first")
    else:
        tolerated = _ratio(name, written, written)
        limit = 2 * tolerated
        floor = math.sqrt(1 + limit) - 1  # half of the limit on the log scale
    return ToleratedChange(floor=floor, limit=limit, written=written if isinstance(written, str) else repr(written))


def _ratio(name: str, end: Any, written: Any) -> float:
    """One change as a ratio in (0, 1]; a bare number must be below 1, since ``3`` is meant as 3 %."""
    try:
        ratio = quantity(MARKER, name, end, "ratio")
    except MarkerError as error:
        raise MarkerError(MARKER, name, f"{error.problem}; {EXAMPLE}") from None
    if ratio == 0:
        raise MarkerError(MARKER, name, f"{written!r} tolerates nothing: no measurement could show that; {EXAMPLE}")
    if isinstance(end, str) and end.endswith("%"):
        if ratio > 1:
            raise MarkerError(MARKER, name, f"{written!r} is more than 100 %; {EXAMPLE}")
    elif ratio >= 1:
        raise MarkerError(MARKER, name, f"{written!r} would be {100 * ratio:g} %; {EXAMPLE}")
    return ratio
