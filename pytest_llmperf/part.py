"""One test's part of its campaign: what the ``llmperf`` fixture hands to the test."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, NoReturn, final

import pytest

from pytest_llmperf.campaign.campaign import Campaign
from pytest_llmperf.errors import InfraError, LlmperfError
from pytest_llmperf.gate import Verdict
from pytest_llmperf.identity import Identity
from pytest_llmperf.options import RunOptions
from pytest_llmperf.plan import Plan
from pytest_llmperf.records import Endpoint
from pytest_llmperf.reports.failure import failure_message
from pytest_llmperf.reports.junit import properties
from pytest_llmperf.result import Result, TestReport, VerdictName
from pytest_llmperf.stored import public_plan

__all__ = ["INFRA_PREFIX", "UNDECIDED", "FailureKind", "LiveServer", "TestPart"]

UNDECIDED: Final = ("INCONCLUSIVE", "NO_BASELINE")
FAILING: Final = ("INVALID", "CONFOUNDED", "FAIL")
FailureKind = Literal["undecided", "infra", "other"]
Outcome = Literal["passed", "failed", "error", "skipped", "interrupted"]
SECOND_RUN: Final = "llmperf.run() was called a second time: a test has one load; write a second test for another one"
INFRA_PREFIX: Final = "INFRA (says nothing about performance): "


@dataclass(frozen=True, slots=True)
class LiveServer:
    """Where the live server is, and what it says it is."""

    endpoint: Endpoint
    identity: Identity

    @property
    def url(self) -> str:
        return self.endpoint.base_url

    @property
    def model(self) -> str:
        return self.endpoint.model


@final
class TestPart:
    """Runs the load of one test, once, and holds what became of it."""

    __test__ = False

    def __init__(self, plan: Plan, campaign: Campaign, run_options: RunOptions) -> None:
        self.plan = plan
        self.campaign = campaign
        self._options = run_options
        self.calls = 0
        self.error: LlmperfError | None = None
        """Of the campaign. A rerun of the test gets it again: a campaign that broke off has nothing left to do."""
        self.outcome: Outcome = "skipped"
        self.message: str | None = "not run: the test run ended before its turn"
        self._result: Result | None = None
        self._verdict: Verdict | None = None
        self._raised: tuple[BaseException, FailureKind] | None = None
        self._left = False

    def prepare(self) -> None:
        """Make the server live, where the test may still need it. Fails it with one message where that cannot be."""
        if self._options.worker and not self._is_of_this_worker():
            self._raise(f"server {self.plan.server.name} is not a GPU of this worker's own: run with -n0", "other")
        if self._result is not None:
            return
        try:
            self.campaign.prepare()
        except LlmperfError as error:
            self._fail(error)

    @property
    def server(self) -> LiveServer:
        """The live server. Fails the test with one message where there is none."""
        try:
            live = self.campaign.ready()
        except LlmperfError as error:
            self._fail(error)
        return LiveServer(live.endpoint, live.identity)

    def run(self) -> Result:
        """Drive this test's load, or hand over what its campaign has measured already. Exactly once per test."""
        self.calls += 1
        if self.calls > 1:
            self._raise(SECOND_RUN, "other")
        if self._result is None:
            self._result = self._measured()
        return self._result

    def break_off(self, error: LlmperfError) -> None:
        """Its campaign ended by ``error`` when the machine was needed; the test has it when it asks."""
        if self._result is None and self.error is None:
            self.error = error

    def leave(self) -> None:
        """The test's turn is over: the campaign goes on without it."""
        self._left = True
        self.campaign.drop(self.plan)

    def require_verdict(self) -> Verdict:
        """The verdict of a test that ended by itself; fails it where it has measured nothing."""
        if self.calls == 0:
            self._raise("the test never called llmperf.run(): nothing was measured", "other")
        if self.calls > 1:
            self._raise(SECOND_RUN, "other")
        verdict = self.judge()
        if verdict is None:  # run() failed, and the test swallowed that
            if self.error is not None:
                self._fail(self.error)
            self._raise("llmperf.run() did not finish", "other")
        return verdict

    def fail_unless_passed(self, verdict: Verdict) -> None:
        """Fail the test with the whole message where its verdict, or the policy on undecided ones, says so."""
        message = self.why_not_passed(verdict)
        if message is not None:
            self._raise(message, "undecided" if verdict.name in UNDECIDED else "other")

    def why_not_passed(self, verdict: Verdict) -> str | None:
        """The whole message; None where the verdict lets the test pass."""
        undecided = verdict.name in UNDECIDED and self._options.undecided == "fail"
        if verdict.name not in FAILING and not undecided:
            return None
        return failure_message(self.report(0.0), str(self._options.report_dir))

    def failure_kind(self, raised: BaseException) -> FailureKind:
        """What the exit status makes of a failure of this test: of this very exception, not of the test as such."""
        return self._raised[1] if self._raised is not None and self._raised[0] is raised else "other"

    def judge(self) -> Verdict | None:
        """The verdict on what was measured, made once; None where nothing was."""
        if self._verdict is None and self._result is not None:
            self._verdict = self.campaign.judge(self.plan, self._result)
        return self._verdict

    def begin(self) -> None:
        """The test's turn has come; what is set here stays if the run ends before the test does."""
        self.outcome, self.message = "interrupted", "the run was interrupted while this test ran"

    def note_outcome(self, when: str | None, outcome: str, text: str) -> None:
        """Take in the report of one phase; the first that did not pass stays."""
        if outcome == "skipped":
            self.outcome, self.message = "skipped", text
        elif outcome == "failed" and self.outcome not in ("failed", "error"):
            self.outcome, self.message = ("failed" if when == "call" else "error"), text
        elif when == "teardown" and self.outcome == "interrupted":
            self.outcome, self.message = "passed", None

    def properties(self) -> list[tuple[str, object]]:
        """What JUnit is told beside the outcome."""
        return properties(self.report(0.0))

    def report(self, duration_s: float) -> TestReport:
        result, verdict = self._result, self._verdict
        judgement, comparisons = self.campaign.comparison(self.plan)
        return TestReport(
            nodeid=self.plan.nodeid,
            verdict=verdict.name if verdict is not None else self._no_verdict(),
            outcome=self.outcome,
            duration_s=duration_s,
            plan=public_plan(self.plan),
            identity=self.campaign.identity(self.plan),
            metrics=result.metrics if result is not None else {},
            trials=self.campaign.trial_reports(self.plan),
            slas=verdict.checks if verdict is not None else (),
            judgement=judgement,
            comparisons=comparisons,
            notes=self.campaign.notes(self.plan),
            message=self.message,
        )

    def _measured(self) -> Result:
        if self._left and not self.campaign.trial_reports(self.plan):
            self.break_off(LlmperfError("the campaign went on without this test, which had ended before; run it anew"))
        if self.error is not None:
            self._fail(self.error)
        try:
            return self.campaign.result(self.plan)
        except LlmperfError as error:
            self._fail(error)
        except BaseException as error:  # such as the exception of a plugin that limits the time
            self.error = LlmperfError(f"the measurement broke off: {type(error).__name__}: {error}")
            raise

    def _is_of_this_worker(self) -> bool:
        return not self.campaign.shared_by_workers and {*self.campaign.spec.gpus} <= {*self._options.gpus}

    def _fail(self, error: LlmperfError) -> NoReturn:
        self.error = error
        if isinstance(error, InfraError):
            self._raise(f"{INFRA_PREFIX}{error}", "infra")
        launch = "FAIL: launch: the candidate twice failed to start, and the baseline starts\n"
        self._raise(f"{launch if self.campaign.failed_to_start(self.plan) else ''}{error}", "other")

    def _raise(self, message: str, kind: FailureKind) -> NoReturn:
        """Fail the test with the message alone: a traceback through this package helps nobody."""
        failure = pytest.fail.Exception(message, pytrace=False)
        self._raised = failure, kind
        raise failure from None

    def _no_verdict(self) -> VerdictName:
        if self.campaign.failed_to_start(self.plan):
            return "FAIL"
        return "INFRA" if isinstance(self.error, InfraError) else "NOT_RUN"
