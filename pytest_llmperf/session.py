"""One pytest invocation with ``--llmperf``: campaigns, verdicts, report and exit status, as pytest hooks."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Final, final

import pytest

from pytest_llmperf import options
from pytest_llmperf.campaign import Campaign, group
from pytest_llmperf.errors import InfraError, LlmperfError, UsageError
from pytest_llmperf.journal import Journal
from pytest_llmperf.markers import read_plan
from pytest_llmperf.options import RunOptions
from pytest_llmperf.part import TestPart, describe_trouble, fail
from pytest_llmperf.plan import Plan
from pytest_llmperf.reports.progress import ProgressDisplay
from pytest_llmperf.reports.schedule import describe_campaign
from pytest_llmperf.reports.terminal import failure_message, render
from pytest_llmperf.result import TestReport
from pytest_llmperf.signals import interrupt_on_sigterm

__all__ = ["LlmperfSession", "register", "session_of"]

UNDECIDED: Final = ("INCONCLUSIVE", "NO_BASELINE")
FAILING: Final = ("INVALID", "CONFOUNDED", "FAIL")
EXIT_UNDECIDED: Final = 10
EXIT_INFRA: Final = 12
VERDICT: Final = "llmperf_verdict"
FAILURE_KIND: Final = "llmperf_failure"
"""Names of test properties: they reach JUnit, and the controller under xdist."""

PART: Final = pytest.StashKey[TestPart]()
SESSION: Final = pytest.StashKey["LlmperfSession"]()


def register(config: pytest.Config) -> None:
    """Make the plugin of this run. Raises pytest.UsageError for a bad configuration."""
    try:
        run_options = options.read_options(config)
    except UsageError as error:
        raise pytest.UsageError(str(error)) from None
    options.refuse_shared_workers(config, run_options.settings)
    session = LlmperfSession(config, run_options)
    config.stash[SESSION] = session
    config.pluginmanager.register(session, "llmperf-session")


def session_of(config: pytest.Config) -> LlmperfSession:
    return config.stash[SESSION]


@final
class LlmperfSession:
    """The hooks of a run with ``--llmperf``."""

    def __init__(self, config: pytest.Config, run_options: RunOptions) -> None:
        self._options = run_options
        self._progress = ProgressDisplay(_around_drawing(config))
        self._campaigns: list[Campaign] = []
        self._active: Campaign | None = None
        self._parts: dict[str, TestPart] = {}
        self._reports: dict[str, TestReport] = {}
        self._failure_kinds: set[str] = set()
        self._journal: Journal | None = None
        self._ended = False
        self._restore_signal: Callable[[], None] = lambda: None

    def part(self, item: pytest.Item) -> TestPart:
        """The part of ``item``, its server live. Fails the test with one message where that cannot be."""
        part = item.stash[PART]
        try:
            self._make_room(part.campaign)
            part.campaign.ready()
        except LlmperfError as error:
            part.error = error
            _mark_trouble(item, error)
            fail(describe_trouble(error))
        return part

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        plans = _read_plans(items, self._options)
        members = group(list(plans.values()))
        _bring_together(items, [[plan.nodeid for plan in campaign] for campaign in members])
        self._campaigns = [Campaign(campaign, self._options.report_dir, self._progress) for campaign in members]
        for campaign in self._campaigns:
            for plan in campaign.plans:
                self._parts[plan.nodeid] = TestPart(plan, campaign)
        for item in items:
            if item.nodeid in self._parts:
                item.stash[PART] = self._parts[item.nodeid]

    def pytest_report_collectionfinish(self) -> list[str]:
        if not self._campaigns:
            return ["llmperf: no performance test is selected"]
        last = Journal.last_report(self._options.report_dir)
        return [line for campaign in self._campaigns for line in describe_campaign(campaign.plans, last)]

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        if self._options.dry_run:
            return True
        if self._campaigns and not session.config.option.collectonly:
            try:
                self._journal = Journal.begin(self._options.report_dir)
            except InfraError as error:
                raise pytest.UsageError(str(error)) from None
            self._write_report(partial=True)
            self._restore_signal = interrupt_on_sigterm()
        return None

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        part = item.stash.get(PART, None)
        began = time.monotonic()
        if part is None:
            return (yield)
        part.outcome = "interrupted"  # what it stays if the run ends here
        try:
            return (yield)
        finally:
            self._finish(part, time.monotonic() - began)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, object, object]:
        part = item.stash.get(PART, None)
        if part is None:
            return (yield)
        try:
            value = yield
        except BaseException:
            # The test failed by itself; what was measured is judged and reported all the same.
            part.judge()
            raise
        finally:
            _mark_trouble(item, part.error)
        if part.calls == 0:
            fail("the test never called llmperf.run(): nothing was measured")
        verdict = part.judge()
        if verdict is None:  # run() failed, and the test swallowed that
            fail(part.message_of_error())
        item.user_properties += [(VERDICT, verdict.name), *part.properties()]
        undecided_fails = verdict.name in UNDECIDED and self._options.undecided == "fail"
        if undecided_fails:
            item.user_properties.append((FAILURE_KIND, "undecided"))
        if verdict.name in FAILING or undecided_fails:
            fail(failure_message(part.report(0.0), str(self._options.report_dir)))
        return value

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        part = item.stash.get(PART, None)
        if part is not None:
            part.note_outcome(report.when, report.outcome, report.longreprtext)
        return report

    @pytest.hookimpl(tryfirst=True)
    def pytest_report_teststatus(
        self, report: pytest.CollectReport | pytest.TestReport
    ) -> tuple[str, str, tuple[str, dict[str, bool]]] | None:
        properties = dict(getattr(report, "user_properties", ()))
        verdict = properties.get(VERDICT)
        if report.when == "call" and report.passed and verdict in UNDECIDED:
            return str(verdict).lower(), "?", (str(verdict), {"yellow": True})
        if report.failed and properties.get(FAILURE_KIND) == "infra":
            return "error", "E", ("INFRA", {"red": True})
        return None

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._failure_kinds.add(str(dict(report.user_properties).get(FAILURE_KIND, "other")))

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if session.exitstatus == pytest.ExitCode.TESTS_FAILED and "other" not in self._failure_kinds:
            if "undecided" in self._failure_kinds:
                session.exitstatus = EXIT_UNDECIDED
            elif "infra" in self._failure_kinds:
                session.exitstatus = EXIT_INFRA
        self._end(complete=session.exitstatus not in (pytest.ExitCode.INTERRUPTED, pytest.ExitCode.INTERNAL_ERROR))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self._journal is None:
            return
        terminalreporter.section("llmperf", "=")
        width, color = terminalreporter._tw.fullwidth, terminalreporter.hasmarkup  # noqa: SLF001  (no public way)
        for report in self._reports.values():
            terminalreporter.write(render(report, width, color) + "\n")
        terminalreporter.write_line(f"report: {self._journal.path}")

    def pytest_unconfigure(self) -> None:
        self._end(complete=False)  # reached also where pytest_sessionfinish was not

    def _make_room(self, campaign: Campaign) -> None:
        """One server at a time: the campaign that holds the machine runs to its end before another begins."""
        if self._active is not None and self._active is not campaign:
            self._active.finish()
            self._active.close()
        self._active = campaign

    def _finish(self, part: TestPart, duration: float) -> None:
        part.campaign.drop(part.plan)
        self._reports[part.plan.nodeid] = part.report(duration)
        if part.outcome != "interrupted" and all(plan.nodeid in self._reports for plan in part.campaign.plans):
            part.campaign.close()
        self._write_report(partial=True)

    def _end(self, *, complete: bool) -> None:
        if self._ended:
            return
        self._ended = True
        self._progress.idle()
        for campaign in self._campaigns:
            campaign.close()
        if self._journal is not None:
            for nodeid, part in self._parts.items():
                self._reports.setdefault(nodeid, part.report(0.0))
            self._write_report(partial=not complete)
            self._journal.end()
        self._restore_signal()

    def _write_report(self, *, partial: bool) -> None:
        if self._journal is not None:
            reports = [self._reports[nodeid] for nodeid in self._parts if nodeid in self._reports]
            self._journal.write([campaign.report() for campaign in self._campaigns], reports, partial=partial)


def _mark_trouble(item: pytest.Item, error: LlmperfError | None) -> None:
    """INFRA trouble says nothing about performance: it gets an exit status of its own."""
    if isinstance(error, InfraError):
        item.user_properties.append((FAILURE_KIND, "infra"))


def _read_plans(items: Sequence[pytest.Item], run_options: RunOptions) -> dict[str, Plan]:
    """Plans by node id. Raises pytest.UsageError with one line per faulty test."""
    plans: dict[str, Plan] = {}
    faults: list[str] = []
    for item in items:
        try:
            plan = read_plan(item, run_options)
        except UsageError as error:
            faults.append(f"{item.nodeid}: {error}")
            continue
        if plan is not None:
            plans[item.nodeid] = plan
    if faults:
        raise pytest.UsageError(*faults)
    return plans


def _bring_together(items: list[pytest.Item], campaigns: Sequence[Sequence[str]]) -> None:
    """Reorder ``items`` in place so that the tests of one campaign follow each other; all other tests stay put."""
    by_nodeid = {item.nodeid: item for item in items}
    ordered = iter([by_nodeid[nodeid] for campaign in campaigns for nodeid in campaign])
    ours = {nodeid for campaign in campaigns for nodeid in campaign}
    items[:] = [next(ordered) if item.nodeid in ours else item for item in items]


def _around_drawing(config: pytest.Config) -> Callable[[bool], AbstractContextManager[None]]:
    """What must surround drawing: capture off, and on demand the cursor on a line of its own."""

    def surround(fresh_line: bool) -> AbstractContextManager[None]:
        reporter = config.pluginmanager.get_plugin("terminalreporter")
        capture = config.pluginmanager.get_plugin("capturemanager")
        context = capture.global_and_fixture_disabled() if capture is not None else nullcontext()
        if fresh_line and reporter is not None:
            reporter.ensure_newline()
        return context

    return surround
