"""A user's own engine, from ``conftest.py`` or an installed package: launched for real, with its own flags."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import truth_server

ENGINE = """
import sys
from pathlib import Path

from pytest_llmperf import Engine, Flag

PARAMETERS = {
    "max_num_seqs": "--slots",
    "enable_prefix_caching": Flag("--cache", off="--no-cache", since="2.0"),
}

def command(spec, port, model):
    words = [sys.executable, str(Path(__file__).parent / "serve.py"), model, "--port", str(port)]
    return [*words, *arguments(PARAMETERS, spec), *spec.extra_args]

MINE = Engine(
    name="mine",
    title="my server",
    parameters=PARAMETERS,
    default_port=9000,
    cpu=True,
    command=command,
    launch_version=lambda: "1.4",
)
"""
CONFTEST = f"""
from pytest_llmperf import register_engine
from pytest_llmperf.engines.parameters import arguments
{ENGINE}
register_engine(MINE)
"""
PROGRAM = f"""
import argparse, json, runpy, sys

parser = argparse.ArgumentParser(allow_abbrev=False)
parser.add_argument("model")
parser.add_argument("--port", type=int)
parser.add_argument("--slots", type=int, default=0)
options = parser.parse_args()
sys.argv[1:] = [json.dumps({{
    "host": "127.0.0.1", "port": options.port, "model": options.model, "api_key": None, "certificate": None,
    "prefix": "", "slots": options.slots, "log": "/dev/null", "script": {{"ttft": 5, "gap": 1}}, "fails": 0,
    "longer": 0, "errs_in": [], "loads": "/dev/null",
}})]
sys.path.insert(0, {str(Path(truth_server.__file__).parent)!r})
runpy.run_path({truth_server.__file__!r}, run_name="__main__")
"""
SETTINGS = """
[tool.llmperf]
default_server = "own"
[tool.llmperf.servers.own]
engine = "mine"
model = "truth"
max_num_seqs = 3
"""
TEST = """
import pytest

@pytest.mark.llmperf(workload={'input': 24, 'output': 8}, concurrency=2, requests=10)
@pytest.mark.sla(ttft_p95="5 s")
def test_it(llmperf):
    llmperf.run()
"""


def prepare(pytester: pytest.Pytester, conftest: str = CONFTEST, settings: str = SETTINGS) -> None:
    pytester.makepyfile(serve=PROGRAM, test_it=TEST)
    pytester.makeconftest(conftest)
    pytester.makepyprojecttoml(settings)


def run(pytester: pytest.Pytester, *options: str) -> pytest.RunResult:
    return pytester.runpytest_subprocess("--llmperf", "-p", "no:cacheprovider", "-p", "no:benchmark", *options)


def report(pytester: pytest.Pytester) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((pytester.path / "llmperf-report" / "report.json").read_text())
    return content


def test_an_engine_of_the_conftest_is_launched_with_its_own_flags(pytester: pytest.Pytester) -> None:
    prepare(pytester)
    result = run(pytester)
    result.assert_outcomes(passed=1)
    [campaign] = report(pytester)["campaigns"]
    command = campaign["launches"][0]["command"]
    assert command[1:3] == [str(pytester.path / "serve.py"), "truth"]
    assert command[-2:] == ["--slots", "3"]
    identity = campaign["identity"]
    told = {name: identity["input"][name]["value"] for name in ("engine", "version", "model", "max_num_seqs")}
    assert told == {"engine": "mine", "version": "1.4", "model": "truth", "max_num_seqs": "3"}
    assert identity["consequence"]["engine_evidence"]["value"] == "from documentation"


def test_a_flag_of_a_later_version_is_refused_before_anything_starts(pytester: pytest.Pytester) -> None:
    prepare(pytester)
    result = run(pytester, "--llmperf-set", "enable_prefix_caching=false")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*enable_prefix_caching: my server 1.4 has no such parameter: it came with 2.0*"])


def test_an_engine_of_an_installed_package_is_found(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its module may itself import the public names first: nothing is loaded before the configuration is read."""
    prepare(pytester, conftest="import my_engines")
    site = pytester.mkdir("site")
    (site / "my_engines.py").write_text(f"def arguments(*given):\n    from pytest_llmperf.engines.parameters import "
                                        f"arguments\n    return arguments(*given)\n{ENGINE}")  # fmt: skip
    (site / "serve.py").write_text(PROGRAM)
    info = site / "my_engines-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my-engines\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[pytest_llmperf.engines]\nmine = my_engines:MINE\n")
    monkeypatch.setenv("PYTHONPATH", str(site), prepend=":")
    run(pytester).assert_outcomes(passed=1)


@pytest.mark.parametrize(
    ("conftest", "problem"),
    [
        (CONFTEST.replace('name="mine"', 'name="vllm"'), "register_engine: name: there is an engine 'vllm' already"),
        (CONFTEST.replace('"max_num_seqs": "', '"slots": "'), "mine.parameters: there is no parameter 'slots'"),
        ("", "servers.own.engine: unknown engine 'mine'; known: llamacpp, embedded, vllm"),
    ],
)
def test_what_is_wrong_with_it_is_said_at_the_start(pytester: pytest.Pytester, conftest: str, problem: str) -> None:
    prepare(pytester, conftest)
    result = run(pytester)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert problem in result.stderr.str() + result.stdout.str()


def test_commands_on_baselines_do_not_need_to_know_it(pytester: pytest.Pytester) -> None:
    prepare(pytester)
    Path(pytester.path / "baselines").mkdir()
    result = pytester.run(sys.executable, "-m", "pytest_llmperf.cli", "baseline", "list")
    assert "unknown engine" not in result.stderr.str() + result.stdout.str()
    assert result.ret == 0


def test_a_limit_on_the_warm_start_has_a_cold_one_go_before(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(pytester.path / "cache"))
    cached = CONFTEST.replace("cpu=True,", "cpu=True, cache_env=('MY_CACHE',),")
    prepare(pytester, cached)
    limits = TEST.replace('ttft_p95="5 s"', 'time_to_ready="1 min"')
    pytester.makepyfile(test_it=limits)
    dry = run(pytester, "--llmperf-dry-run").stdout.str()
    assert ": 2 launches, 1 test(s)" in dry
    assert "note: a launch without a load goes before, since its compile caches are cold" in dry
    run(pytester).assert_outcomes(passed=1)
    found = report(pytester)
    first, second = found["campaigns"][0]["launches"]
    assert (first["priming"], first["start_up"]["cold"]) == (True, True)
    assert (second["priming"], second["start_up"]["cold"]) == (False, False)
    metrics = found["tests"][0]["metrics"]
    assert metrics["time_to_ready"]["value"] == second["start_up"]["time_to_ready_s"]
    assert metrics["time_to_ready_cold"]["value"] == first["start_up"]["time_to_ready_s"]
    # A load is measured on a launch, and is not what the launch took.
    assert (
        not {"time_to_ready", "time_to_ready_cold", "compile_time"} & found["tests"][0]["trials"][0]["metrics"].keys()
    )
    # The caches are warm now, and what is not measured says how it would be.
    wanted = 'time_to_ready="1 min", time_to_ready_cold="1 min", compile_time="1 min", cost_per_mtok="1 USD"'
    pytester.makepyfile(test_it=TEST.replace('ttft_p95="5 s"', wanted))
    run(pytester).assert_outcomes(failed=1)
    found = report(pytester)
    assert len(found["campaigns"][0]["launches"]) == 1
    checks = {check["metric"]: check for check in found["tests"][0]["slas"]}
    assert checks["time_to_ready"]["verdict"] == "PASS"
    cold = checks["time_to_ready_cold"]
    assert cold["verdict"] == "INVALID"
    assert "compile caches were warm: " in cold["reason"]
    (folder,) = (pytester.path / "cache" / "pytest-llmperf" / "compiled").iterdir()
    assert f"without the folder {folder} it is cold" in cold["reason"]
    assert "the server's log does not tell how long it compiled" in checks["compile_time"]["reason"]
    assert 'set e.g. prices."cpu" = "0.10 USD/h" in the configuration' in checks["cost_per_mtok"]["reason"]
    priced = SETTINGS.replace("[tool.llmperf.servers.own]", 'prices."cpu" = "0.10 USD/h"\n[tool.llmperf.servers.own]')
    pytester.makepyprojecttoml(priced)
    pytester.makepyfile(test_it=TEST.replace('ttft_p95="5 s"', 'cost_per_mtok="1 USD"'))
    run(pytester).assert_outcomes(passed=1)
