"""Suites without Python: ``*.llmperf.toml`` files are collected, selected, run, judged and reported as tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from truth_server import TruthServer

DEFAULTS = """
[defaults]
workload = { input = 24, output = 8 }
concurrency = 1
requests = 10
warmup = 2
"""
SUITE = (
    DEFAULTS
    + """
[tests.good]
sla = { ttft_p90 = "5 s", confidence = 0.6 }
regression = { ttft_p50 = "3 %" }

[tests.slow.sla]
ttft_p95 = "1 us"

[tests.other]
expects = ["prefix_hit_rate > 0.99"]

[tests.load]
parametrize = { concurrency = [1, 2] }
"""
)


def suite(pytester: pytest.Pytester, text: str = SUITE, name: str = "suites/chat.llmperf.toml") -> Path:
    path = pytester.path / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return path


def report(pytester: pytest.Pytester) -> dict[str, Any]:
    content = json.loads((pytester.path / "llmperf-report" / "report.json").read_text())
    return {test["nodeid"]: test for test in content["tests"]}


@pytest.fixture
def server() -> Any:
    with TruthServer(ttft=5, gap=1, cached=2) as running:
        yield running


def run(pytester: pytest.Pytester, server: TruthServer, *options: str) -> pytest.RunResult:
    return pytester.runpytest_subprocess("--llmperf", "--llmperf-url", server.url, *options)


def test_a_suite_runs_to_its_verdicts(pytester: pytest.Pytester, server: TruthServer) -> None:
    suite(pytester)
    result = run(pytester, server, "-v", "--junitxml=junit.xml")
    assert result.ret == 1
    result.assert_outcomes(passed=2, failed=2)
    tests = report(pytester)
    here = "suites/chat.llmperf.toml"
    assert {nodeid: test["verdict"] for nodeid, test in tests.items()} == {
        f"{here}::good": "NO_BASELINE",  # it asks for a comparison, and nothing is stored
        f"{here}::slow": "FAIL",
        f"{here}::other": "INVALID",
        f"{here}::load[1]": "PASS",
        f"{here}::load[2]": "PASS",
    }
    assert [tests[f"{here}::load[{n}]"]["plan"]["load"]["concurrency"] for n in (1, 2)] == [1, 2]
    assert tests[f"{here}::good"]["plan"]["slas"][0]["confidence"] == 0.6
    assert tests[f"{here}::good"]["plan"]["regression"]["tolerances"]["ttft_p50"]["written"] == "3 %"
    assert all(len(test["trials"]) == 1 for test in tests.values())
    result.stdout.re_match_lines(
        [
            r"suites/chat.llmperf.toml::good NO_BASELINE .*",
            r"suites/chat.llmperf.toml::slow FAILED .*",
            r"FAIL: ttft_p95 .* > 1 us \(n=10, 10 beyond, confidence > 99.9 %\)",
            r"INVALID: did not exercise what it is meant to: expects prefix_hit_rate > 0.99, and it is .*",
        ]
    )
    assert "Traceback" not in result.stdout.str()
    cases = {
        (case.get("classname"), case.get("name")): case
        for case in ET.parse(pytester.path / "junit.xml").iter("testcase")
    }
    good = cases["suites.chat.llmperf.toml", "good"]
    properties = {each.get("name"): each.get("value") for each in good.iter("property")}
    assert properties["llmperf_verdict"] == "NO_BASELINE"
    failed = run(pytester, server, "--lf", "-v")
    failed.assert_outcomes(failed=2)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("-k", "load and 2"), ["load[2]"]),
        (("-k", "chat and good"), ["good"]),
        (("-m", "sla"), ["good", "slow"]),
        (("-m", "llmperf and not sla and not regression"), ["other", "load[1]", "load[2]"]),
        (("suites/chat.llmperf.toml::load[1]",), ["load[1]"]),
        (("suites/chat.llmperf.toml::load",), ["load[1]", "load[2]"]),
        (("--deselect", "suites/chat.llmperf.toml::load", "-m", "not sla"), ["other"]),
        (("-o", "testpaths=suites", "-o", "python_files=x_*.py"), ["good", "slow", "other", "load[1]", "load[2]"]),
        (("-o", "testpaths=elsewhere"), []),
    ],
)
def test_tests_of_a_suite_are_selected_as_any_others(
    pytester: pytest.Pytester, options: tuple[str, ...], expected: list[str]
) -> None:
    suite(pytester)
    (pytester.path / "elsewhere").mkdir()
    for switch in ((), ("--llmperf", "--llmperf-url=http://127.0.0.1:9")):
        result = pytester.runpytest("--collect-only", "-q", *switch, *options)
        found = [line for line in result.stdout.lines if line.startswith("suites/")]
        assert [line.removeprefix("suites/chat.llmperf.toml::") for line in found] == expected
    assert not (pytester.path / "llmperf-report").exists()


def test_without_the_option_they_are_skipped_with_the_reason(pytester: pytest.Pytester) -> None:
    suite(pytester, SUITE + "nonsense = 1\n[tests.wrong.sla]\nrubbish = 3\n")
    result = pytester.runpytest("-rs", "--strict-markers")
    result.assert_outcomes(skipped=6)
    result.stdout.fnmatch_lines(["SKIPPED [[]6[]] *chat.llmperf.toml*: performance test: run with --llmperf"])


def test_x_spends_nothing_on_what_it_never_reaches(pytester: pytest.Pytester, server: TruthServer) -> None:
    suite(pytester)
    result = run(pytester, server, "-x")
    result.assert_outcomes(failed=1)
    assert [len(test["trials"]) for test in report(pytester).values()] == [1, 1, 0, 0, 0]


def test_suites_and_python_tests_share_a_campaign(pytester: pytest.Pytester, server: TruthServer) -> None:
    suite(pytester, DEFAULTS + "[tests.a]\n")
    load = "workload={'input': 24, 'output': 8}, concurrency=1, requests=10, warmup=2"
    pytester.makepyfile(
        f"import pytest\n@pytest.mark.llmperf({load})\ndef test_b(llmperf):\n    assert llmperf.run().ok == 10\n"
    )
    run(pytester, server).assert_outcomes(passed=2)
    content = json.loads((pytester.path / "llmperf-report" / "report.json").read_text())
    (campaign,) = content["campaigns"]
    assert (len(campaign["tests"]), len(campaign["launches"])) == (2, 1)
    plans = [test["plan"] for test in content["tests"]]
    for plan in plans:
        del plan["nodeid"]
    assert plans[0] == plans[1]


def test_limits_may_stand_in_several_tables(pytester: pytest.Pytester, server: TruthServer) -> None:
    text = """
[defaults.sla]
e2e_p95 = "7 s"
ttft_p90 = "6 s"
[tests.a]
[[tests.a.sla]]
ttft_p90 = "5 s"
confidence = 0.6
[[tests.a.sla]]
output_throughput = "1 tok/s"
"""
    suite(pytester, DEFAULTS + text)
    run(pytester, server).assert_outcomes(passed=1)
    (test,) = report(pytester).values()
    assert {sla["metric"]: (sla["written"], sla["confidence"]) for sla in test["plan"]["slas"]} == {
        "e2e_p95": ("7 s", None),
        "ttft_p90": ("5 s", 0.6),
        "output_throughput": ("1 tok/s", None),
    }


def test_files_named_in_a_suite_lie_beside_it(pytester: pytest.Pytester) -> None:
    path = suite(pytester, "[tests.a]\nworkload = 'tiny'\nconcurrency = 1\nrequests = 3\nserver = 'embedded'\n")
    (path.parent / "workloads").mkdir()
    (path.parent / "workloads" / "tiny.toml").write_text("input = { uniform = [4, 8] }\noutput = 4\n")
    result = pytester.runpytest("--llmperf", "--llmperf-dry-run")
    assert result.ret == 0
    result.stdout.fnmatch_lines(["  suites/chat.llmperf.toml::a: tiny, concurrency 1, 3 requests *"])


FAULTS = [
    ("[tests.a]\nconcurency = 3", "tests.a.concurency: unknown argument; did you mean 'concurrency'?"),
    ("[tests.a]\nslas = {}", "tests.a.slas: unknown argument; did you mean 'sla'?"),
    ("[tests.a]\nsla = {}", "tests.a.sla: names no metric; write e.g. ttft_p95='500 ms'"),
    ("[tests.a.sla]\nttft_95 = '1 s'", "tests.a.sla.ttft_95: unknown metric 'ttft_95'; did you mean 'ttft_p95'?"),
    ("[tests.a.sla]\nttft_p95 = 1", "tests.a.sla.ttft_p95: 1 has no unit; write e.g. '500 ms'"),
    ("[tests.a.regression]\nmfu = '3 %'", "tests.a.regression.mfu: mfu cannot be gated: "),
    ("[tests.a]\nexpects = ['mfu = 1']", "tests.a.expects: 'mfu = 1' has the unknown operator '='"),
    ("[tests.a]\nserver = 'embeded'", "tests.a.server: unknown server 'embeded'; did you mean 'embedded'?"),
    ("[tests.a]\nconcurrency = 0", "tests.a.concurrency: 0: input should be greater than or equal to 1"),
    ("[tests.a]\nduration = '1 s'\nrequests = 3", "tests.a: give exactly one of requests and duration"),
    ("[tests.a]\nworkload = 'chta'", "tests.a.workload: no workload 'chta'; did you mean 'chat'?"),
    ("[tests.a]\nworkload = { input = 5 }", "tests.a.workload: output: is required (or dataset, or trace)"),
    ("[tests.a]\nramp = { from = 1 }", "tests.a.ramp.over: is required"),
    ("[tests.a]\nrequests = 1979-05-27", "tests.a.requests: datetime.date(1979, 5, 27): input should be a valid"),
    ("[tests.a]\nparametrize = { concurrency = [0] }", "tests.a.parametrize.concurrency: 0: input should be greater"),
    ("[tests.a]\nparametrize = { concurency = [1] }", "tests.a.parametrize.concurency: unknown argument; did you mean"),
    ("sla = { ttft_95 = '1 s' }\n[tests.a]", "defaults.sla.ttft_95: unknown metric 'ttft_95'; did you mean 'ttft_p95'"),
    ("slo = { tfft = '1 s' }\n[tests.a]\n[tests.b]", "defaults.slo: unknown per-request metric 'tfft'; did you mean"),
]


def test_a_fault_names_file_key_value_and_what_would_be_right(pytester: pytest.Pytester) -> None:
    pytester.makefile(".toml", llmperf="default_server = 'embedded'\n")
    for at, (text, _) in enumerate(FAULTS):
        suite(pytester, DEFAULTS + text, f"suites/{at:02}.llmperf.toml")
    result = pytester.runpytest("--llmperf")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    lines = [line for line in result.stderr.lines if line.startswith("ERROR: ")]
    assert len(lines) == len(FAULTS)
    for at, (line, (_, expected)) in enumerate(zip(lines, FAULTS, strict=True)):
        assert line.startswith(f"ERROR: suites/{at:02}.llmperf.toml: {expected}")
        assert "@pytest.mark" not in line


@pytest.mark.parametrize("switch", [(), ("--llmperf",)])
def test_a_file_whose_tests_cannot_be_told_is_a_collection_error(
    pytester: pytest.Pytester, switch: tuple[str, ...]
) -> None:
    suite(pytester, "[tests.a]\nparametrize = { concurrency = 3 }\n")
    suite(pytester, "[tests.a\n", "suites/broken.llmperf.toml")
    (pytester.path / "suites" / "latin.llmperf.toml").write_bytes(b"# \xe9\n[tests.a]\n")
    result = pytester.runpytest(*switch)
    assert result.ret == pytest.ExitCode.INTERRUPTED
    result.assert_outcomes(errors=3)
    result.stdout.fnmatch_lines(
        [
            "*ERROR collecting suites/broken.llmperf.toml*",
            "suites/broken.llmperf.toml: not valid TOML: *",
            "suites/chat.llmperf.toml: tests.a.parametrize.concurrency: 3 is not a list of values such as [[]1, 16[]]",
            "suites/latin.llmperf.toml: cannot be read: *",
        ]
    )
    assert "Traceback" not in result.stdout.str()


def test_the_configuration_file_is_no_suite(pytester: pytest.Pytester) -> None:
    pytester.makefile(".toml", llmperf="replays = 2\n")
    assert pytester.runpytest().ret == pytest.ExitCode.NO_TESTS_COLLECTED
