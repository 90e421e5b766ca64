"""A suite file as values: its tests, their parameters, and what is wrong with it."""

from __future__ import annotations

import json
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_llmperf.errors import SuiteError
from pytest_llmperf.suitefile import read_suite

SUITE = """\
[defaults]
workload = "chat"

[tests.chat]
concurrency = 16
parametrize = { concurrency = [1, 16], request_rate = ["5 req/s"] }

[tests."load-2"]
sla = { ttft_p95 = "500 ms" }
"""


def test_every_combination_is_a_test_with_a_readable_name() -> None:
    tests = read_suite(SUITE, "a.llmperf.toml")
    assert [(test.test, test.name, test.line) for test in tests] == [
        ("chat", "chat[1-5 req/s]", 3),
        ("chat", "chat[16-5 req/s]", 3),
        ("load-2", "load-2", 7),
    ]
    assert tests[1].parameters == {"concurrency": 16, "request_rate": "5 req/s"}
    assert tests[2].table == {"sla": {"ttft_p95": "500 ms"}}
    assert {json.dumps(test.defaults) for test in tests} == {'{"workload": "chat"}'}


SCALARS = st.integers(-9, 99) | st.text(st.characters(codec="ascii", categories=("L", "N")), min_size=1, max_size=4)


@given(
    st.dictionaries(
        st.from_regex(r"[a-z]{1,5}", fullmatch=True), st.lists(SCALARS, min_size=1, max_size=4, unique_by=str),
        max_size=3,
    )
)  # fmt: skip
def test_parameters_are_the_product_in_the_order_written(values: dict[str, list[int | str]]) -> None:
    pairs = ", ".join(f"{name} = {json.dumps(given)}" for name, given in values.items())
    tests = read_suite(f"[tests.x]\nparametrize = {{ {pairs} }}", "x")
    assert [tuple(test.parameters.values()) for test in tests] == list(product(*values.values()))
    assert [test.name for test in tests] == [
        f"x[{'-'.join(map(str, chosen))}]" if chosen else "x" for chosen in product(*values.values())
    ]


@pytest.mark.parametrize("value", ["{ input = 8 }", "[1, 2]", '"a::b"', '"[x]"', '"ü"', '"a\\nb"', '""'])
def test_a_value_that_no_node_id_can_hold_gets_its_number(value: str) -> None:
    (_, test) = read_suite(f"[tests.x]\nparametrize = {{ workload = ['a', {value}] }}", "x")
    assert test.name == "x[workload1]"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[tests.a\n", "s: not valid TOML: "),
        ("x = " + "9" * 5000, "s: not valid TOML: "),
        ("", "s: tests: there is no test; begin one with [tests.NAME]"),
        ("[test.a]\n", "s: test: unknown table; did you mean 'tests'?"),
        ("tests = 3\n", "s: tests: 3 is not a table; write [tests]"),
        ("[tests]\na = 3\n", "s: tests.a: 3 is not a table; write [tests.a]"),
        ("defaults = []\n[tests.a]\n", "s: defaults: [] is not a table; write [defaults]"),
        ("[tests.'a b']\n", "s: tests: 'a b' is not a name of letters, digits, '_' and '-'"),
        ("[tests.'']\n", "s: tests: '' is not a name"),
        ("[tests.a]\nsla = 3\n", "s: tests.a.sla: 3 is not a table; write e.g. { ttft_p50 = ... }"),
        ("[tests.a]\nregression = ['x']\n", "s: tests.a.regression: 'x' is not a table"),
        ("[tests.a]\nself = 1\n", "s: tests.a.self: unknown key"),
        ("[tests.a]\nsla = { self = 1 }\n", "s: tests.a.sla.self: unknown key"),
        ("[tests.a]\nparametrize = [1]\n", "s: tests.a.parametrize: [1] is not a table such as { concurrency ="),
        ("[tests.a]\nparametrize = { x = 1 }\n", "s: tests.a.parametrize.x: 1 is not a list of values such as"),
        ("[tests.a]\nparametrize = { x = [] }\n", "s: tests.a.parametrize.x: [] is not a list of values such as"),
        ("[tests.a]\nparametrize = { x = [1, '1'] }\n", "s: tests.a.parametrize.x: 1 is listed twice"),
        ("[defaults]\nparametrize = {}\n[tests.a]\n", "s: defaults.parametrize: belongs into [tests.NAME]"),
    ],
)
def test_a_bad_file_is_one_error_with_file_key_and_value(text: str, expected: str) -> None:
    with pytest.raises(SuiteError) as caught:
        read_suite(text, "s")
    assert expected in str(caught.value)


@given(st.text(st.sampled_from("[]{}=.,'\"\n#ab1 tests.defaults parametrize sla"), max_size=60))
def test_whatever_stands_in_the_file_is_tests_or_a_suite_error(text: str) -> None:
    try:
        outcome = [test.name for test in read_suite(text, "s")]
    except SuiteError as error:
        outcome = [error.where]
    assert outcome
    assert all(outcome)
