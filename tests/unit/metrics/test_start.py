"""What launches showed until they were ready, and why something was not seen."""

from __future__ import annotations

import pytest

from pytest_llmperf.metrics.start import START_METRICS, start_values, unseen_start
from pytest_llmperf.samples import StartUp

COLD, WARM = StartUp(0.19, cold=True), StartUp(0.25)


@pytest.mark.parametrize(
    ("name", "starts", "why"),
    [
        (
            "time_to_ready",
            [COLD],
            "this launch's compile caches were cold: 190 ms is time_to_ready_cold; run it again",
        ),
        ("time_to_ready", [COLD, COLD], "all launches' compile caches were cold: 190 ms, 190 ms is time_to_ready_cold"),
        (
            "time_to_ready_cold",
            [WARM],
            "this launch's compile caches were warm: 250 ms is time_to_ready; without the folder /c it is cold",
        ),
        ("compile_time", [WARM], "the server's log does not tell how long it compiled"),
        ("startup_memory", [WARM], "was not seen while it started: they are in a container"),
        *((name, [StartUp()], "the server was running already: its start was not seen") for name in START_METRICS),
    ],
)
def test_what_no_launch_tells_names_its_reason(name: str, starts: list[StartUp], why: str) -> None:
    assert name not in start_values(starts)
    found = unseen_start(name, starts, memory="they are in a container", cache="/c")
    assert (found.metric.name, found.value) == (name, None)
    assert why in (found.note or "")


def test_a_server_without_caches_has_no_cold_start() -> None:
    found = unseen_start("time_to_ready_cold", [WARM], memory="", cache="")
    assert found.note == "no compile caches of this server are known here: 250 ms is time_to_ready"


def test_what_is_compiled_with_warm_caches_is_told_apart() -> None:
    cold, warm = StartUp(95, cold=True, compile_s=22.4), StartUp(25, compile_s=4.6)
    found = [start_values(starts)["compile_time"] for starts in ([cold], [cold, warm], [warm, warm])]
    assert [(each.value, each.source) for each in found] == [(22.4, ""), (22.4, ""), (4.6, "warm-caches")]
