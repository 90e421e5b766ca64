"""One pytest invocation with ``--llmperf``: campaigns, verdicts, report and exit status, as pytest hooks."""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from typing import Final, final

import pytest

from pytest_llmperf import options
from pytest_llmperf.benchmark_rows import BenchmarkRows, refuse_benchmark_only
from pytest_llmperf.campaign.assembly import Assembly
from pytest_llmperf.campaign.campaign import Campaign, group
from pytest_llmperf.drawing import around_drawing
from pytest_llmperf.errors import InfraError, LlmperfError, UsageError
from pytest_llmperf.journal import Journal
from pytest_llmperf.options import RunOptions, is_controller
from pytest_llmperf.part import UNDECIDED, TestPart
from pytest_llmperf.reports.progress import ProgressDisplay
from pytest_llmperf.reports.schedule import describe_campaign
from pytest_llmperf.reports.terminal import render, render_summary
from pytest_llmperf.result import RunReport, TestReport
from pytest_llmperf.selection import bring_together, read_plans
from pytest_llmperf.signals import interrupt_on_sigterm
from pytest_llmperf.stored import public_plan

__all__ = ["LlmperfSession", "register", "session_of"]

EXIT_UNDECIDED: Final = 10
EXIT_INFRA: Final = 12
VERDICT: Final = "llmperf_verdict"
FAILURE_KIND: Final = "llmperf_failure"
"""Names of test properties: they reach JUnit, and the controller under xdist."""

UNPLANNED: Final = "@pytest.mark.llmperf is missing: the llmperf fixture needs a workload and a load"

PART: Final = pytest.StashKey[TestPart]()
SESSION: Final = pytest.StashKey["LlmperfSession"]()


def register(config: pytest.Config) -> None:
    """Make the plugin of this run. Raises pytest.UsageError for a bad configuration."""
    try:
        run_options = options.read_options(config)
    except UsageError as error:
        raise pytest.UsageError(str(error)) from None
    options.refuse_shared_workers(config, run_options.settings)
    refuse_benchmark_only(config)
    session = LlmperfSession(config, run_options)
    config.stash[SESSION] = session
    if not run_options.worker and not run_options.dry_run:
        rows = BenchmarkRows(config, session.reports, run_options.benchmark_json)
        config.pluginmanager.register(rows, "llmperf-benchmark-rows")
    config.pluginmanager.register(session, "llmperf-session")


def session_of(config: pytest.Config) -> LlmperfSession:
    return config.stash[SESSION]


@final
class LlmperfSession:
    """The hooks of a run with ``--llmperf``."""

    def __init__(self, config: pytest.Config, run_options: RunOptions) -> None:
        self._config = config
        self._options = run_options
        self._progress = ProgressDisplay(around_drawing(config))
        self._campaigns: list[Campaign] = []
        self._active: Campaign | None = None
        self._parts: dict[str, TestPart] = {}
        self._reports: dict[str, TestReport] = {}
        self._failure_kinds: set[str] = set()
        self._journal: Journal | None = None
        self._journal_error: str | None = None
        self._warnings: list[str] = []
        """Of the store of baselines: what was set aside."""
        self._ended = False
        self._began = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        self._restore_signal: Callable[[], None] = lambda: None

    def reports(self) -> list[TestReport]:
        """Of the tests that have ended, those of this run's workers included."""
        return [*self._reports.values(), *(test for _, report in self._of_workers() for test in report.tests)]

    def part(self, item: pytest.Item) -> TestPart:
        """The part of ``item``, its server live. Fails the test with one message where that cannot be."""
        part = item.stash.get(PART, None)
        if part is None:
            raise pytest.fail.Exception(UNPLANNED, pytrace=False)
        if self._active is not None and self._active is not part.campaign:
            # One server at a time: the campaign that holds the machine runs to its end before another begins.
            self._active.finish()
            self._active.close()
        self._active = part.campaign
        part.prepare()
        return part

    def _assembly(self) -> Assembly:
        told = self._options
        return Assembly(
            told.settings, told.overrides, told.terms, told.store, self._config.rootpath, self._warnings.append
        )

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Here, not in ``pytest_collection_modifyitems``: whatever deselects (``-k``, ``--lf`` ...) has done so."""
        plans = read_plans(session.items, self._options)
        members = group(list(plans.values()))
        bring_together(session.items, [[plan.nodeid for plan in campaign] for campaign in members])
        try:
            self._campaigns = self._assembly().campaigns(list(plans.values()), self._options.report_dir, self._progress)
        except LlmperfError as error:
            raise pytest.UsageError(str(error)) from None
        for campaign in self._campaigns:
            for plan in campaign.plans:
                self._parts[plan.nodeid] = TestPart(plan, campaign, self._options)
        for item in session.items:
            if item.nodeid in self._parts:
                item.stash[PART] = self._parts[item.nodeid]

    def pytest_report_collectionfinish(self) -> list[str]:
        if not self._campaigns:
            return ["llmperf: no performance test is selected"]
        last = Journal.last_report(self._options.report_dir)
        lines = []
        for campaign in self._campaigns:
            lines += describe_campaign([public_plan(plan) for plan in campaign.plans], last, campaign.forecast())
        return lines

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        if self._options.dry_run:
            return True
        if self._campaigns and not session.config.option.collectonly:
            self._restore_signal = interrupt_on_sigterm()
            try:
                self._journal = Journal.begin(self._options.report_dir, self._options.settings.prices)
            except InfraError as error:
                raise pytest.UsageError(str(error)) from None
            self._write_report(partial=True)
        return None

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        part = item.stash.get(PART, None)
        if part is None:
            return (yield)
        began = time.monotonic()
        part.begin()
        try:
            return (yield)
        finally:
            self._finish(part, time.monotonic() - began)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        part = item.stash.get(PART, None)
        if part is not None:
            part.calls = 0  # a rerun of the test is handed the same measurement

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, object, object]:
        part = item.stash.get(PART, None)
        if part is None:
            return (yield)
        try:
            value = yield
        except BaseException as error:
            # The test ended by itself; what was measured is judged and reported all the same.
            if (verdict := part.judge()) is not None:
                item.user_properties += [(VERDICT, verdict.name), *part.properties()]
                if isinstance(error, pytest.skip.Exception):
                    part.fail_unless_passed(verdict)  # a skip after the measurement hides nothing
                elif (message := part.why_not_passed(verdict)) is not None:
                    item.add_report_section("call", "llmperf", message)
            raise
        verdict = part.require_verdict()
        item.user_properties += [(VERDICT, verdict.name), *part.properties()]
        part.fail_unless_passed(verdict)
        return value

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        part = item.stash.get(PART, None)
        if part is not None:
            part.note_outcome(report.when, report.outcome, report.longreprtext)
            if call.excinfo is not None and report.failed:
                # On this report alone: another phase of the same test may fail for another reason.
                report.user_properties.append((FAILURE_KIND, part.failure_kind(call.excinfo.value)))
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
        ended_well = session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED)
        self._end(complete=ended_well and all(nodeid in self._reports for nodeid in self._parts))
        if session.exitstatus == pytest.ExitCode.TESTS_FAILED and "other" not in self._failure_kinds:
            if "undecided" in self._failure_kinds:
                session.exitstatus = EXIT_UNDECIDED
            elif "infra" in self._failure_kinds:
                session.exitstatus = EXIT_INFRA
        elif session.exitstatus == pytest.ExitCode.OK and self._journal_error is not None:
            session.exitstatus = EXIT_INFRA

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self._journal is None:
            self._show_workers(terminalreporter)
            return
        self._show(terminalreporter, list(self._reports.values()), self._journal.path)
        for warning in dict.fromkeys(self._warnings):
            terminalreporter.write_line(f"store of baselines: {warning}", yellow=True)
        if self._journal_error is not None:
            terminalreporter.write_line(f"the report is incomplete: {self._journal_error}", red=True)

    def pytest_unconfigure(self) -> None:
        self._end(complete=False)  # reached also where pytest_sessionfinish was not

    def _show_workers(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Under xdist the reports are those of the workers, one folder each."""
        for folder, report in self._of_workers():
            self._show(terminalreporter, report.tests, folder / "report.json")

    def _of_workers(self) -> Iterator[tuple[Path, RunReport]]:
        """The reports that workers of this very run have written, with their folders."""
        for worker in self._options.settings.workers if is_controller(self._config) else ():
            folder = self._options.report_dir / worker
            report = Journal.last_report(folder)
            if report is not None and report.created >= self._began:
                yield folder, report

    def _show(self, terminalreporter: pytest.TerminalReporter, tests: Sequence[TestReport], path: Path) -> None:
        terminalreporter.section("llmperf", "=")
        width = self._config.get_terminal_writer().fullwidth
        run = [report for report in tests if report.duration_s > 0]
        for report in run:
            terminalreporter.write(render(report, width, terminalreporter.hasmarkup) + "\n")
        if len(run) < len(tests):
            terminalreporter.write_line(f"{len(tests) - len(run)} test(s) not run: the run ended before their turn")
        terminalreporter.write(render_summary(run, width, terminalreporter.hasmarkup))
        terminalreporter.write_line(f"report: {path}")

    def _finish(self, part: TestPart, duration: float) -> None:
        part.campaign.drop(part.plan)
        part.judge()  # also where a later fixture failed after run()
        self._reports[part.plan.nodeid] = part.report(duration)
        if part.outcome != "interrupted" and all(plan.nodeid in self._reports for plan in part.campaign.plans):
            part.campaign.close()
        self._write_report(partial=True)

    def _end(self, *, complete: bool) -> None:
        if self._ended:
            return
        self._ended = True
        self._progress.idle()
        try:
            for campaign in self._campaigns:
                campaign.close()
        finally:
            if self._journal is not None:
                for nodeid, part in self._parts.items():
                    self._reports.setdefault(nodeid, part.report(0.0))
                self._write_report(partial=not complete)
                self._journal.end()
            self._restore_signal()

    def _write_report(self, *, partial: bool) -> None:
        """A report that cannot be written does not end the run: it is said, and the exit status tells."""
        if self._journal is None:
            return
        reports = [self._reports[nodeid] for nodeid in self._parts if nodeid in self._reports]
        try:
            self._journal.write([campaign.report() for campaign in self._campaigns], reports, partial=partial)
        except InfraError as error:
            self._journal_error = str(error)
