"""``regression`` and ``expects`` on tests: refused where they say something wrong, planned and judged where not."""

from __future__ import annotations

import json
from typing import Any

import pytest
from truth_server import TruthServer

LOAD = "workload={'input': 24, 'output': 8}, concurrency=1, requests=10, warmup=2"
FAULTS = {
    "@pytest.mark.regression('3 %')": "@pytest.mark.regression: takes keyword arguments only, not '3 %'",
    "@pytest.mark.regression(peak_mem='3 %')": "@pytest.mark.regression(peak_mem=...): unknown metric 'peak_mem'; did "
    "you mean 'peak_memory'?",
    "@pytest.mark.regression(preemptions='3 %')": "@pytest.mark.regression(preemptions=...): preemptions cannot be "
    "gated: its relative change is not a measure of harm; set a limit with sla or expects",
    "@pytest.mark.regression(cost_per_mtok='3 %')": "@pytest.mark.regression(cost_per_mtok=...): cost_per_mtok cannot "
    "be gated: it follows from output_throughput; gate that; or limit it with sla, which takes every metric",
    "@pytest.mark.regression(ttft_p50='3 ms')": "'3 ms' has the unknown unit 'ms'",
    "@pytest.mark.regression(ttft_p50='5 %..3 %')": "'5 %..3 %' is reversed",
    "@pytest.mark.regression(ttft_p95='8 %')": "@pytest.mark.regression(ttft_p95=...): ttft_p95 takes 200 requests of "
    "every launch, and the load sends 20: give it requests=100 or more replays, or gate the median",
    "@pytest.mark.regression(metrics=['tpot'])": "@pytest.mark.regression(metrics=...): 'tpot' needs a statistic",
    f"@pytest.mark.llmperf({LOAD}, expects=['preemption == 0'])": "@pytest.mark.llmperf(expects=...): 'preemption == "
    "0': unknown metric 'preemption'; did you mean 'preemptions'?",
    f"@pytest.mark.llmperf({LOAD}, expect=['preemptions == 0'])": "@pytest.mark.llmperf(expect=...): unknown argument; "
    "did you mean 'expects'?",
}


def test_every_fault_is_a_line_at_collection(pytester: pytest.Pytester) -> None:
    tests = [f"{marker}\ndef test_{at}(llmperf): ...\n" for at, marker in enumerate(FAULTS)]
    pytester.makepyfile(f"import pytest\npytestmark = pytest.mark.llmperf(server='embedded', {LOAD})\n{''.join(tests)}")
    result = pytester.runpytest("--llmperf")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    lines = [line for line in result.stderr.lines if line.startswith("ERROR: ")]
    assert len(lines) == len(FAULTS)
    for at, (line, expected) in enumerate(zip(lines, FAULTS.values(), strict=True)):
        assert f"::test_{at}: " in line
        assert expected in line


def test_a_regression_marker_alone_is_refused(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("import pytest\n@pytest.mark.regression(ttft_p50='3 %')\ndef test_it(): ...\n")
    result = pytester.runpytest("--llmperf", "--strict-markers")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*@pytest.mark.regression: needs @pytest.mark.llmperf(workload=..., ...) beside it"])


def run(pytester: pytest.Pytester, server: TruthServer, body: str) -> tuple[pytest.RunResult, dict[str, Any]]:
    pytester.makepyfile(test_it="import pytest\n" + body)
    result = pytester.runpytest_subprocess("--llmperf", "--llmperf-url", server.url, "-p", "no:cacheprovider")
    content = json.loads((pytester.path / "llmperf-report" / "report.json").read_text())
    return result, {test["nodeid"].rpartition("::")[2]: test for test in content["tests"]}


def test_plans_hold_the_closest_tolerances_and_what_is_named_is_measured(pytester: pytest.Pytester) -> None:
    body = f"""
pytestmark = [pytest.mark.llmperf({LOAD}), pytest.mark.regression(ttft_p50="3 %", e2e_p50="4 %..8 %")]

@pytest.mark.regression(ttft_p50="5 %")
def test_closer(llmperf):
    llmperf.run()

@pytest.mark.regression(metrics=["tpot_mean", "itl_p50"])
def test_family(llmperf):
    llmperf.run()
"""
    with TruthServer(ttft=5, gap=1) as server:
        _, tests = run(pytester, server, body)
    closer, family = (tests[name]["plan"]["regression"] for name in ("test_closer", "test_family"))
    assert {name: each["written"] for name, each in closer["tolerances"].items()} == {
        "ttft_p50": "5 %",
        "e2e_p50": "4 %..8 %",
    }
    assert closer["metrics"] is None
    assert family == {"tolerances": {}, "metrics": ["tpot_mean", "itl_p50"]}


def test_met_expectations_pass_and_unmet_ones_are_invalid(pytester: pytest.Pytester) -> None:
    """The server states how many prompt tokens it had cached, and the message says what was seen."""
    body = f"""
def load(*expects):
    return pytest.mark.llmperf({LOAD}, expects=list(expects))

@load("prefix_hit_rate > 0.1", "ttft_p73 < 5 s")
def test_met(llmperf):
    llmperf.run()

@load("prefix_hit_rate < 0.1")
@pytest.mark.sla(ttft_p95="5 s")
def test_unmet(llmperf):
    llmperf.run()

@load("preemptions == 0")
def test_untold(llmperf):
    llmperf.run()
"""
    with TruthServer(ttft=5, gap=1, cached=12) as server:
        result, tests = run(pytester, server, body)
    assert result.ret == 1
    assert {name: test["verdict"] for name, test in tests.items()} == {
        "test_met": "PASS",
        "test_unmet": "INVALID",
        "test_untold": "INVALID",
    }
    prompts = tests["test_met"]["trials"][0]
    (hits, quantile) = tests["test_met"]["slas"]
    assert (hits["kind"], hits["written"], hits["n"]) == ("expects", "prefix_hit_rate > 0.1", prompts["ok"])
    assert quantile["value"] == tests["test_met"]["metrics"]["ttft_p73"]["value"]
    result.stdout.re_match_lines(
        [
            r"INVALID: did not exercise what it is meant to: expects prefix_hit_rate < 0.1, and it is \d+\.\d %",
            r"INVALID: expects preemptions == 0, and preemptions is not measured: .*metrics.*",
            r"PASS  test_it.py::test_met",
            r"  ✓ expects prefix_hit_rate > 0.1, and it is \d+\.\d %",
        ]
    )
