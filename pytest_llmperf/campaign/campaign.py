"""The launch-major schedule of all selected tests of one server specification.

Where nothing is compared a campaign advances only as far as the test that asks needs: every test runs its own load
when its turn comes, and a run that stops early (``-x``, Ctrl-C) has spent nothing on the tests it never reached. Where
launches are compared it runs when the first of its tests asks, since each launch serves the loads of all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final, final

from pytest_llmperf import runner
from pytest_llmperf.campaign.case import Case
from pytest_llmperf.campaign.conclusion import Comparison, comparison_rows, judgement_report, unmeasured
from pytest_llmperf.campaign.preview import start_line
from pytest_llmperf.campaign.price import priced
from pytest_llmperf.campaign.rig import Observer, Rig
from pytest_llmperf.campaign.umpire import Umpire
from pytest_llmperf.checks import invalid_check
from pytest_llmperf.comparisons import ComparisonReport, Forecast, JudgementReport
from pytest_llmperf.errors import InfraError, LlmperfError, ServerDiedError, ServerTakenError
from pytest_llmperf.gate import Verdict, strongest
from pytest_llmperf.identity import Identity
from pytest_llmperf.measured import metrics_of
from pytest_llmperf.plan import Plan, ServerSpec
from pytest_llmperf.records import Trial
from pytest_llmperf.result import CampaignReport, LaunchReport, Result, TrialReport
from pytest_llmperf.samples import StartUp
from pytest_llmperf.server.caches import cache_folders, cold
from pytest_llmperf.server.launch import Launch
from pytest_llmperf.stats.value import MetricValue
from pytest_llmperf.stored import metric_reports

__all__ = ["Campaign", "Observer", "group"]

LAZY: Final = ("sla", "targeted")


def group(plans: Sequence[Plan]) -> tuple[tuple[Plan, ...], ...]:
    """Plans by server specification, in order of first appearance."""
    groups: dict[str, list[Plan]] = {}
    for plan in plans:
        groups.setdefault(plan.server.model_dump_json(), []).append(plan)
    return tuple(tuple(members) for members in groups.values())


@final
class Campaign:
    """Runs the tests of ``plans``, which all have the same server specification."""

    def __init__(
        self,
        plans: Sequence[Plan],
        report_dir: Path,
        observer: Observer,
        umpire: Umpire,
        baseline: ServerSpec | None = None,
    ) -> None:
        """``baseline``: what the tests' server is compared with by launches, if anything is."""
        self.spec: ServerSpec = plans[0].server
        self._baseline = baseline
        self.plans = tuple(plans)
        self._umpire = umpire
        self._rig = Rig(report_dir, observer, umpire.pool, umpire.prices)
        self._cases = {plan.nodeid: umpire.case(plan, len(self.plans)) for plan in self.plans}
        self._replays_done = dict.fromkeys(self._cases, 0)
        self._measured: dict[str, dict[str, MetricValue]] = {}
        self._start_error: LlmperfError | None = None
        self._contested = False
        self._primed: tuple[StartUp, ...] = ()
        """The start with cold caches that went before the launch that is measured."""

    def ready(self) -> Launch:
        """The live launch of the candidate, started now if need be.

        Raises LlmperfError; a server that did not start once is not tried again, every test gets the same error.
        """
        if self._start_error is not None:
            raise self._start_error
        if self._rig.live is None or self._rig.arm != "candidate":
            try:
                if self._needs_priming:
                    self._primed = (self._rig.start(self.spec, priming=True).start,)
                    self._rig.stop()
                self._rig.start(self.spec, priming=self._umpire.mode not in LAZY)
            except LlmperfError as error:
                self._start_error = error
                raise
        assert self._rig.live is not None
        for case in self._cases.values():
            case.identities.setdefault("candidate", self._rig.live.identity)
        return self._rig.live

    @property
    def _needs_priming(self) -> bool:
        """Whether a limit or an expectation is on the start with warm caches, and they are cold."""
        named = any("time_to_ready" in plan.named for plan in self.plans)
        return self._umpire.mode == "sla" and named and cold(self.spec)

    def prepare(self) -> None:
        """What must be there before a test begins: the server, unless launches of its own are to be compared."""
        if self._umpire.mode in LAZY:
            self.ready()

    def result(self, plan: Plan) -> Result:
        """The measurement of one test; runs what is still missing for it. Raises LlmperfError."""
        case = self._cases[plan.nodeid]
        if self._umpire.mode in LAZY:
            self._measure(case)
        elif not self._contested:
            self._contested = True
            self._contest()
        if case.error is not None:
            raise case.error
        return self._result(case)

    def judge(self, plan: Plan, result: Result) -> Verdict:
        """The verdict on what ``result`` measured: limits and comparison together."""
        measured, compared = self._measured.pop(plan.nodeid), self._umpire.compared(self._cases[plan.nodeid])
        if compared is not None and not result.trials:
            return unmeasured(compared)
        if self._cases[plan.nodeid].exhausted and compared is None:
            return Verdict("INVALID", tuple(map(invalid_check, dict.fromkeys(self._cases[plan.nodeid].faults))))
        verdict = runner.judge(plan, measured, result)
        if compared is None:
            return verdict
        return Verdict(strongest([verdict.name, compared.verdict]), verdict.checks)

    def failed_to_start(self, plan: Plan) -> bool:
        """Whether the candidate twice failed to start where the baseline starts: a FAIL, not a missing measurement."""
        case = self._cases[plan.nodeid]
        return case.unstarted == "candidate" and "baseline" in case.identities

    def comparison(self, plan: Plan) -> tuple[JudgementReport | None, tuple[ComparisonReport, ...]]:
        """How the test was compared; None where no comparison was asked for."""
        case = self._cases[plan.nodeid]
        compared: Comparison | None = self._umpire.compared(case)
        if compared is None:
            return None, ()
        return judgement_report(compared), comparison_rows(compared, *self._umpire.sides(case))

    def identity(self, plan: Plan) -> Identity | None:
        """Of the candidate, as far as it has been seen."""
        return self._cases[plan.nodeid].identities.get("candidate")

    def trial_reports(self, plan: Plan) -> tuple[TrialReport, ...]:
        """What there is so far, trials of an interrupted run included."""
        return self._rig.trials(plan)

    def finish(self) -> None:
        """Run what is left, since another server is about to need the machine. Errors stay with their tests."""
        for plan in self.plans:
            case = self._cases[plan.nodeid]
            if self._umpire.mode in LAZY and case.open:
                self._measure(case)

    def drop(self, plan: Plan) -> None:
        """Forget a test that will not ask any more (it failed before ``run()``, or was skipped)."""
        self._cases[plan.nodeid].dropped = True

    @property
    def shared_by_workers(self) -> bool:
        """Whether xdist workers would load one server, or one machine's CPU, side by side."""
        return self.spec.targeted or not self.spec.gpus

    def close(self) -> None:
        """Stop the server for sure, and give its GPUs up. Safe to call twice."""
        self._rig.close()

    def launches(self) -> tuple[LaunchReport, ...]:
        """All launches so far, the live one last."""
        return self._rig.launches()

    @property
    def resolved(self) -> tuple[Plan, ...]:
        """The plans as they are run, with the replays that a comparison needs."""
        return tuple(case.plan for case in self._cases.values())

    def forecast(self) -> Forecast:
        """What it will cost and can show."""
        found = self._umpire.forecast(self.plans)
        if self._needs_priming:
            note = "a launch without a load goes before, since its compile caches are cold and time_to_ready is limited"
            found = found.model_copy(update={"launches": (2, 2), "notes": (*found.notes, note)})
        return priced(found, self.spec, self._umpire.prices)

    def start_lines(self) -> list[str]:
        """How its servers would be started."""
        if self._baseline is None or self._baseline == self.spec:
            arms = {"starts": self.spec}
        else:
            arms = {"starts the baseline": self._baseline, "starts the candidate": self.spec}
        return [f"  {what}: {line}" for what, spec in arms.items() if (line := start_line(spec)) is not None]

    def notes(self, plan: Plan) -> tuple[str, ...]:
        """What was done besides a comparison: a baseline refreshed, noise learnt."""
        case = self._cases[plan.nodeid]
        return tuple(case.notes) if self._umpire.compared(case) is None else ()

    def report(self) -> CampaignReport:
        identities = next((case.identities for case in self._cases.values() if case.identities), {})
        return CampaignReport(
            server=self.spec.name,
            mode=self._umpire.mode,
            salt=self._rig.salt,
            identity=identities.get("candidate"),
            baseline_identity=identities.get("baseline"),
            launches=self.launches(),
            tests=tuple(plan.nodeid for plan in self.plans),
        )

    def _contest(self) -> None:
        cases = list(self._cases.values())
        try:
            self._umpire.contest(self._rig, cases, self.spec)
        except BaseException as error:  # the test that asked has it as it is; the others must not seem to have ended
            for case in cases:
                if case.open:
                    text = f"the campaign broke off: {type(error).__name__}: {error}"
                    case.error = InfraError(str(error)) if isinstance(error, InfraError) else LlmperfError(text)
            raise

    def _measure(self, case: Case) -> None:
        """The replays of one test that are still missing, on the launch that all tests share."""
        nodeid = case.plan.nodeid
        while self._replays_done[nodeid] < (case.plan.replays or 1) and case.open:
            number = self._replays_done[nodeid]
            self._replays_done[nodeid] += 1
            try:
                self._fresh()
                salt = f"{nodeid}/{self._rig.number}/{number}"
                case.trials["candidate"].append(self._rig.replay(case.plan, number, salt))
                case.starts["candidate"] = [*self._primed, self.ready().start]
            except LlmperfError as error:
                case.error = error
                if isinstance(error, ServerDiedError | ServerTakenError):
                    self._rig.stop(error.what)  # the next test gets a launch of its own
                return
        if case.open:
            try:
                self._umpire.look_once(case)
            except LlmperfError as error:
                case.error = error
            case.finished = True

    def _fresh(self) -> None:
        """The live launch; where its server ended between two tests, which none of them is to blame for, a new one."""
        live = self.ready()
        try:
            live.check_alive()
        except (ServerDiedError, ServerTakenError) as death:
            self._rig.stop(death.what)
            self.ready()

    def _result(self, case: Case) -> Result:
        plan, counted = case.plan, [each for each in self._rig.trials(case.plan) if each.discarded is None]
        own = [each for each in counted if each.arm == "candidate"]
        launches = self.launches()
        starts = case.starts["candidate"] or [launch.start_up for launch in launches]
        baseline: list[Trial] = case.trials.pop("baseline", [])
        # Only the values that limits need stay; the raw records are on disk.
        trials = case.trials.pop("candidate", [])
        hourly = {arm: self._rig.hourly(identity) for arm, identity in case.identities.items()}
        caches = [str(Path(folder).parent) for folder in cache_folders(self.spec).values()]
        told = {"gpu": case.identities["candidate"].value("gpu"), "cache": next(iter(caches), "")}
        found = metrics_of(plan, trials, starts, hourly["candidate"], **told) if trials else {}
        other = metrics_of(plan, baseline, case.starts["baseline"], hourly.get("baseline")) if baseline else None
        self._measured[plan.nodeid] = found
        return Result(
            nodeid=plan.nodeid,
            identity=case.identities["candidate"],
            metrics=metric_reports(found),
            trials=tuple(own),
            launches=launches,
            attempted=sum(trial.attempted for trial in own),
            ok=sum(trial.ok for trial in own),
            failed=sum(trial.failed for trial in own),
            cut=sum(trial.cut for trial in own),
            baseline=None if other is None else metric_reports(other),
        )
