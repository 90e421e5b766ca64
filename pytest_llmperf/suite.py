"""``*.llmperf.toml``: performance tests declared without Python, collected and run as any other.

The tables become the markers of their tests, so whatever reads those reads suites too: a test's own table is as close
as a marker of a function, ``[defaults]`` as far as one of a module. Imports nothing heavy: without ``--llmperf`` the
tests are collected to be skipped.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

import pytest

from pytest_llmperf.errors import MarkerError, SuiteError
from pytest_llmperf.fixtures import SKIPPED
from pytest_llmperf.suitefile import MARKED, TABLES, Declared, holds, layers, read_suite

if TYPE_CHECKING:
    from pytest_llmperf.part import TestPart

__all__ = ["SuiteFile", "SuiteTest"]


@final
class SuiteFile(pytest.File):
    """One file; ``collect`` raises CollectError where its tests cannot be told, with file, key and value."""

    def collect(self) -> Iterator[SuiteTest]:
        try:
            tests = read_suite(self.path.read_text(encoding="utf-8"), self.nodeid)
        except SuiteError as error:
            raise self.CollectError(str(error)) from None
        except (OSError, UnicodeDecodeError) as error:
            raise self.CollectError(f"{self.nodeid}: cannot be read: {error}") from None
        for mark in _marks(tests[0].defaults):
            self.add_marker(mark)
        for test in tests:
            yield SuiteTest.from_parent(self, name=test.name, declared=test)


@final
class SuiteTest(pytest.Item):
    """One test of a suite, with one set of its parameters."""

    __test__ = False  # no test class of this package, whatever its name

    def __init__(self, *, declared: Declared, **node: Any) -> None:
        super().__init__(**node)
        self._declared = declared
        self._part: TestPart | None = None
        for mark in _marks(declared.table):
            self.add_marker(mark)

    @property
    def parameters(self) -> Mapping[str, Any]:
        """What ``parametrize`` gives to this one."""
        return self._declared.parameters

    def setup(self) -> None:
        if not self.config.getoption("llmperf"):
            pytest.skip(SKIPPED)
        from pytest_llmperf.session import session_of

        self._part = session_of(self.config).part(self)

    def runtest(self) -> None:
        assert self._part is not None
        self._part.run()

    def teardown(self) -> None:
        self._part = None

    def reportinfo(self) -> tuple[Path, int, str]:
        return self.path, self._declared.line, self.name

    def located(self, error: MarkerError) -> SuiteError:
        """``error`` with the file and the key that hold the fault, in place of the marker."""
        declared, first = self._declared, error.argument.partition(".")[0]
        path = [f"tests.{declared.test}", *([error.marker] if error.marker != "llmperf" else ()), error.argument]
        if error.marker == "llmperf" and first in declared.parameters:
            path.insert(1, "parametrize")
        elif not holds(declared.table, error.marker, first) and holds(declared.defaults, error.marker, first):
            path[0] = "defaults"
        assert self.parent is not None
        return SuiteError(self.parent.nodeid, ".".join(filter(None, path)), error.problem)


def _marks(table: Mapping[str, Any]) -> Iterator[pytest.MarkDecorator]:
    """The markers that a table stands for; of several ``[[sla]]`` the last is the closest."""
    yield pytest.mark.llmperf(**{key: value for key, value in table.items() if key not in TABLES})
    for marker in MARKED:
        for layer in reversed(layers(table, marker)):
            yield getattr(pytest.mark, marker)(**layer)
