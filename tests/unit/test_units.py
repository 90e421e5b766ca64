from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_llmperf.units import DIMENSIONS, format_quantity, parse_quantity


@pytest.mark.parametrize(
    ("text", "unit", "value"),
    [
        ("500 ms", "s", 0.5),
        ("500ms", "s", 0.5),
        (" 30 us ", "s", 30e-6),
        ("2 min", "s", 120),
        ("1 h", "s", 3600),
        ("72 GiB", "B", 72 * 2**30),
        ("72 GB", "B", 72e9),
        ("1.5 MiB/s", "B/s", 1.5 * 2**20),
        ("3000 tok/s", "tok/s", 3000),
        ("1_000 tok/s", "tok/s", 1000),
        ("1 %", "ratio", 0.01),
        ("1%", "ratio", 0.01),
        ("0.01", "ratio", 0.01),
        (0.01, "ratio", 0.01),
        (0, "count", 0),
        ("1e3 ms", "s", 1.0),
        (".5 s", "s", 0.5),
        ("0.50 USD", "USD", 0.5),
    ],
)
def test_reads_quantities_into_base_units(text: str | float, unit: str, value: float) -> None:
    assert parse_quantity(text, unit).value == pytest.approx(value)


@pytest.mark.parametrize(
    ("text", "unit", "complaint"),
    [
        ("500", "s", "has no unit"),
        (500, "s", "has no unit; write e.g. '500 ms'"),
        ("500 MS", "s", "unknown unit 'MS'"),
        ("72 gib", "B", "unknown unit 'gib'"),
        ("fast", "s", "not a quantity"),
        ("", "s", "not a quantity"),
        ("1 ms 2", "s", "not a quantity"),
        (True, "count", "not a quantity"),
        (None, "s", "not a quantity"),
        ("1e999 s", "s", "not a finite number"),
        (math.nan, "ratio", "not a finite number"),
        ("500 tok/s", "s", "unknown unit 'tok/s'"),
    ],
)
def test_refuses_what_is_no_quantity_and_says_what_would_be(text: object, unit: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint.replace("(", r"\(")):
        parse_quantity(text, unit)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.5, "s", "500 ms"),
        (1.25, "s", "1.25 s"),
        (0.0123, "s", "12.3 ms"),
        (4.2e-6, "s", "4.20 us"),
        (0.0, "s", "0 s"),
        (72 * 2**30, "B", "72.0 GiB"),
        (512, "B", "512 B"),
        (3 * 2**20, "B/s", "3.00 MiB/s"),
        (0.0123, "ratio", "1.23 %"),
        (0.0, "ratio", "0 %"),
        (1234.5, "tok/s", "1,234 tok/s"),
        (100000, "tok", "100,000"),
        (3, "count", "3"),
        (2.5, "count", "2.50"),
        (None, "s", "n/a"),
        (math.nan, "s", "n/a"),
        (math.inf, "s", "∞"),
    ],
)
def test_shows_values_scaled_for_people(value: float | None, unit: str, text: str) -> None:
    assert format_quantity(value, unit) == text


@given(st.floats(1e-6, 1e12), st.sampled_from(["s", "B", "B/s", "tok/s", "req/s", "ratio"]))
def test_what_is_shown_can_be_read_again(value: float, unit: str) -> None:
    text = format_quantity(value, unit).replace(",", "")
    assert parse_quantity(text, unit).value == pytest.approx(value, rel=0.01)


def test_every_base_unit_accepts_itself_or_a_bare_number() -> None:
    for unit, spellings in DIMENSIONS.items():
        assert 1.0 in spellings.values()
        assert parse_quantity(f"1 {next(name for name, factor in spellings.items() if factor == 1)}", unit).value == 1
