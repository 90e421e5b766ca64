"""``doctor gpu``: what is seen of each GPU, in words and as JSON."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from driver import Driver, Gpu

from pytest_llmperf.cards import Card
from pytest_llmperf.cli.__main__ import main
from pytest_llmperf.doctor.gpu import advice
from pytest_llmperf.server.gpus import FOLDER_VARIABLE, Wish, take

GIB = 2**30


@pytest.fixture(autouse=True)
def locks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))


def h200() -> Gpu:
    """Idle, as recorded: 143,771 MiB of which the driver keeps 615; 345 MHz; 77 W; 35 °C."""
    return Gpu("GPU-7d94", total=143_771 * 2**20, used=0, reserved=615 * 2**20, utilization=0, power_mw=77_156,
               temperature=35, sm_mhz=345, throttle=1, activity=(0.0, 0.0))  # fmt: skip


def test_an_idle_gpu_in_plain_words(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    Driver(h200()).install(monkeypatch)
    assert main(["doctor", "gpu"]) == 0
    assert capsys.readouterr().out == (
        "NVIDIA driver 580.95.05\n"
        "GPU 0: NVIDIA H200, GPU-7d94\n"
        "  memory:      0.0 GiB used, 139.8 GiB free of 140.4 GiB, 0.6 GiB kept by the driver\n"
        "  processes:   none seen\n"
        "  clocks:      SM 345 MHz of 1980 MHz, memory 3201 MHz of 3201 MHz\n"
        "  held down:   idle\n"
        "  heat, power: 35 °C (slows down at 89 °C), 77 W of 700 W\n"
        "  modes:       persistence mode on, MIG off, ECC on, activity counters on\n"
        "  lock:        free\n"
    )


def test_who_is_on_a_gpu_and_who_has_its_lock(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    gpu = h200()
    gpu.used, gpu.processes, gpu.throttle = 60 * GIB, [(os.getpid(), 59 * GIB), (2**30, None)], 0x44
    Driver(gpu).install(monkeypatch)
    with take(Wish((0,)), lambda: [Card(0, "GPU-7d94")]):
        assert main(["doctor", "gpu"]) == 0
    shown = capsys.readouterr().out
    assert f"pid {os.getpid()} (" in shown
    assert ") with 59.0 GiB; pid 1073741824\n" in shown
    assert "  held down:   power cap, thermal slowdown (hardware)\n" in shown
    assert f"  lock:        held by pid {os.getpid()} of " in shown
    assert "  ! it is slowed down now: thermal slowdown (hardware);" in shown
    assert "without a lock" not in shown


def test_as_json(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    Driver(h200(), Gpu("GPU-b", throttle=None, mig=None, persistence=0)).install(monkeypatch)
    assert main(["doctor", "gpu", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    first, second = told["gpus"]
    assert told["reason"] is None
    assert (first["uuid"], first["reserved_bytes"], first["held_down_by"]) == ("GPU-7d94", 615 * 2**20, ["idle"])
    assert (first["gpm"], first["lock_holder"], first["advice"]) == (True, None, [])
    assert (second["throttle"], second["held_down_by"], second["mig"], second["gpm"]) == (None, None, None, False)
    assert second["advice"] == [
        "persistence mode is off: the driver unloads between launches, and starts vary (nvidia-smi -pm 1)"
    ]


def test_a_lost_gpu_is_said_and_the_other_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Driver(Gpu("GPU-a", lost=True), h200()).install(monkeypatch)
    assert main(["doctor", "gpu"]) == 0
    shown = capsys.readouterr().out
    assert "  ! it does not answer: lost" in shown
    assert "SM 345 MHz of 1980 MHz" in shown


def test_no_driver_is_one_clear_sentence_and_status_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Driver(init_fails=True).install(monkeypatch)
    assert main(["doctor", "gpu"]) == 1
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err == (
        "No GPU can be seen: no NVIDIA driver (Driver Not Loaded). Servers that compute on the CPU need none.\n"
    )
    assert main(["doctor", "gpu", "--json"]) == 1
    assert json.loads(capsys.readouterr().out) == {"gpus": [], "reason": "no NVIDIA driver (Driver Not Loaded)"}


@pytest.mark.parametrize(
    ("figures", "text"),
    [
        ({"used_bytes": 50, "free_bytes": 50}, "no process is seen"),
        ({"temperature_c": 85.0, "slowdown_c": 89.0}, "nearly as hot"),
        ({"ecc_errors": 2}, "2 uncorrected memory errors"),
        ({"mig": True}, "divided into instances"),
    ],
)
def test_what_would_spoil_a_measurement_is_said(figures: dict[str, object], text: str) -> None:
    quiet = {"total_bytes": 100, "used_bytes": 0, "free_bytes": 100, "processes": (), "temperature_c": 30.0}
    assert advice(Card(0, "u", **quiet), None) == []  # type: ignore[arg-type]
    (found,) = advice(Card(0, "u", **quiet | figures), None)  # type: ignore[arg-type]
    assert text in found
