"""A server on GPUs, from lock to report: the truth server with a stand-in for NVIDIA's driver."""

from __future__ import annotations

import re
from pathlib import Path

import psutil
import pytest
from comparing import prepare, report
from truth_engine import CONFTEST

from pytest_llmperf.cards import Card
from pytest_llmperf.server.gpus import FOLDER_VARIABLE, Wish, take

GIB = 2**30
ON_GPUS = """
import os, time
from dataclasses import replace
from types import SimpleNamespace

import driver
import psutil

truth_engine.ENGINES["truth"] = replace(truth_engine.TRUTH, cpu=False)

class Loaded(driver.Driver):
    '''Each process of the truth server holds 5 GiB of the second GPU, which draws 500 W.'''

    def servers(self, handle):
        found = []
        for process in psutil.process_iter(["cmdline", "environ"]) if handle == 1 else ():
            ours = (process.info["environ"] or {}).get("LAUNCHES") == os.path.join(os.getcwd(), "launches.txt")
            if ours and any(word.endswith("truth_server.py") for word in process.info["cmdline"] or ()):
                found.append(process.pid)
        return found

    def nvmlDeviceGetMemoryInfo(self, handle, version=None):
        self.gpus[handle].used = 5 * 2**30 * len(self.servers(handle))
        return super().nvmlDeviceGetMemoryInfo(handle, version)

    def nvmlDeviceGetComputeRunningProcesses(self, handle):
        pids = self.servers(handle)
        if pids and "FOREIGN" in os.environ:
            pids = [*pids, 1]
        return [SimpleNamespace(pid=pid, usedGpuMemory=5 * 2**30, gpuInstanceId=driver.WHOLE) for pid in pids]

    def nvmlDeviceGetTotalEnergyConsumption(self, handle):
        return int(500_000 * time.monotonic())

    def nvmlEventSetCreate(self):
        self.watches = getattr(self, "watches", 0) + 1
        if os.environ.get("FAILS_IN") == str(self.watches):
            self.xids = [(1, 79)]
        return super().nvmlEventSetCreate()

sys.modules["pynvml"] = Loaded(driver.Gpu("GPU-a"), driver.Gpu("GPU-b"))
"""
TESTS = """
import psutil
import pytest

@pytest.mark.llmperf(workload={'input': 24, 'output': 40}, concurrency=2, duration="DURATION", warmup=2)
def test_speed(llmperf, llmperf_server):
    llmperf.run()
    launched = [p for p in psutil.process_iter(["cmdline"])
                if llmperf_server.url.rpartition(":")[2] in " ".join(p.info["cmdline"] or ())]
    assert {p.environ().get("CUDA_VISIBLE_DEVICES") for p in launched} == {"THESE"}
"""
SERVER = 'gpus = [1]\ngpu_wait = "0 s"\n[tool.llmperf.prices]\n"NVIDIA H200" = "3.60 USD/h"'


@pytest.fixture(autouse=True)
def locks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "locks"))
    return tmp_path / "locks"


def run(
    pytester: pytest.Pytester, server: str = SERVER, duration: str = "0.3 s", visible: str = "GPU-b"
) -> pytest.RunResult:
    prepare(pytester, TESTS.replace("DURATION", duration).replace("THESE", visible), more=server)
    pytester.makeconftest(CONFTEST + ON_GPUS)
    return pytester.runpytest_subprocess("--llmperf", "-p", "no:cacheprovider", "-p", "no:benchmark")


def test_memory_energy_and_price_of_a_server_on_a_gpu(pytester: pytest.Pytester) -> None:
    result = run(pytester, duration="2.5 s")
    assert result.ret == 0, result.stdout.str()
    (test,) = report(pytester)["tests"]
    value = {name: found["value"] for name, found in test["metrics"].items()}
    assert value["peak_memory"] == value["startup_memory"] == 5 * GIB
    # 500 W and 3.60 USD/h = 0.001 USD/s, at so many tokens a second.
    assert value["energy_per_mtok"] == pytest.approx(500e6 / value["output_throughput"], rel=0.1)
    assert value["cost_per_mtok"] == pytest.approx(1e3 / value["output_throughput"])
    assert test["trials"][0]["metrics"]["cost_per_mtok"]["value"] is not None
    assert report(pytester)["campaigns"][0]["launches"][0]["gpus"] == 1
    assert test["identity"]["environment"]["gpu_count"]["value"] == "1"


def test_memory_of_a_server_that_is_given_no_gpu_is_that_of_the_host(pytester: pytest.Pytester, locks: Path) -> None:
    result = run(pytester, 'gpus = "none"', duration="1.5 s", visible="")
    assert result.ret == 0, result.stdout.str()
    (test,) = report(pytester)["tests"]
    assert test["identity"]["environment"]["gpu"]["value"] == "cpu"
    assert 1e6 < test["metrics"]["peak_memory"]["value"] < GIB
    assert test["metrics"]["startup_memory"]["value"] < GIB
    assert test["metrics"]["cpu_seconds_per_mtok"]["value"] > 0
    assert not locks.exists()


def test_any_gpu_is_one_that_is_free(pytester: pytest.Pytester, locks: Path) -> None:
    with take(Wish((0,)), lambda: [Card(0, "GPU-a")], folder=locks):
        assert run(pytester, SERVER.replace("[1]", "'any:1'")).ret == 0
    (launch,) = report(pytester)["campaigns"][0]["launches"]
    assert launch["gpus"] == 1


def test_a_gpu_that_another_job_holds_is_infra_and_its_holder_is_named(pytester: pytest.Pytester, locks: Path) -> None:
    with take(Wish((1,)), lambda: [Card(1, "GPU-b")], folder=locks):
        result = run(pytester)
    assert result.ret == 12, result.stdout.str()
    result.assert_outcomes(errors=1)
    text = result.stdout.str()
    assert re.search(r"INFRA .*GPU 1 not free after 0 s \(gpu_wait\): GPU 1 is held by pid \d+ of .* since 20", text)


def test_a_foreign_process_on_the_gpu_makes_a_trial_invalid(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FOREIGN", "1")
    result = run(pytester)
    assert result.ret == 1
    result.stdout.fnmatch_lines(["*INVALID: *foreign process 1 on GPU 1 between *"])


@pytest.mark.parametrize(("when", "trials"), [("1", 0), ("2", 1)], ids=["at the start", "under the load"])
def test_a_gpu_that_fails_is_infra_and_what_was_measured_is_kept(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, when: str, trials: int
) -> None:
    monkeypatch.setenv("FAILS_IN", when)
    result = run(pytester)
    assert result.ret == 12, result.stdout.str()
    result.stdout.fnmatch_lines(["*INFRA *GPU lost: XID 79 of GPU 1*"])
    assert len(report(pytester)["tests"][0]["trials"]) == trials
    (launch,) = report(pytester)["campaigns"][0]["launches"]
    assert launch["pid"] is None or not psutil.pid_exists(launch["pid"])
