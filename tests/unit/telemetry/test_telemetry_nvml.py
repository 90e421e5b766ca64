"""GPUs, against a stand-in for the driver's library."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from driver import Driver, Gpu
from made import trial
from waiting import within

from pytest_llmperf.identity import Fact
from pytest_llmperf.metrics import measure
from pytest_llmperf.plan import LAUNCH_VARIABLE, ServerSpec
from pytest_llmperf.records import Window
from pytest_llmperf.samples import GPU_LOST, GpuSample
from pytest_llmperf.telemetry import nvml
from pytest_llmperf.telemetry import recorder as recorders
from pytest_llmperf.telemetry.cards import read_cards
from pytest_llmperf.telemetry.gpu import GpuSampler
from pytest_llmperf.telemetry.machine import gpu_facts, machine_facts
from pytest_llmperf.telemetry.nvml import DriverHangsError, NoDriverError, bounded
from pytest_llmperf.telemetry.recorder import record

SECOND = 1_000_000_000
MS = 1_000_000


def install(monkeypatch: pytest.MonkeyPatch, driver: Driver) -> Driver:
    return driver.install(monkeypatch)


def on(*processes: list[tuple[int, int | None]] | None) -> Driver:
    """GPUs with these processes, (pid, bytes) each, and 1000, 2000 ... bytes in use."""
    gpus = enumerate(processes)
    return Driver(*(Gpu(f"GPU-{n}", used=1000 * (n + 1), processes=each) for n, each in gpus))


def test_a_first_sample_has_every_field(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = install(monkeypatch, Driver(Gpu("GPU-a", used=900, processes=[(7, 300)], activity=(55.0, 40.0))))
    with GpuSampler([0]) as sampler:
        first = sampler.sample(0, {7})
        driver.gpus[0].energy_mj = 1_500_250
        second = sampler.sample(SECOND, {7})
    everything = GpuSample(
        0, 0, 900, 300, (), utilization=0.95, power_w=500.0, energy_j=1000.0, temperature_c=50, sm_clock_mhz=1980,
        memory_clock_mhz=3201, throttle=0,
    )  # fmt: skip
    assert first == (everything,)
    assert (second[0].energy_j, second[0].sm_activity, second[0].dram_activity) == (1500.25, 0.55, 0.40)
    assert sampler.note is None
    assert (driver.open, driver.allocated) == (0, 0)


def test_what_costs_the_driver_more_is_asked_once_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = install(monkeypatch, Driver(Gpu("GPU-a", processes=[(7, 300)], throttle=4)))
    with GpuSampler([0]) as sampler:
        taken = [sampler.sample(at * 200 * MS, {7})[0] for at in range(11)]
    assert [sample.server_bytes for sample in taken] == [300, None, None, None, None] * 2 + [300]
    assert [sample.power_w is None for sample in taken] == [False, True, True, True, True] * 2 + [False]
    assert {(sample.used_bytes, sample.sm_clock_mhz, sample.throttle) for sample in taken} == {(1000, 1980, 4)}
    often, seldom = ("memory", "throttle"), ("processes", "power", "energy", "temperature", "utilization")
    assert {driver.asked[name] for name in often} == {11}
    assert {driver.asked[name] for name in seldom} == {3}


def test_what_a_driver_refuses_at_first_is_absent_and_not_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = Gpu("GPU-a", utilization=None, power_mw=None, energy_mj=None, temperature=None, throttle=None, sm_mhz=None)
    driver = install(monkeypatch, Driver(gpu))
    gpu.processes = None
    with GpuSampler([0]) as sampler:
        for at in range(5):
            (sample,) = sampler.sample(at * SECOND, {7})
            assert sample == GpuSample(at * SECOND, 0, 1000, None, memory_clock_mhz=3201)
    assert {driver.asked[name] for name in ("power", "energy", "temperature", "utilization", "throttle")} == {1}


def test_a_field_that_fails_once_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = install(monkeypatch, Driver(Gpu("GPU-a")))
    with GpuSampler([0]) as sampler:
        sampler.sample(0, ())
        driver.gpus[0].power_mw = None
        assert sampler.sample(SECOND, ())[0].power_w is None
        driver.gpus[0].power_mw = 250_000
        assert sampler.sample(2 * SECOND, ())[0].power_w == 250


def test_memory_of_an_old_driver_says_that_it_holds_more(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, Driver(Gpu("GPU-a", reserved=None)))
    with GpuSampler([0]) as sampler:
        assert sampler.sample(0, ())[0].used_bytes == 1000
    assert sampler.note == "memory in use of GPU 0 includes what its driver keeps for itself"


def test_memory_of_the_servers_own_processes_is_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = install(monkeypatch, on([(7, 300), (8, 200), (99, 400)], [(99, 50)]))
    with GpuSampler([0, 1]) as sampler:
        found = sampler.sample(5, {7, 8})
    assert [(s.t_ns, s.gpu, s.used_bytes, s.server_bytes, s.foreign_pids) for s in found] == [
        (5, 0, 1000, 500, (99,)),
        (5, 1, 2000, 0, (99,)),
    ]
    assert sampler.note is None
    assert driver.open == 0


def test_where_the_driver_names_no_process_of_ours_nobody_is_a_stranger(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may count processes as the host does, and we as a container."""
    install(monkeypatch, on([(99, 400)]))
    with GpuSampler([0]) as sampler:
        (found,) = sampler.sample(5, {7, 8})
    assert (found.server_bytes, found.foreign_pids) == (None, None)


def test_processes_that_the_driver_does_not_size_are_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, on([(7, None), (8, 5)]))
    with GpuSampler([0]) as sampler:
        (found,) = sampler.sample(5, {7})
    assert (found.server_bytes, found.foreign_pids) == (None, (8,))


@contextmanager
def child(launch: str | None) -> Iterator[int]:
    """A process that says it came of a launch."""
    environment = {**os.environ, **({LAUNCH_VARIABLE: launch} if launch else {})}
    process = subprocess.Popen([sys.executable, "-c", "print(1, flush=True); input()"], env=environment,
                               stdin=subprocess.PIPE, stdout=subprocess.PIPE)  # fmt: skip
    assert process.stdout is not None
    process.stdout.readline()
    try:
        yield process.pid
    finally:
        process.communicate()


def test_a_process_of_the_launch_that_left_its_tree_is_no_stranger(monkeypatch: pytest.MonkeyPatch) -> None:
    with child("a") as server, child("a") as strayed, child("b") as other, child(None) as plain:
        install(monkeypatch, on([(server, 100), (strayed, 10), (other, 5), (plain, 1)]))
        with GpuSampler([0]) as sampler:
            (found,) = sampler.sample(0, {server})
    assert (found.server_bytes, set(found.foreign_pids or ())) == (110, {other, plain})


def test_other_instances_of_a_divided_gpu_are_no_strangers(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = Gpu("GPU-a", mig=1, utilization=None, processes=[(7, 300), (8, 9), (9, 9)], instances={7: 2, 8: 2, 9: 3})
    gpu.activity = (30.0, 10.0)
    install(monkeypatch, Driver(gpu))
    with GpuSampler([0]) as sampler:
        sampler.sample(0, {7})
        (found,) = sampler.sample(SECOND, {7})
    assert (found.server_bytes, found.foreign_pids, found.utilization) == (300, (8,), None)
    assert (found.sm_activity, found.dram_activity) == (0.3, 0.1)


@pytest.mark.parametrize(("xid", "grave"), [(79, True), (48, True), (31, False)])
def test_an_xid_is_a_note_and_that_of_a_program_is_no_lost_gpu(
    monkeypatch: pytest.MonkeyPatch, xid: int, grave: bool
) -> None:
    driver = install(monkeypatch, Driver())
    with GpuSampler([0, 1]) as sampler:
        sampler.sample(0, ())
        driver.xids = [(1, xid)]
        sampler.sample(SECOND, ())
    text = f"XID {xid} of GPU 1 (see the kernel's log)"
    assert sampler.note == (f"{GPU_LOST}: {text}" if grave else text)


def test_the_namesake_that_warns_at_import_does_not_end_a_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "pynvml.py").write_text(
        "import warnings\nwarnings.warn('deprecated', FutureWarning)\n"
        "class NVMLError(Exception): pass\ndef nvmlInit(): raise NVMLError('none')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "pynvml", raising=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(NoDriverError, match=r"no NVIDIA driver \(none\)"):
            read_cards()
    monkeypatch.delitem(sys.modules, "pynvml", raising=False)


def test_no_driver_is_a_note_and_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, Driver(init_fails=True))
    with record(None, gpus=[0]) as recorder:
        pass
    assert recorder.telemetry.gpu == ()
    assert any("no NVIDIA driver" in note for note in recorder.telemetry.notes)


def test_no_library_is_a_note_and_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with GpuSampler([0]) as sampler:
        assert sampler.sample(0, ()) == ()
    assert "not installed" in (sampler.note or "")


def test_a_gpu_that_does_not_exist_is_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, Driver())
    with GpuSampler([5]) as sampler:
        assert sampler.sample(0, ()) == ()
    assert "GPU 5: Invalid Argument" in (sampler.note or "")


def test_a_gpu_that_is_lost_leaves_the_other_and_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = install(monkeypatch, Driver())
    with GpuSampler([0, 1]) as sampler:
        driver.gpus[0].lost = True
        assert [sample.gpu for sample in sampler.sample(0, ())] == [1]
    assert sampler.note == f"{GPU_LOST}: GPU 0: GPU is lost"


def test_without_gpus_the_library_is_not_even_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "pynvml", raising=False)
    with GpuSampler([]) as sampler:
        pass
    assert sampler.note is None
    assert "pynvml" not in sys.modules


@pytest.mark.parametrize("fault", ["no driver", "no such GPU", "lost"])
def test_peak_memory_of_a_gpu_server_is_not_measured_without_the_driver_and_never_host_memory(
    monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    driver = install(monkeypatch, Driver(init_fails=fault == "no driver"))
    if fault == "lost":
        driver.gpus[1].lost = True
    with record(os.getpid(), gpus=[0, 5 if fault == "no such GPU" else 1]) as recorder:
        pass
    found = measure([trial([], telemetry=recorder.telemetry)], None, ["peak_memory"])["peak_memory"]
    assert recorder.telemetry.host
    assert found.value is None
    assert found.note is not None
    assert "host memory does not stand in for that of GPUs" in found.note
    reasons = {"no driver": "no NVIDIA driver (Driver Not Loaded)", "no such GPU": "GPU 5: ", "lost": "GPU is lost"}
    assert reasons[fault] in found.note


def test_peak_memory_of_a_gpu_server_is_that_of_its_processes_on_the_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, on([(os.getpid(), 500)], [(os.getpid(), 70)]))
    with record(os.getpid(), gpus=[0, 1]) as recorder:
        pass
    first, *_, last = (sample.t_ns for sample in recorder.telemetry.gpu)
    watched = trial([], telemetry=recorder.telemetry, window=Window(first, last))
    assert measure([watched], None, ["peak_memory"])["peak_memory"].value == 570


def test_a_gpu_server_whose_gpus_nobody_named_has_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "pynvml", raising=False)
    with record(os.getpid(), gpus=[]) as recorder:
        pass
    found = measure([trial([], telemetry=recorder.telemetry)], None, ["peak_memory"])["peak_memory"]
    assert found.value is None
    assert "gpus does not say which GPUs the server has" in (found.note or "")


def told(found: dict[str, Fact]) -> dict[str, str]:
    assert {fact.source for fact in found.values()} <= {"live"}
    return {name: fact.value for name, fact in found.items()}


def test_what_the_gpus_are(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = install(monkeypatch, Driver())
    # 150e9 B / 2^30 = 139.70 GiB
    alike = {"driver": "580.95.05", "gpu": "NVIDIA H200", "gpu_memory": "140 GiB"}
    assert told(gpu_facts()) == {**alike, "gpu_count": "2"}
    assert told(gpu_facts([1])) == {**alike, "gpu_count": "1"}
    driver.gpus[1].mig = 1
    assert told(gpu_facts()) == {**alike, "gpu_count": "2", "mig": "on"}
    assert told(gpu_facts([0])) == {**alike, "gpu_count": "1"}
    driver.gpus[0].mig = driver.gpus[1].mig = None
    driver.gpus[1].name = b"NVIDIA L4"
    assert told(gpu_facts())["gpu"] == "NVIDIA H200 + NVIDIA L4"
    assert driver.open == 0


def test_what_the_driver_does_not_tell_is_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = install(monkeypatch, Driver())
    driver.gpus[1].lost = True
    assert told(gpu_facts()) == {"driver": "580.95.05", "gpu": "NVIDIA H200", "gpu_count": "2"}
    assert told(gpu_facts([5])) == {"driver": "580.95.05"}
    install(monkeypatch, Driver(init_fails=True))
    assert gpu_facts() == {}
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert gpu_facts() == {}


def test_the_machine_is_that_of_a_server_that_is_started_here(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, Driver())
    on_gpu = ServerSpec(name="s", engine="vllm", gpus=(0,))
    facts = machine_facts(on_gpu, "h200-a")
    assert (facts["gpu_count"].value, facts["pool"].value, facts["pool"].source) == ("1", "h200-a", "configured")
    assert "pool" not in machine_facts(on_gpu, None)
    assert list(machine_facts(ServerSpec(name="s", engine="embedded"), "p")) == ["pool"]
    assert machine_facts(ServerSpec(name="s", engine="vllm", url="http://127.0.0.1:1"), "p") == {}


@pytest.fixture
def hanging(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """A driver whose calls for memory do not return until the end of the test."""
    over, ask = threading.Event(), Driver.nvmlDeviceGetMemoryInfo
    driver = install(monkeypatch, on([(os.getpid(), 500)]))

    def hangs(handle: int, version: int | None = None) -> object:
        over.wait(60)
        return ask(driver, handle, version)

    monkeypatch.setattr(driver, "nvmlDeviceGetMemoryInfo", hangs, raising=False)
    monkeypatch.setattr(recorders, "ANSWER_S", 0.2)
    monkeypatch.setattr(nvml, "_stuck", [])
    yield over
    over.set()


def test_a_driver_that_does_not_return_leaves_the_load_alone(hanging: threading.Event) -> None:
    with record(os.getpid(), gpus=[0]) as recorder:
        pass
    found = recorder.telemetry
    assert (found.gpu, found.notes[0]) == ((), "the sampler hung and was left behind")
    with record(os.getpid(), gpus=[0]) as recorder:
        pass
    assert "GPU memory not measured: the NVIDIA driver does not answer" in recorder.telemetry.notes[0]
    assert len(recorder.telemetry.host) == 2  # the rest is sampled
    with pytest.raises(DriverHangsError, match="an earlier call still hangs"):
        read_cards()
    assert gpu_facts() == {}
    hanging.set()
    assert within(30, lambda: not [each for each in threading.enumerate() if each.name == "llmperf-telemetry"])
    assert [card.used_bytes for card in read_cards()] == [1000]  # it has come back


def test_a_look_at_gpus_ends_in_time(hanging: threading.Event) -> None:
    with pytest.raises(DriverHangsError, match=r"does not answer \(waited 0.1 s\)"):
        bounded(lambda: hanging.wait(60), 0.1)
    hanging.set()
    assert within(30, lambda: not [each for each in threading.enumerate() if each.name == "llmperf-driver"])
    assert bounded(lambda: 5) == 5
    with pytest.raises(ZeroDivisionError):
        bounded(lambda: 1 // 0)


def test_a_binding_that_cannot_be_loaded_is_no_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pynvml.py").write_text("raise RuntimeError('broken')")
    monkeypatch.delitem(sys.modules, "pynvml", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(NoDriverError, match="nvidia-ml-py cannot be loaded: RuntimeError: broken"):
        read_cards()
    assert gpu_facts([0]) == {}
    with GpuSampler([0]) as sampler:
        assert sampler.sample(0, ()) == ()
    assert "cannot be loaded" in (sampler.note or "")


def test_names_that_are_no_text_and_answers_that_are_no_numbers_end_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = install(monkeypatch, Driver(Gpu("GPU-a", name=b"\xff H200", total=10, used=20)))
    (card,) = read_cards()
    assert (card.name, card.used_bytes) == ("\ufffd H200", None)  # more in use than there is

    def text(_handle: int) -> str:
        return b"\xff".decode()

    monkeypatch.setattr(driver, "nvmlDeviceGetName", text, raising=False)
    monkeypatch.setattr(driver, "nvmlDeviceGetMemoryInfo", lambda *_: None, raising=False)
    (card,) = read_cards()
    assert (card.name, card.used_bytes) == (None, None)
    with GpuSampler([0]) as sampler:
        assert sampler.sample(0, ()) == ()
    assert "GPU 0 does not answer: its memory is no number" in (sampler.note or "")
