"""Quantities: ``"500 ms"`` in, base units inside, readable text out.

Base units: s, B, tok/s, req/s, J, USD, ratio (1), count. Everything between input and report is in base units.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Final

__all__ = ["DIMENSIONS", "Quantity", "format_bounds", "format_quantity", "parse_quantity"]

_TIME: Final = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0}
_BYTES: Final = {
    "B": 1.0,
    "kB": 1e3,
    "MB": 1e6,
    "GB": 1e9,
    "TB": 1e12,
    "KiB": 2.0**10,
    "MiB": 2.0**20,
    "GiB": 2.0**30,
    "TiB": 2.0**40,
}

DIMENSIONS: Final[dict[str, dict[str, float]]] = {
    "s": _TIME,
    "B": _BYTES,
    "B/s": {f"{unit}/s": factor for unit, factor in _BYTES.items()},
    "tok/s": {"tok/s": 1.0},
    "req/s": {"req/s": 1.0},
    "ratio": {"": 1.0, "%": 0.01},
    "count": {"": 1.0},
    "tok": {"": 1.0, "tok": 1.0},
    "J": {"J": 1.0},
    "USD": {"USD": 1.0},
    "USD/h": {"USD/h": 1.0},
    "GPUh": {"GPUh": 1.0},
}
"""Base unit → accepted spellings and their factor to the base unit."""

_QUANTITY: Final = re.compile(r"\s*([+-]?(?:\d+(?:_\d+)*\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*([A-Za-z%/]*)\s*\Z")


@dataclass(frozen=True, slots=True)
class Quantity:
    """A finite number in base unit ``unit``, with the text it was written as."""

    value: float
    unit: str
    text: str


def parse_quantity(written: str | float, unit: str) -> Quantity:
    """Read ``written`` as a quantity of base unit ``unit`` (a key of ``DIMENSIONS``).

    A bare number is accepted only for ratios and counts. Raises ValueError whose message names the value and the
    units that would be right.
    """
    spellings = DIMENSIONS[unit]
    if isinstance(written, bool) or not isinstance(written, str | int | float):
        raise ValueError(f"{written!r} is not a quantity; write e.g. {_example(unit)}")
    if not isinstance(written, str):
        if "" not in spellings:
            raise ValueError(f"{written!r} has no unit; write e.g. {_example(unit)}")
        try:
            return _finite(float(written), unit, repr(written))
        except OverflowError:
            raise ValueError("the number is too large") from None
    match = _QUANTITY.match(written)
    if match is None:
        raise ValueError(f"{written!r} is not a quantity; write e.g. {_example(unit)}")
    number, spelling = match.groups()
    if spelling not in spellings:
        allowed = ", ".join(name or "a bare number" for name in spellings)
        problem = f"has the unknown unit {spelling!r}" if spelling else "has no unit"
        raise ValueError(f"{written!r} {problem}; allowed here: {allowed}")
    return _finite(float(number) * spellings[spelling], unit, written.strip())


def format_quantity(value: float | None, unit: str) -> str:
    """``value`` (base unit ``unit``) scaled for people: three or four significant digits and a unit."""
    if value is None or math.isnan(value):
        return "n/a"
    if math.isinf(value):
        return "∞"
    if unit == "s":
        return _scaled(value, ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")))
    if unit in ("B", "B/s"):
        suffix = unit[1:]
        steps = [(_BYTES[name], name + suffix) for name in ("TiB", "GiB", "MiB", "KiB", "B")]
        return _scaled(value, tuple(steps))
    if unit == "ratio":
        return f"{_digits(100 * value)} %"
    if unit in ("count", "tok") and float(value).is_integer():
        return f"{value:,.0f}"
    return f"{_digits(value)} {unit}".removesuffix(" count")


def format_bounds(lower: float, upper: float | None, unit: str) -> str:
    """Where a value lies that is known by its bounds alone; ``upper`` None: nobody knows how far above ``lower``."""
    if upper is None:
        return f"> {format_quantity(lower, unit)}"
    most = format_quantity(upper, unit)
    return f"{format_quantity(lower, unit)}..{most}" if lower > 0 else f"≤ {most}"


def _finite(value: float, unit: str, text: str) -> Quantity:
    if not math.isfinite(value):
        raise ValueError(f"{text} is not a finite number")
    return Quantity(value, unit, text)


def _example(unit: str) -> str:
    return {
        "s": "'500 ms'",
        "B": "'72 GiB'",
        "B/s": "'1 MiB/s'",
        "tok/s": "'3000 tok/s'",
        "req/s": "'5 req/s'",
        "ratio": "0.01 or '1 %'",
        "count": "0",
        "tok": "100000",
    }.get(unit, f"'1 {unit}'")


def _scaled(value: float, steps: tuple[tuple[float, str], ...]) -> str:
    for factor, name in steps:
        if abs(value) >= factor:
            return f"{_digits(value / factor)} {name}"
    factor, name = steps[-1]
    return f"{_digits(value / factor)} {name}" if value else f"0 {steps[0][1]}"


def _digits(value: float) -> str:
    magnitude = abs(value)
    if magnitude >= 100 or value == 0:
        return f"{value:,.0f}"
    if magnitude >= 10:
        return f"{value:.1f}"
    return f"{value:.2f}" if magnitude >= 1 else f"{value:.3g}"
