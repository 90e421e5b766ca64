"""Flags of a command line: read by name, and one of them changed."""

from __future__ import annotations

import pytest

from pytest_llmperf.engines.flags import flags_of, set_flag


def test_flags_are_read_in_every_way_of_writing_them() -> None:
    words = ["lead", "--a", "1", "--b=2=3", "--switch", "-n", "-1", "--many", "x", "y", "--a", "4", "-"]
    assert flags_of(words) == {
        "positional": "lead",
        "--a": "1, 4 -",
        "--b": "2=3",
        "--switch": "set",
        "-n": "-1",
        "--many": "x y",
    }
    assert flags_of([]) == {}


@pytest.mark.parametrize(
    ("words", "flag", "value", "expected"),
    [
        ("--a 1 --b 2", "--a", "9", "--a 9 --b 2"),
        ("--a=1 --b 2", "--a", "9", "--a 9 --b 2"),
        ("--a 1 --b 2", "--c", "3", "--a 1 --b 2 --c 3"),
        ("--a 1 --b 2", "--a", "", "--b 2"),
        ("--a 1 2 --b --a 3", "--a", "9", "--a 9 --b"),
        ("--b", "--b", False, ""),
        ("", "--b", True, "--b"),
        ("--b", "--b", True, "--b"),
        ("--n 1", "--n", "-1", "--n=-1"),
        ("x --a 1", "--a", "", "x"),
        ("--a 1", "--missing", "", "--a 1"),
    ],
)
def test_one_flag_is_set_replaced_or_removed_in_its_place(
    words: str, flag: str, value: str | bool, expected: str
) -> None:
    assert set_flag(words.split(), flag, value) == tuple(expected.split())


def test_a_value_with_spaces_stays_one_argument() -> None:
    assert set_flag(["--a"], "--json", '{"x": 1}') == ("--a", "--json", '{"x": 1}')
