"""``expects=``: what a run must show for its test to have exercised what it is meant to.

Whatever is not understood is a MarkerError with the value and what would be right.
"""

from __future__ import annotations

import re
from typing import Final, get_args

from pytest_llmperf.catalog import Metric
from pytest_llmperf.errors import MarkerError
from pytest_llmperf.limits import SHARES, known_metric
from pytest_llmperf.plan import Expectation, Operator
from pytest_llmperf.units import parse_quantity

__all__ = ["read_expects"]

EXAMPLE: Final = "write e.g. 'prefix_hit_rate > 0.5' or 'preemptions == 0'"
_OPERATORS: Final[tuple[Operator, ...]] = get_args(Operator)
_EXPECTATION: Final = re.compile(r"\s*(?P<metric>\w+)\s*(?P<operator>[<>=!~]+)\s*(?P<limit>.*?)\s*\Z")
_SIGNED: Final = "B/s"
"""The unit of what may fall below zero: memory that is given back."""


def read_expects(given: object) -> tuple[Expectation, ...]:
    """The expectations of a list of texts ``metric operator quantity``."""
    if given is None:
        return ()
    if not isinstance(given, list | tuple):
        raise _fault(f"{given!r} is not a list; write e.g. ['prefix_hit_rate > 0.5', 'preemptions == 0']")
    return tuple(_expectation(written) for written in given)


def _expectation(written: object) -> Expectation:
    match = _EXPECTATION.match(written) if isinstance(written, str) else None
    if match is None:
        raise _fault(f"{written!r} is not a metric, an operator and a quantity; {EXAMPLE}")
    operator = next((known for known in _OPERATORS if known == match["operator"]), None)
    if operator is None:
        raise _fault(f"{written!r} has the unknown operator {match['operator']!r}; known: {', '.join(_OPERATORS)}")
    try:
        known = known_metric("llmperf", match["metric"])
    except MarkerError as error:
        raise _fault(f"{written!r}: {error.problem}") from None
    try:
        limit = parse_quantity(match["limit"], known.unit).value
    except ValueError as error:
        raise _fault(f"{written!r}: {error}") from None
    _require_open(str(written), known, operator, limit)
    return Expectation(metric=known.name, operator=operator, limit=limit, written=" ".join(str(written).split()))


def _require_open(written: str, known: Metric, operator: Operator, limit: float) -> None:
    """Refuse what the metric's range settles before anything is measured."""
    low = float("-inf") if known.unit == _SIGNED else 0.0
    high = 1.0 if known.name in SHARES else float("inf")
    if not low <= limit <= high:
        bounds = f"from 0 to {'1 (100 %)' if high == 1 else 'infinity'}"
        raise _fault(f"{written!r}: {known.name} is {bounds}")
    if (operator, limit) in ((">=", low), ("<=", high)):
        raise _fault(f"{written!r} always holds: it expects nothing")
    if (operator, limit) in (("<", low), (">", high)):
        raise _fault(f"{written!r} can never hold")


def _fault(problem: str) -> MarkerError:
    return MarkerError("llmperf", "expects", problem)
