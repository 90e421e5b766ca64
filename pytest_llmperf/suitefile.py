"""A suite, ``*.llmperf.toml``, as values: its tests with all combinations of their parameters.

Only the shape of the file is looked at here, enough to tell its tests; their values are read with the plan.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Final

from pytest_llmperf.errors import SuiteError, nearest

__all__ = ["MARKED", "TABLES", "Declared", "holds", "layers", "read_suite"]

Table = Mapping[str, Any]

MARKED: Final = ("sla", "regression")
TABLES: Final = (*MARKED, "parametrize")
"""Keys of a test that are no arguments of the llmperf marker."""
_NAME: Final = re.compile(r"[A-Za-z0-9_-]+")


@dataclass(frozen=True, slots=True)
class Declared:
    """One test with one set of its parameters."""

    test: str
    """Its table is ``tests.<test>``."""
    name: str
    """In the node id: ``chat[16]``."""
    table: Table
    defaults: Table
    parameters: Table
    line: int
    """Of the test's table in the file, from 0; 0 where it has no heading of its own."""


def read_suite(text: str, shown: str) -> tuple[Declared, ...]:
    """The tests of a file with content ``text``, at least one.

    Raises SuiteError that calls the file ``shown``, with key and value.
    """
    try:
        content = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # also a number without end
        raise SuiteError(shown, "", f"not valid TOML: {error}") from None
    for key in content:
        if key not in ("defaults", "tests"):
            raise SuiteError(shown, key, f"unknown table{nearest(key, ('defaults', 'tests'))}")
    defaults = _test_table(content.get("defaults", {}), shown, "defaults")
    if "parametrize" in defaults:
        raise SuiteError(shown, "defaults.parametrize", "belongs into [tests.NAME]")
    tests = _table(content.get("tests", {}), shown, "tests")
    if not tests:
        raise SuiteError(shown, "tests", "there is no test; begin one with [tests.NAME]")
    return tuple(declared for name in tests for declared in _declared(name, tests[name], defaults, text, shown))


def layers(table: Table, marker: str) -> Sequence[Any]:
    """What ``table`` says for ``marker``: one table, or an array of them for limits with a confidence of their own."""
    given = table.get(marker)
    return given if isinstance(given, list) else [] if given is None else [given]


def holds(table: Table, marker: str, argument: str) -> bool:
    """Whether ``table`` gives ``argument`` to ``marker``; an empty argument stands for the marker itself."""
    if marker == "llmperf":
        return argument in table
    return any(argument in layer or not argument for layer in layers(table, marker))


def _declared(name: str, given: Any, defaults: Table, text: str, shown: str) -> Iterator[Declared]:
    if not _NAME.fullmatch(name):
        raise SuiteError(shown, "tests", f"{name!r} is not a name of letters, digits, '_' and '-'")
    table = _test_table(given, shown, f"tests.{name}")
    line = _line(text, name)
    for suffix, parameters in _combinations(table.get("parametrize", {}), shown, f"tests.{name}.parametrize"):
        yield Declared(name, f"{name}{suffix}", table, defaults, parameters, line)


def _line(text: str, name: str) -> int:
    heading = re.search(rf"""^[ \t]*\[[ \t]*tests[ \t]*\.[ \t]*["']?{name}["']?[ \t]*\]""", text, re.MULTILINE)
    return text.count("\n", 0, heading.start()) if heading else 0


def _table(given: Any, shown: str, key: str) -> Table:
    if not isinstance(given, Mapping):
        raise SuiteError(shown, key, f"{given!r} is not a table; write [{key}]")
    return given


def _test_table(given: Any, shown: str, key: str) -> Table:
    table = _table(given, shown, key)
    parts = [(key, table), *((f"{key}.{name}", layer) for name in MARKED for layer in layers(table, name))]
    for where, layer in parts:
        if not isinstance(layer, Mapping):
            raise SuiteError(shown, where, f"{layer!r} is not a table; write e.g. {{ ttft_p50 = ... }}")
        if "self" in layer:  # the one key that cannot be handed to a marker
            raise SuiteError(shown, f"{where}.self", "unknown key")
    return table


def _combinations(given: Any, shown: str, key: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """All combinations of values with what they add to the test's name, the first key changing last.

    Without any key one empty combination that adds nothing.
    """
    if not isinstance(given, Mapping):
        raise SuiteError(shown, key, f"{given!r} is not a table such as {{ concurrency = [1, 16] }}")
    texts: dict[str, list[str]] = {}
    for name, values in given.items():
        if not isinstance(values, list) or not values:
            raise SuiteError(shown, f"{key}.{name}", f"{values!r} is not a list of values such as [1, 16]")
        texts[name] = [_text(name, at, value) for at, value in enumerate(values)]
        for text in texts[name]:
            if texts[name].count(text) > 1:
                raise SuiteError(shown, f"{key}.{name}", f"{text} is listed twice")
    for chosen in product(*(range(len(values)) for values in given.values())):
        suffix = "-".join(texts[name][at] for name, at in zip(given, chosen, strict=True))
        parameters = {name: given[name][at] for name, at in zip(given, chosen, strict=True)}
        yield f"[{suffix}]" if suffix else "", parameters


def _text(name: str, at: int, value: Any) -> str:
    """A value in a node id, as pytest writes it in those of Python tests: itself where it is plain."""
    text = str(value) if isinstance(value, str | int | float) else ""
    plain = text.isascii() and text.isprintable() and not {"[", "]"} & set(text) and "::" not in text
    return text if text and plain else f"{name}{at}"
