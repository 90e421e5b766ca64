"""What pytest is told of a run beside pass and fail: INFRA, undecided tests, trouble of no test, the exit status."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from typing import Final, final

import pytest

from pytest_llmperf.part import UNDECIDED, FailureKind

__all__ = ["EXIT_INFRA", "VERDICT", "RunStatus", "mark_failure", "shown_status"]

EXIT_UNDECIDED: Final = 10
EXIT_INFRA: Final = 12
VERDICT: Final = "llmperf_verdict"
FAILURE_KIND: Final = "llmperf_failure"
"""Names of test properties: they reach JUnit, and the controller under xdist."""
TROUBLES: Final = "llmperf_troubles"


def mark_failure(report: pytest.TestReport, kind: FailureKind) -> None:
    """Note what the exit status makes of this failed phase; trouble of the machine becomes pytest's *error*.

    pytest tells error and failure by the phase alone, so trouble that arose in the call is reported as one of set-up:
    that is what it is, the machine was not fit for the test. The report is changed where it is made, once: terminal,
    JUnit, ``--lf``, ``-x``, rerun plugins and the controller of xdist all read the phase from it. Raising at set-up
    would not do: a campaign runs only when a test calls ``llmperf.run()``, and trouble can come under any load.
    """
    # On this report alone: another phase of the same test may fail for another reason.
    report.user_properties.append((FAILURE_KIND, kind))
    if kind == "infra" and report.when == "call":
        report.when = "setup"


def shown_status(
    report: pytest.CollectReport | pytest.TestReport,
) -> tuple[str, str, tuple[str, dict[str, bool]]] | None:
    """Category, letter and word of what pytest has no word for."""
    properties = dict(getattr(report, "user_properties", ()))
    verdict = properties.get(VERDICT)
    if report.when == "call" and report.passed and verdict in UNDECIDED:
        return str(verdict).lower(), "?", (str(verdict), {"yellow": True})
    if report.failed and properties.get(FAILURE_KIND) == "infra":
        return "error", "E", ("INFRA", {"red": True})
    return None


@final
class RunStatus:
    """Gathers what the exit status depends on."""

    def __init__(self) -> None:
        self._kinds: set[str] = set()
        self.troubles: list[str] = []
        """INFRA that came between the tests and is of none of them, such as a server that did not end."""

    def note(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._kinds.add(str(dict(report.user_properties).get(FAILURE_KIND, "other")))

    def hand_over(self, output: MutableMapping[str, object]) -> None:
        """What a worker of xdist tells its controller besides the reports of its tests."""
        output[TROUBLES] = list(self.troubles)

    def take_over(self, output: Mapping[str, object]) -> None:
        troubles = output.get(TROUBLES)
        self.troubles += map(str, troubles) if isinstance(troubles, list) else ()

    def exit_status(self, by_pytest: int) -> int:
        """The status in place of pytest's own: 12 where INFRA is all there is, 10 for undecided tests under "fail"."""
        if by_pytest == pytest.ExitCode.OK and self.troubles:
            return EXIT_INFRA
        if by_pytest != pytest.ExitCode.TESTS_FAILED or "other" in self._kinds or not self._kinds:
            return by_pytest
        return EXIT_UNDECIDED if "undecided" in self._kinds else EXIT_INFRA
