"""The launch-major schedule of all selected tests of one server specification.

A campaign is a fixed sequence of steps, one replay each. It advances only as far as the test that asks needs: with
one launch every test runs its own load when its turn comes, and a run that stops early (``-x``, Ctrl-C) has spent
nothing on the tests it never reached.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex
from typing import Final, Protocol, final

from pytest_llmperf import runner
from pytest_llmperf.engines.redact import redact
from pytest_llmperf.errors import LlmperfError, ServerDiedError, ServerStartError
from pytest_llmperf.gate import Verdict
from pytest_llmperf.identity import Identity
from pytest_llmperf.plan import Plan, ServerSpec
from pytest_llmperf.records import Trial
from pytest_llmperf.result import CampaignReport, LaunchReport, Result, TrialReport
from pytest_llmperf.server.launch import Launch, launch
from pytest_llmperf.stats.value import MetricValue
from pytest_llmperf.stored import metric_reports

DEATH_NOTICE_S: Final = 1.0
"""How long the news of a server's death may take to arrive after the connection broke."""

__all__ = ["Campaign", "Observer", "Step", "group", "steps"]


class Observer(runner.LoadObserver, Protocol):
    """Told what goes on, so that a terminal can show it."""

    def starting(self, server: str, elapsed_s: float, log_line: str) -> None: ...

    def idle(self) -> None:
        """Neither a server start nor a load is going on any more."""


@dataclass(frozen=True, slots=True)
class Step:
    """One replay of one test's load."""

    plan: Plan
    replay: int


def group(plans: Sequence[Plan]) -> tuple[tuple[Plan, ...], ...]:
    """Plans by server specification, in order of first appearance."""
    groups: dict[str, list[Plan]] = {}
    for plan in plans:
        groups.setdefault(plan.server.model_dump_json(), []).append(plan)
    return tuple(tuple(members) for members in groups.values())


def steps(plans: Sequence[Plan]) -> Iterator[Step]:
    """All replays of all tests, test by test."""
    for plan in plans:
        for replay in range(plan.replays):
            yield Step(plan, replay)


@final
class Campaign:
    """Runs the steps of ``plans``, which all have the same server specification."""

    def __init__(self, plans: Sequence[Plan], report_dir: Path, observer: Observer) -> None:
        self.spec: ServerSpec = plans[0].server
        self.plans = tuple(plans)
        self.identity: Identity | None = None
        self.salt = token_hex(8)
        self._report_dir = report_dir
        self._observer = observer
        self._steps = list(steps(self.plans))
        self._trials: dict[str, list[Trial]] = defaultdict(list)
        self._trial_reports: dict[str, list[TrialReport]] = defaultdict(list)
        self._measured: dict[str, dict[str, MetricValue]] = {}
        self._errors: dict[str, LlmperfError] = {}
        self._live: Launch | None = None
        self._start_error: LlmperfError | None = None
        self._past: list[LaunchReport] = []
        self._calibrations = runner.Calibrations()

    def ready(self) -> Launch:
        """The live launch, started now if need be.

        Raises LlmperfError; a server that did not start once is not tried again, every test gets the same error.
        """
        if self._start_error is not None:
            raise self._start_error
        if self._live is None:
            try:
                self._live = launch(self.spec, log_dir=self._report_dir / "logs", on_progress=self._on_start)
            except LlmperfError as error:
                self._start_error = error
                self._past.append(_failed_launch(error, len(self._past), self.spec, self._report_dir))
                raise
            finally:
                self._observer.idle()
            self.identity = self._live.identity
        return self._live

    def result(self, plan: Plan) -> Result:
        """The measurement of one test; runs what is still missing for it. Raises LlmperfError."""
        while own := [step for step in self._steps if step.plan is plan]:
            self._advance(own[0])
        if plan.nodeid in self._errors:
            raise self._errors[plan.nodeid]
        reports = self.trial_reports(plan)
        assert self.identity is not None
        ready_s = [launch.time_to_ready_s for launch in self.launches() if launch.time_to_ready_s is not None]
        # Only the values that limits need stay; the raw records are on disk.
        self._measured[plan.nodeid] = runner.metrics_of(plan, self._trials.pop(plan.nodeid), ready_s)
        return Result(
            nodeid=plan.nodeid,
            identity=self.identity,
            metrics=metric_reports(self._measured[plan.nodeid]),
            trials=reports,
            launches=self.launches(),
            attempted=sum(trial.attempted for trial in reports),
            ok=sum(trial.ok for trial in reports),
            failed=sum(trial.failed for trial in reports),
            cut=sum(trial.cut for trial in reports),
        )

    def judge(self, plan: Plan, result: Result) -> Verdict:
        """The verdict on what ``result`` measured."""
        return runner.judge(plan, self._measured.pop(plan.nodeid), result)

    def trial_reports(self, plan: Plan) -> tuple[TrialReport, ...]:
        """What there is so far, trials of an interrupted run included."""
        return tuple(self._trial_reports[plan.nodeid])

    def finish(self) -> None:
        """Run the steps that are left, since another server is about to need the machine.

        Errors are kept for the tests that they belong to.
        """
        while self._steps:
            self._advance(self._steps[0])

    def drop(self, plan: Plan) -> None:
        """Forget the steps of a test that will not ask any more (it failed before ``run()``, or was skipped)."""
        self._steps = [step for step in self._steps if step.plan is not plan]

    @property
    def shared_by_workers(self) -> bool:
        """Whether xdist workers would load one server, or one machine's CPU, side by side."""
        return self.spec.targeted or not self.spec.gpus

    def close(self) -> None:
        """Stop the server for sure. Safe to call twice."""
        if self._live is not None:
            live, self._live = self._live, None
            try:
                live.stop()
            finally:
                self._past.append(_launch_report(live, len(self._past), self._report_dir, None))

    def launches(self) -> tuple[LaunchReport, ...]:
        """All launches so far, the live one last."""
        live = () if self._live is None else (_launch_report(self._live, len(self._past), self._report_dir, None),)
        return (*self._past, *live)

    def report(self) -> CampaignReport:
        return CampaignReport(
            server=self.spec.name,
            salt=self.salt,
            identity=self.identity,
            launches=self.launches(),
            tests=tuple(plan.nodeid for plan in self.plans),
        )

    def _on_start(self, seconds: float, log_line: str) -> None:
        self._observer.starting(self.spec.name, seconds, log_line)

    def _advance(self, step: Step) -> None:
        self._steps.remove(step)
        try:
            live = self._fresh()
            number = len(self._past)
            trial = runner.run_replay(
                step.plan, live, number, step.replay, self._salt(step, number), self._calibrations, self._observer
            )
            self._keep(step.plan, trial)
            live.check_alive()
        except runner.Interrupted as interrupted:
            self._keep(step.plan, interrupted.trial)
            if not isinstance(interrupted.cause, LlmperfError):
                raise interrupted.cause from None
            self._fail(step.plan, interrupted.cause)
        except LlmperfError as error:
            self._fail(step.plan, self._better(error))
        finally:
            self._observer.idle()

    def _salt(self, step: Step, number: int) -> str:
        """Of a replay's texts: no other replay, test or run may have warmed a prefix cache for them."""
        return f"{self.salt}/{step.plan.nodeid}/{number}/{step.replay}"

    def _fresh(self) -> Launch:
        """The live launch; where its server ended between two tests, which none of them is to blame for, a new one."""
        live = self.ready()
        try:
            live.check_alive()
        except ServerDiedError as error:
            self._bury(error)
            return self.ready()
        return live

    def _better(self, error: LlmperfError) -> LlmperfError:
        """The death of the server, where that is what an error comes from: it holds command, exit code and log."""
        if self._live is None or isinstance(error, ServerDiedError):
            return error
        deadline = time.monotonic() + DEATH_NOTICE_S
        while time.monotonic() < deadline:
            try:
                self._live.check_alive()
            except ServerDiedError as death:
                return death
            time.sleep(0.02)
        return error

    def _keep(self, plan: Plan, trial: Trial) -> None:
        self._trials[plan.nodeid].append(trial)
        self._trial_reports[plan.nodeid].append(self._stored(plan, trial))

    def _stored(self, plan: Plan, trial: Trial) -> TrialReport:
        return runner.store_trial(plan, trial, self._calibrations.template_tokens(plan), self._report_dir)

    def _fail(self, plan: Plan, error: LlmperfError) -> None:
        """The test has its error; after the death of a server the next test gets a launch of its own."""
        self._errors.setdefault(plan.nodeid, error)
        self.drop(plan)
        if isinstance(error, ServerDiedError):
            self._bury(error)

    def _bury(self, error: ServerDiedError) -> None:
        """Clear away what a dead server left."""
        if self._live is not None:
            live, self._live = self._live, None
            live.stop()
            self._past.append(_launch_report(live, len(self._past), self._report_dir, error.what))


def _launch_report(live: Launch, index: int, report_dir: Path, error: str | None) -> LaunchReport:
    return LaunchReport(
        index=index,
        command=live.command or None,
        url=live.endpoint.base_url,
        pid=live.pid,
        time_to_ready_s=live.time_to_ready,
        log=_relative(live.log_path, report_dir),
        exit_code=live.exit_code,
        error=error,
    )


def _failed_launch(error: LlmperfError, index: int, spec: ServerSpec, report_dir: Path) -> LaunchReport:
    known = error if isinstance(error, ServerStartError) else None
    return LaunchReport(
        index=index,
        command=known.command if known else None,
        url=redact([spec.url])[0] if spec.url else "",
        pid=None,
        time_to_ready_s=None,
        log=_relative(Path(known.log_path), report_dir) if known else None,
        exit_code=known.exit_code if known else None,
        error=str(error),
    )


def _relative(path: Path | None, folder: Path) -> str | None:
    if path is None:
        return None
    return path.relative_to(folder).as_posix() if path.is_relative_to(folder) else str(path)
