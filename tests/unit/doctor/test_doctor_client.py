"""``doctor client``: the study of this machine's client, its verdict, and what it prints."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_llmperf.cli.__main__ import main
from pytest_llmperf.control.target import connect, socket_path
from pytest_llmperf.doctor import client as doctor
from pytest_llmperf.doctor.client import ceiling, faults
from pytest_llmperf.doctor.study import NullServer, Step, Stepped, run_step
from pytest_llmperf.errors import ConfigError
from pytest_llmperf.plan import ServerSpec

GOOD = Stepped(
    step=Step(64, 50), events=6400, seconds=2.0, failed=0, ttft_p50=1e-5, ttft_p99=2e-5, icl_p50=1e-6, icl_p99=1e-5,
    icl_max=1e-4, shared=0.0, unstamped=0.0, busiest=0.2, cpu_per_event=2e-5, lag_p99=5e-5, start_s=0.1, realtime=True,
)  # fmt: skip


def at(rate: float, **changes: object) -> Stepped:
    return replace(GOOD, events=round(rate * GOOD.seconds), **changes)


@pytest.mark.parametrize(
    "step",
    [Step(4, 200, 0.3), Step(4, 200, 0.3, random=True), Step(4, 200, 0.3, in_step=True), Step(4, 200, 0.3, clients=2)],
)
def test_a_step_is_held_against_the_servers_log(step: Step) -> None:
    with NullServer() as server:
        first, second = run_step(server, step), run_step(server, step)
    for found in (first, second):
        assert (found.events, found.failed) == (4 * 60, 0)
        assert found.ttft_p50 < 0.005
        assert found.icl_p50 < 0.002
        assert 0 < found.busiest < 1.1
        assert math.isfinite(found.icl_p99)


def test_over_a_unix_socket_times_are_those_of_the_reader(tmp_path: Path) -> None:
    with NullServer(socket=tmp_path / "s") as server:
        found = run_step(server, Step(2, 100, 0.2))
        spec = ServerSpec(name="s", engine="openai", url=f"unix://{tmp_path}/s")
        endpoint, identity = connect(spec)
    assert (found.events, found.failed, found.unstamped) == (40, 0, 1.0)
    assert found.icl_p50 < 0.01
    assert (endpoint.socket, endpoint.model) == (f"{tmp_path}/s", "null")
    assert identity.value("model") == "null"


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("unix:///run/llm.sock", ("/run/llm.sock", "")),
        ("http+unix://%2Frun%2Fllm.sock", ("/run/llm.sock", "")),
        ("http+unix://%2Frun%2Fllm.sock/base/v1/", ("/run/llm.sock", "/base")),
        ("http://127.0.0.1:1/x", None),
    ],
)
def test_urls_of_unix_sockets(url: str, expected: tuple[str, str] | None) -> None:
    assert socket_path(ServerSpec(name="s", engine="openai", url=url)) == expected


def test_a_socket_without_a_path_from_the_root_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"names no path from the root, as unix:///run/llm\.sock does"):
        socket_path(ServerSpec(name="s", engine="openai", url="unix://llm.sock"))


def test_the_ceiling_is_the_highest_rate_below_the_first_fault() -> None:
    assert faults(GOOD) == ()
    found = [at(1000), at(9000, shared=0.002), at(5000), at(20000), at(700, shared=1.0, step=Step(1, 1, random=True))]
    assert ceiling(found) == doctor.Ceiling(5000, reached=True, realtime=True)
    assert ceiling(found[:1]) == doctor.Ceiling(1000, reached=False, realtime=True)
    assert ceiling([at(1000, busiest=0.95)]).tokens_per_s == 0


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"failed": 2}, "2 requests failed"),
        ({"shared": 0.0011}, "shared reads"),
        ({"unstamped": 1.0}, "no kernel stamps"),
        ({"unstamped": 0.01}, "unstamped reads"),
        ({"icl_p99": 0.001}, "ICL error"),
        ({"icl_p99": math.nan}, "ICL error"),
        ({"busiest": 0.91}, "client CPU"),
    ],
)
def test_each_fault_has_its_name(changes: dict[str, float], fault: str) -> None:
    assert faults(at(1000, **changes)) == (fault,)


def test_the_command_prints_each_step_and_an_advice(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("pytest_llmperf.cli.doctor.QUICK", (Step(1, 50, 0.1), Step(4, 50, 0.1)))
    assert main(["doctor", "client"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[:2] == ["step", "tokens/s"]
    assert [line.split("/s")[0] for line in lines[2:4]] == ["1 x 50", "4 x 50"]
    assert "client" in lines[4]
    assert main(["doctor", "client", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert [step["step"]["streams"] for step in printed["steps"]] == [1, 4]
    assert set(printed["ceiling"]) == {"tokens_per_s", "reached", "realtime"}
