"""Fresh launches of servers, one at a time, and the replays that run on them; knows nothing of comparisons."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from secrets import token_hex
from typing import Final, Literal, Protocol, final

from pytest_llmperf import runner
from pytest_llmperf.campaign.devices import Devices
from pytest_llmperf.campaign.prefixcache import left_in_cache, with_cache_fault
from pytest_llmperf.campaign.startwatch import StartWatch
from pytest_llmperf.engines.redact import redact
from pytest_llmperf.errors import InfraError, LlmperfError, ServerDiedError, ServerStartError
from pytest_llmperf.identity import Identity
from pytest_llmperf.plan import Plan, ServerSpec
from pytest_llmperf.records import Trial
from pytest_llmperf.result import LaunchReport, TrialReport
from pytest_llmperf.server.disk import require_disk
from pytest_llmperf.server.launch import Launch, launch
from pytest_llmperf.server.provision import provision
from pytest_llmperf.telemetry.machine import machine_facts
from pytest_llmperf.telemetry.start import observe_start, with_start

__all__ = ["Arm", "Observer", "Rig"]

Arm = Literal["baseline", "candidate"]

DEATH_NOTICE_S: Final = 1.0
"""How long the news of a server's death may take to arrive after the connection broke."""


class Observer(runner.LoadObserver, Protocol):
    """Told what goes on, so that a terminal can show it."""

    def starting(self, server: str, elapsed_s: float, log_line: str) -> None: ...

    def standing(self, text: str) -> None:
        """How a comparison stands: blocks done, current effect, blocks likely left."""

    def idle(self) -> None:
        """Neither a server start nor a load is going on any more."""


@final
class Rig:
    """What a campaign runs on: at most one live server, and all that was launched and measured before."""

    def __init__(
        self, report_dir: Path, observer: Observer, pool: str | None, prices: Mapping[str, float] | None = None
    ) -> None:
        self._pool, self._prices = pool, prices or {}
        self.salt = token_hex(8)
        self.observer = observer
        self._report_dir = report_dir
        self._live: Launch | None = None
        self._now = _Now("candidate", None, False, 0.0)
        self._past: list[LaunchReport] = []
        self._trials: dict[str, list[TrialReport]] = defaultdict(list)
        self._calibrations = runner.Calibrations()
        self._devices = Devices()

    @property
    def live(self) -> Launch | None:
        return self._live

    def hourly(self, identity: Identity) -> float | None:
        """USD per hour of all GPUs of a server; None where the configuration has no price of them."""
        price, count = self._prices.get(identity.value("gpu")), identity.value("gpu_count")
        return price * int(count) if price is not None and count.isdecimal() else None

    @property
    def arm(self) -> Arm:
        """Of the live launch, or of the last one."""
        return self._now.arm

    @property
    def number(self) -> int:
        """Index of the live launch, or of the next one."""
        return len(self._past)

    def start(
        self, spec: ServerSpec, arm: Arm = "candidate", block: int | None = None, *, priming: bool = False
    ) -> Launch:
        """A fresh launch of ``spec``; the one that is live ends first. Raises LlmperfError, having noted the launch."""
        self.stop()
        self._now = _Now(arm, block, priming, time.monotonic())
        watch = StartWatch()
        try:
            if not self._past:
                require_disk(self._report_dir, spec)
            spec = self._devices.acquire(spec, self._progress_of(spec))
            live = launch(
                spec,
                log_dir=self._report_dir / "logs",
                on_progress=self._progress_of(spec),
                environment=machine_facts(spec, self._pool),
                devices=self._devices.environment,
                watch=lambda pid: watch.record(pid, spec),
            )
        except LlmperfError as error:
            self._past.append(self._failed(error, spec))
            if isinstance(error, ServerStartError) and (lost := watch.lost()) is not None:
                raise lost from error
            raise
        finally:
            self.observer.idle()
        self._live = live  # whatever fails from here on, it is ours to end
        if (lost := watch.lost()) is not None:
            self.stop(str(lost))
            raise lost
        live.start = observe_start(watch.noted(live.start), live.engine, live.endpoint, live.log_path, spec)
        live.identity = with_start(live.identity, live.start)
        return live

    def require(self, specs: Sequence[ServerSpec]) -> None:
        """Install and check, before the first launch, what the servers of all arms need: programs and weights, disk,
        GPUs that are there and have the memory. Raises LlmperfError; the GPUs of the last stay ours."""
        self.stop()
        for spec in specs:
            provision(spec)
            require_disk(self._report_dir, spec)
        try:
            self._devices.require(specs)
            for spec in specs:
                self._devices.acquire(spec, self._progress_of(spec))
        finally:
            self.observer.idle()

    def replay(self, plan: Plan, number: int, salt: str) -> Trial:
        """One replay on the live launch, stored and noted; ``salt`` makes its texts unlike those of any other.

        Raises what ended it, with its partial trial stored; the death of the server in place of what it caused.
        """
        assert self._live is not None
        kept = None
        try:
            kept = left_in_cache(plan, self._live, self._now.loads)
            self._now.loads += 1
            trial = runner.run_replay(
                plan, self._live, self.number, number, f"{self.salt}/{salt}", self._calibrations, self.observer
            )
            self._keep(plan, trial, self._live.identity, kept)
            self._live.check_alive()
        except runner.Interrupted as interrupted:
            self._keep(plan, interrupted.trial, self._live.identity, kept)
            raise interrupted.cause from None
        except LlmperfError as error:
            raise self._better(error) from None
        finally:
            self.observer.idle()
        return replace(trial, arm=self._now.arm)

    def stop(self, error: str | None = None) -> None:
        """End the live launch for sure; ``error`` is what it came to.

        Safe to call twice: it stays live where the end was interrupted, so that the next call ends it.
        """
        live = self._live
        if live is None:
            return
        self._now.error = self._now.error or error
        try:
            live.stop()
        except InfraError:  # even SIGKILL did not end it, and to ask again changes nothing
            self._note_end(live)
            raise
        self._note_end(live)
        self._devices.returned()

    def close(self) -> None:
        """Stop, and give the GPUs up. Safe to call twice."""
        try:
            self.stop()
        finally:
            if self._live is None:
                self._devices.release()

    def discard(self, plan: Plan, launch: int, reason: str) -> None:
        """The trials of ``plan`` on that launch stay in the report and count for nothing."""
        own = self._trials[plan.nodeid]
        own[:] = [each.model_copy(update={"discarded": reason}) if each.launch == launch else each for each in own]

    def trials(self, plan: Plan) -> tuple[TrialReport, ...]:
        """What there is so far of one test, trials of an interrupted run included."""
        return tuple(self._trials[plan.nodeid])

    def launches(self) -> tuple[LaunchReport, ...]:
        """All launches so far, the live one last."""
        return (*self._past, *(() if self._live is None else (self._report(self._live),)))

    def _note_end(self, live: Launch) -> None:
        self._past.append(self._report(live))
        self._live = None

    def _keep(self, plan: Plan, trial: Trial, identity: Identity, cached: str | None) -> None:
        template, hourly = self._calibrations.template_tokens(plan), self.hourly(identity)
        trial = replace(trial, arm=self._now.arm, warnings=(*trial.warnings, *([cached] if cached else [])))
        stored = runner.store_trial(plan, trial, identity, template, self._report_dir, hourly)
        self._trials[plan.nodeid].append(stored if self._now.block is None else with_cache_fault(stored, cached, plan))

    def _better(self, error: LlmperfError) -> LlmperfError:
        """The death of the server, where that is what an error comes from: it holds command, exit code and log."""
        if self._live is None or isinstance(error, ServerDiedError):
            return error
        deadline = time.monotonic() + DEATH_NOTICE_S
        while time.monotonic() < deadline:
            try:
                self._live.check_alive()
            except (ServerDiedError, InfraError) as death:
                return death
            time.sleep(0.02)
        return error

    def _progress_of(self, spec: ServerSpec) -> Callable[[float, str], None]:
        def on_progress(seconds: float, log_line: str) -> None:
            self.observer.starting(spec.name, seconds, log_line)

        return on_progress

    def _report(self, live: Launch) -> LaunchReport:
        return LaunchReport(
            index=self.number,
            arm=self._now.arm,
            block=self._now.block,
            priming=self._now.priming,
            lifetime_s=time.monotonic() - self._now.began,
            gpus=len(live.spec.gpus),
            command=live.command or None,
            url=live.endpoint.base_url,
            pid=live.pid,
            start_up=live.start,
            log=_relative(live.log_path, self._report_dir),
            exit_code=live.exit_code,
            error=self._now.error,
        )

    def _failed(self, error: LlmperfError, spec: ServerSpec) -> LaunchReport:
        known = error if isinstance(error, ServerStartError) else None
        return LaunchReport(
            index=self.number,
            arm=self._now.arm,
            block=self._now.block,
            priming=self._now.priming,
            lifetime_s=time.monotonic() - self._now.began,
            gpus=spec.gpu_count,
            command=known.command if known else None,
            url=redact([spec.url])[0] if spec.url else "",
            pid=None,
            log=_relative(Path(known.log_path), self._report_dir) if known else None,
            exit_code=known.exit_code if known else None,
            error=str(error),
        )


@final
class _Now:
    """What the live launch is for."""

    __slots__ = ("arm", "began", "block", "error", "loads", "priming")

    def __init__(self, arm: Arm, block: int | None, priming: bool, began: float) -> None:
        self.arm, self.block, self.priming, self.began = arm, block, priming, began
        self.error: str | None = None
        self.loads = 0
        """That it has been given."""


def _relative(path: Path | None, folder: Path) -> str | None:
    if path is None:
        return None
    return path.relative_to(folder).as_posix() if path.is_relative_to(folder) else str(path)
