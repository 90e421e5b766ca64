"""The one live launch: ended for sure, and noted once, whatever interrupts its end."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest

from pytest_llmperf.campaign import rig as module
from pytest_llmperf.campaign.rig import Observer, Rig
from pytest_llmperf.engines import ENGINES
from pytest_llmperf.errors import InfraError
from pytest_llmperf.identity import Identity
from pytest_llmperf.plan import ServerSpec
from pytest_llmperf.records import Endpoint
from pytest_llmperf.server.launch import Launch
from pytest_llmperf.server.process import ServerProcess

SPEC = ServerSpec(name="s", engine="embedded")


class Silent:
    def idle(self) -> None:
        pass


class Process:
    """A server's process whose end is interrupted by what is given, once for each."""

    exit_code = None

    def __init__(self, interruptions: list[BaseException], left: tuple[str, ...]) -> None:
        self.interruptions, self.left, self.stopped = interruptions, left, 0

    def stop(self, grace: float) -> tuple[int, ...]:
        if self.interruptions:
            raise self.interruptions.pop(0)
        self.stopped += 1
        return self.left


Start = Callable[..., tuple[Rig, Process]]


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Start:
    def made(*interruptions: BaseException, left: tuple[str, ...] = ()) -> tuple[Rig, Process]:
        process = Process(list(interruptions), left)
        endpoint = Endpoint("http://127.0.0.1:1", "127.0.0.1", 1, False, "m", "embedded")
        live = Launch(
            SPEC, ENGINES["embedded"], endpoint, Identity(), ("server",), _process=cast(ServerProcess, process)
        )
        monkeypatch.setattr(module, "launch", lambda *_, **__: live)
        monkeypatch.setattr(module, "machine_facts", lambda *_: {})
        rig = Rig(tmp_path, cast(Observer, Silent()), None)
        rig.start(SPEC)
        return rig, process

    return made


def test_a_launch_whose_end_was_interrupted_is_ended_by_the_next_call_and_noted_once(start: Start) -> None:
    rig, process = start(KeyboardInterrupt(), KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        rig.stop("the server died")
    assert (process.stopped, len(rig.launches())) == (0, 1)
    with pytest.raises(KeyboardInterrupt):
        rig.stop()
    rig.stop()
    rig.stop()
    assert process.stopped == 1
    assert rig.live is None
    [noted] = rig.launches()
    assert (noted.index, noted.error) == (0, "the server died")


def test_the_next_launch_waits_for_the_end_of_the_last(start: Start) -> None:
    rig, process = start(KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        rig.start(SPEC)
    assert [launch.index for launch in rig.launches()] == [0]
    rig.start(SPEC, "baseline")
    assert process.stopped == 1
    assert [(launch.index, launch.arm) for launch in rig.launches()] == [(0, "candidate"), (1, "baseline")]


def test_what_even_sigkill_does_not_end_is_said_once(start: Start) -> None:
    rig, process = start(left=("pid 7",))
    with pytest.raises(InfraError, match="s could not be ended: pid 7; see pytest-llmperf doctor reap"):
        rig.stop()
    rig.stop()
    assert process.stopped == 1
    assert len(rig.launches()) == 1
