"""Prompts are unique from the start, share what they are meant to share, and have the wanted length."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_llmperf.load.prompts import VOCABULARY, Calibration, fit_calibration, write_prompt, write_words
from pytest_llmperf.records import Arrival, Phase

PLAIN = Calibration(1.0, 0.0)


def arrival(index: int, tokens: int, group: int | None = None, prefix: int = 0) -> Arrival:
    return Arrival(index, Phase.MEASURED, None, tokens, 8, group, prefix)


def test_prompts_differ_in_their_first_words() -> None:
    size = len(VOCABULARY)
    openings = {write_prompt(arrival(i, 40), PLAIN, 0, "s").split()[0] for i in range(size)}
    assert len(openings) == size
    pairs = {tuple(write_prompt(arrival(i, 40), PLAIN, 0, "s").split()[:2]) for i in range(3 * size)}
    assert len(pairs) == 3 * size


def test_seed_and_salt_make_other_prompts() -> None:
    texts = [write_prompt(arrival(i, 40), PLAIN, seed, salt) for i in range(50) for seed in (0, 1) for salt in "ab"]
    assert len({" ".join(text.split()[:8]) for text in texts}) == len(texts)


def test_the_same_request_is_the_same_text() -> None:
    assert write_prompt(arrival(3, 500), PLAIN, 7, "s") == write_prompt(arrival(3, 500), PLAIN, 7, "s")


def test_a_group_shares_its_prefix_and_nothing_else() -> None:
    def words(index: int, group: int, tokens: int = 100) -> list[str]:
        return write_prompt(arrival(index, tokens, group, 60), PLAIN, 0, "s").split()

    assert words(1, 0)[:60] == words(2, 0)[:60] == words(5, 0, 400)[:60]
    assert words(1, 0)[60] != words(2, 0)[60]
    assert words(1, 0)[0] != words(1, 1)[0]
    assert len(words(1, 0)) == 100
    assert words(9, 0, 61)[:60] == words(1, 0)[:60]
    other = write_prompt(arrival(1, 100, 0, 60), PLAIN, 0, "t").split()
    assert other[:8] != words(1, 0)[:8]


@given(st.integers(1, 5000), st.floats(0.5, 4), st.floats(0, 60))
def test_the_length_is_right_and_never_less_than_one_word(tokens: int, per_word: float, overhead: float) -> None:
    words = len(write_prompt(arrival(0, tokens), Calibration(per_word, overhead), 0, "s").split())
    assert words >= 1
    if words > 1:
        assert abs(overhead + per_word * words - tokens) <= per_word / 2 + 1e-6


def test_words_are_plain_and_distinct() -> None:
    assert len(set(VOCABULARY)) == len(VOCABULARY)
    assert all(word.isascii() and word.isalpha() and word.islower() for word in VOCABULARY)
    assert len(write_words(0, 0, "s", 0).split()) == 1


def test_calibration_is_the_least_squares_line() -> None:
    exact = fit_calibration([(10, 27), (100, 162), (50, 87)])
    assert (exact.tokens_per_word, exact.overhead_tokens) == pytest.approx((1.5, 12.0))
    noisy = fit_calibration([(10, 26), (100, 163), (10, 28), (100, 161)])
    assert noisy.tokens_per_word == pytest.approx(1.5)


@pytest.mark.parametrize("points", [[], [(10, 20)], [(10, 20), (10, 30)], [(10, 20), (20, 20)], [(10, 30), (20, 20)]])
def test_calibration_refuses_what_has_no_line(points: list[tuple[int, int]]) -> None:
    with pytest.raises(ValueError, match="word"):
        fit_calibration(points)
