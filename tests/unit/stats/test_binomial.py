from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import beta, binom, binomtest

from pytest_llmperf.stats.binomial import confidence_met, confidence_missed, decide, needed_n


@st.composite
def counts(draw: st.DrawFn) -> tuple[int, int]:
    n = draw(st.integers(1, 3000))
    return n, draw(st.integers(0, n))


@given(counts(), st.sampled_from([0.5, 0.1, 0.05, 0.01, 0.001]))
@settings(deadline=None)
def test_confidences_are_those_of_the_exact_one_sided_binomial_test(pair: tuple[int, int], p: float) -> None:
    n, x = pair
    # H0 "share >= p" is rejected with p-value P(X <= x); the confidence is its complement.
    assert confidence_met(n, x, p) == pytest.approx(1 - binomtest(x, n, p, "less").pvalue, abs=1e-9)
    assert confidence_missed(n, x, p) == pytest.approx(1 - binomtest(x, n, p, "greater").pvalue, abs=1e-9)


@given(counts(), st.sampled_from([0.1, 0.05, 0.01]), st.sampled_from([0.8, 0.95, 0.99]))
@settings(deadline=None)
def test_decision_is_that_of_the_clopper_pearson_bounds(pair: tuple[int, int], p: float, c: float) -> None:
    n, x = pair
    upper = 1.0 if x == n else float(beta.ppf(c, x + 1, n - x))
    lower = 0.0 if x == 0 else float(beta.ppf(1 - c, x, n - x + 1))
    expected = "met" if upper <= p else "missed" if lower > p else "undecided"
    if min(abs(upper - p), abs(lower - p)) > 1e-9:
        assert decide(n, x, p, c) == expected


@pytest.mark.parametrize(("q", "needed"), [(0.5, 5), (0.9, 29), (0.95, 59), (0.99, 299), (0.999, 2995)])
def test_with_none_beyond_the_known_numbers_of_requests_decide(q: float, needed: int) -> None:
    allowed = 1 - q
    assert needed == math.ceil(math.log(0.05) / math.log(q))
    assert needed_n(10, 0, allowed, 0.95) == needed
    assert decide(needed, 0, allowed, 0.95) == "met"
    assert decide(needed - 1, 0, allowed, 0.95) == "undecided"


@pytest.mark.parametrize(("n", "x"), [(200, 7), (200, 6), (200, 13), (100, 8), (20, 2)])
def test_needed_n_decides_and_half_of_it_does_not(n: int, x: int) -> None:
    needed = needed_n(n, x, 0.05, 0.95)
    assert needed is not None
    assert decide(n, x, 0.05, 0.95) == "undecided"
    expected = "met" if x / n < 0.05 else "missed"
    wide = 2 * needed
    assert decide(wide, round(wide * x / n), 0.05, 0.95) == expected
    assert decide(needed // 2, round(needed // 2 * x / n), 0.05, 0.95) == "undecided"


def test_no_number_of_requests_decides_a_share_that_is_the_allowed_one() -> None:
    assert needed_n(200, 10, 1 - 0.95, 0.95) is None
    assert needed_n(100, 1, 1 - 0.99, 0.95) is None


def test_everything_and_nothing_beyond_are_certain_in_one_direction_only() -> None:
    assert confidence_met(50, 50, 0.05) == 0
    assert confidence_missed(50, 0, 0.05) == 0
    assert confidence_met(50, 0, 0.05) == pytest.approx(1 - 0.95**50)
    assert confidence_missed(3, 3, 0.05) == pytest.approx(1 - 0.05**3)


def test_a_true_share_at_the_limit_is_called_met_no_more_often_than_promised() -> None:
    n, p, c = 400, 0.05, 0.95
    wrong = sum(binom.pmf(x, n, p) for x in range(n + 1) if decide(n, x, p, c) == "met")
    assert wrong <= 1 - c


def test_refuses_what_is_no_count() -> None:
    with pytest.raises(ValueError, match="beyond"):
        decide(0, 0, 0.05, 0.95)
    with pytest.raises(ValueError, match="beyond"):
        needed_n(10, 11, 0.05, 0.95)
