"""One pytest invocation with ``--llmperf``: campaigns, verdicts, report and exit status, as pytest hooks."""

from __future__ import annotations

import datetime
import time
from collections.abc import Generator, Iterator
from contextlib import ExitStack
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
from pytest_llmperf.part import INFRA_PREFIX, TestPart
from pytest_llmperf.reports.progress import ProgressDisplay
from pytest_llmperf.reports.schedule import describe_campaign
from pytest_llmperf.result import RunReport, TestReport
from pytest_llmperf.selection import bring_together, read_plans
from pytest_llmperf.shown import show_tests
from pytest_llmperf.signals import InOrder
from pytest_llmperf.status import EXIT_INFRA, VERDICT, RunStatus, mark_failure, shown_status
from pytest_llmperf.stored import public_plan

__all__ = ["LlmperfSession", "register", "session_of"]

UNPLANNED: Final = "@pytest.mark.llmperf is missing: the llmperf fixture needs a workload and a load"

PART: Final = pytest.StashKey[TestPart]()
SESSION: Final = pytest.StashKey["LlmperfSession"]()


def register(config: pytest.Config) -> None:
    """Make the plugin of this run. Raises pytest.UsageError for a bad configuration."""
    try:
        run_options = options.read_options(config)
    except UsageError as error:
        raise pytest.UsageError(str(error)) from None
    options.refuse_shared_workers(config, run_options)
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
        self._turn: TestPart | None = None
        """Of the test that runs, or ran last: it may be run again."""
        self._parts: dict[str, TestPart] = {}
        self._reports: dict[str, TestReport] = {}
        self._status = RunStatus()
        self._journal: Journal | None = None
        self._warnings: list[str] = []
        """Of the store of baselines: what was set aside."""
        self._ended = False
        self._began = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        self._signals = InOrder()

    def reports(self) -> list[TestReport]:
        """Of the tests that have ended, those of this run's workers included."""
        return [*self._reports.values(), *(test for _, report in self._of_workers() for test in report.tests)]

    def part(self, item: pytest.Item) -> TestPart:
        """The part of ``item``, its server live. Fails the test with one message where that cannot be."""
        part = item.stash.get(PART, None)
        if part is None:
            raise pytest.fail.Exception(UNPLANNED, pytrace=False)
        if self._active is not None and self._active is not part.campaign:
            self._end_campaign(self._active)
        self._active = part.campaign
        part.prepare()
        return part

    def _end_campaign(self, campaign: Campaign) -> None:
        """One server at a time: the campaign that holds the machine runs to its end before another begins.

        What goes wrong there is not the fault of the test that asks for the other one.
        """
        try:
            campaign.finish()
        except LlmperfError as error:
            for part in self._parts.values():
                if part.campaign is campaign:
                    part.break_off(error)
        finally:
            self._close(campaign)

    def _close(self, campaign: Campaign) -> None:
        """Stop its server. That it does not end is the fault of no test: the summary and the exit status tell."""
        try:
            campaign.close()
        except LlmperfError as error:
            self._status.troubles.append(str(error))

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
        except InfraError as error:
            # Nothing can be planned, so there is no test that could err: the run ends at once, by its own status.
            pytest.exit(f"{INFRA_PREFIX}{error}", returncode=EXIT_INFRA)
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
            lines += describe_campaign([public_plan(plan) for plan in campaign.resolved], last, campaign.forecast())
            lines += campaign.start_lines() if self._options.dry_run else []
        return lines

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        if self._options.dry_run:
            return True
        if self._campaigns and not session.config.option.collectonly:
            self._signals.begin()
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
        if self._turn is not None and self._turn is not part:
            self._turn.leave()  # not before: what reruns tests may give it another turn
        self._turn = part
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
            item.user_properties[:] = [each for each in item.user_properties if not each[0].startswith("llmperf_")]

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
                if isinstance(error, pytest.skip.Exception | pytest.xfail.Exception):
                    part.fail_unless_passed(verdict)  # what comes after the measurement hides nothing
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
            if call.excinfo is not None and report.failed:
                mark_failure(report, part.failure_kind(call.excinfo.value))
            part.note_outcome(report.when, report.outcome, report.longreprtext)
        return report

    @pytest.hookimpl(tryfirst=True)
    def pytest_report_teststatus(
        self, report: pytest.CollectReport | pytest.TestReport
    ) -> tuple[str, str, tuple[str, dict[str, bool]]] | None:
        return shown_status(report)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._status.note(report)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: object) -> None:
        """A hook of xdist: one of its workers has ended."""
        self._status.take_over(getattr(node, "workeroutput", {}))

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        ended_well = session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED)
        self._end(complete=ended_well and all(nodeid in self._reports for nodeid in self._parts))
        session.exitstatus = self._status.exit_status(session.exitstatus)
        self._status.hand_over(getattr(self._config, "workeroutput", {}))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self._journal is not None:
            show_tests(terminalreporter, list(self._reports.values()), self._journal.path)
        for folder, report in self._of_workers():  # under xdist, one folder each
            show_tests(terminalreporter, report.tests, folder / "report.json")
        for warning in dict.fromkeys(self._warnings):
            terminalreporter.write_line(f"store of baselines: {warning}", yellow=True)
        for trouble in dict.fromkeys(self._status.troubles):
            terminalreporter.write_line(f"INFRA: {trouble}", red=True, bold=True)

    def pytest_unconfigure(self) -> None:
        try:
            self._end(complete=False)  # reached also where pytest_sessionfinish was not
        finally:
            self._signals.restore()

    def _of_workers(self) -> Iterator[tuple[Path, RunReport]]:
        """The reports that workers of this very run have written, with their folders."""
        for worker in self._options.settings.workers if is_controller(self._config) else ():
            folder = self._options.report_dir / worker
            report = Journal.last_report(folder)
            if report is not None and report.created >= self._began:
                yield folder, report

    def _finish(self, part: TestPart, duration: float) -> None:
        part.judge()  # also where a later fixture failed after run()
        self._reports[part.plan.nodeid] = part.report(duration)
        if part.outcome != "interrupted" and all(plan.nodeid in self._reports for plan in part.campaign.plans):
            self._close(part.campaign)
        self._write_report(partial=True)

    def _end(self, *, complete: bool) -> None:
        if self._ended:
            return
        self._ended = True
        self._signals.ending()
        with ExitStack() as stack:  # whatever goes wrong with one of them, every server is stopped
            stack.callback(self._end_journal, complete=complete)
            for campaign in self._campaigns:
                stack.callback(self._close, campaign)
            stack.callback(self._progress.idle)

    def _end_journal(self, *, complete: bool) -> None:
        if self._journal is not None:
            for nodeid, part in self._parts.items():
                self._reports.setdefault(nodeid, part.report(0.0))
            self._write_report(partial=not complete)
            self._journal.end()

    def _write_report(self, *, partial: bool) -> None:
        """A report that cannot be written does not end the run: it is said, and the exit status tells."""
        if self._journal is None:
            return
        reports = [self._reports[nodeid] for nodeid in self._parts if nodeid in self._reports]
        try:
            self._journal.write([campaign.report() for campaign in self._campaigns], reports, partial=partial)
        except InfraError as error:
            self._status.troubles.append(f"the report is incomplete: {error}")
