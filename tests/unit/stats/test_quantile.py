from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_llmperf.stats.quantile import quantile

finite = st.floats(-1e9, 1e9)


@given(st.lists(finite, min_size=1, max_size=60), st.integers(0, 10_000).map(lambda each: each / 10_000))
def test_equals_numpys_default_method(values: list[float], q: float) -> None:
    assert quantile(sorted(values), q) == pytest.approx(float(np.quantile(values, q)), rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("q", [0.5, 0.9, 0.95, 0.99])
@pytest.mark.parametrize("n", [1, 2, 20, 21, 40, 101, 1000])
def test_whole_positions_hit_a_value_exactly(n: int, q: float) -> None:
    values = [float(x) for x in range(n)]
    assert quantile(values, q) == pytest.approx((n - 1) * q)


def test_is_infinite_where_an_infinite_value_has_weight() -> None:
    assert quantile([1.0, 2.0, math.inf], 0.5) == 2.0
    assert quantile([1.0, 2.0, math.inf], 0.51) == math.inf
    assert quantile([1.0, math.inf, math.inf], 0.75) == math.inf  # between two of them: not nan
    assert quantile([math.inf], 0.5) == math.inf


def test_rounding_does_not_drag_in_the_infinite_neighbour() -> None:
    # (n - 1) q is a whole number on paper; in binary 0.07 * 100 is 7.000000000000001.
    assert 0.07 * 100 > 7
    assert quantile([float(x) for x in range(8)] + [math.inf] * 93, 0.07) == 7.0


def test_refuses_no_values_and_a_q_outside_its_range() -> None:
    with pytest.raises(ValueError, match="no values"):
        quantile([], 0.5)
    with pytest.raises(ValueError, match="outside"):
        quantile([1.0], 1.5)
