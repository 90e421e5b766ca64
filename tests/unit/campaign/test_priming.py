"""What a launch that only warms caches leaves behind: how long a cold start takes."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest
from made import record, trial
from reported import plan

from pytest_llmperf.campaign import schedules
from pytest_llmperf.campaign.budget import Budget
from pytest_llmperf.campaign.case import Case
from pytest_llmperf.campaign.rig import Arm, Rig
from pytest_llmperf.engines import ENGINES
from pytest_llmperf.identity import Identity
from pytest_llmperf.measured import metrics_of
from pytest_llmperf.plan import Plan, ServerSpec
from pytest_llmperf.records import Endpoint, Trial
from pytest_llmperf.result import TrialReport
from pytest_llmperf.samples import StartUp
from pytest_llmperf.server.launch import Launch
from pytest_llmperf.stats.launches import GateConfig
from pytest_llmperf.stats.prior import Prior

SPEC = ServerSpec(name="s", engine="vllm")


class FakeRig:
    """Launches that take the times given, the first with cold caches."""

    def __init__(self, *seconds: float) -> None:
        self._seconds = list(seconds)
        self.live: Launch | None = None
        self.number = 0
        self.primed: list[bool] = []

    def start(self, spec: ServerSpec, arm: Arm, block: int | None, *, priming: bool = False) -> Launch:
        start = StartUp(self._seconds[self.number], cold=self.number == 0, memory_bytes=10 + self.number)
        endpoint = Endpoint("http://127.0.0.1:1", "127.0.0.1", 1, False, "m", "vllm")
        self.live = Launch(spec, ENGINES["vllm"], endpoint, Identity(), start=start)
        self.primed.append(priming)
        return self.live

    def stop(self, error: str | None = None) -> None:
        self.live, self.number = None, self.number + 1

    def replay(self, plan: Plan, number: int, salt: str) -> Trial:
        return trial([record()], launch=self.number)

    def trials(self, plan: Plan) -> tuple[TrialReport, ...]:
        return ()


def test_a_priming_launch_gives_the_cold_start_and_no_values(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(schedules, "cold", lambda _: True)
    rig = FakeRig(90.0, 50.0, 54.0)
    case = Case(plan([]).model_copy(update={"server": SPEC, "replays": 1}), GateConfig(), Prior({}), wanted=2)

    def look(_case: Case) -> None:
        rig.stop()

    no: Any = lambda _: None  # noqa: E731
    schedules.run_stored(cast(Rig, rig), [case], SPEC, session="now", budget=Budget(None), meet=no, look=look)
    assert rig.primed == [True, False, False]
    assert len(case.values["candidate"]) == 2
    found = metrics_of(case.plan, case.trials["candidate"], case.starts["candidate"])
    assert (found["time_to_ready_cold"].value, found["time_to_ready"].value) == (90.0, 52.0)
    assert found["startup_memory"].value == 11.5  # of the warm launches, 11 and 12 B
    only = metrics_of(case.plan, case.trials["candidate"], case.starts["candidate"][:1])
    assert only["startup_memory"].value == case.starts["candidate"][0].memory_bytes == 10
    case.restart()
    assert [start.time_to_ready_s for start in case.starts["candidate"]] == [90.0]
