"""A run with --llmperf, whole: outcome, text, report and exit status, on the embedded engine or a scripted server."""

from __future__ import annotations

import json
from typing import Any

import pytest
from truth_server import TruthServer

TESTS = """
import pytest

pytestmark = pytest.mark.llmperf(workload={'input': 24, 'output': 8}, concurrency=2, requests=10, warmup=2)
"""


def run(pytester: pytest.Pytester, server: TruthServer, body: str, *options: str) -> pytest.RunResult:
    pytester.makepyfile(test_it=TESTS + body)
    return pytester.runpytest_subprocess("--llmperf", "--llmperf-url", server.url, "-p", "no:cacheprovider", *options)


def report(pytester: pytest.Pytester, folder: str = "llmperf-report") -> dict[str, Any]:
    content: dict[str, Any] = json.loads((pytester.path / folder / "report.json").read_text())
    return content


@pytest.fixture
def server() -> Any:
    with TruthServer(ttft=10, gap=2) as running:
        yield running


def test_missed_limit_fails_with_metric_value_limit_and_n(pytester: pytest.Pytester, server: TruthServer) -> None:
    result = run(
        pytester,
        server,
        """
@pytest.mark.sla(ttft_p95="1 us", output_throughput="1 tok/s")
def test_impossible(llmperf):
    llmperf.run()
""",
    )
    assert result.ret == 1
    result.stdout.re_match_lines(
        [
            r"FAIL: ttft_p95 .* ms > 1 us \(n=10, 10 beyond, confidence > 99.9 %\)",
            r"slowest requests by TTFT:",
            r" +#\d+ .* beyond the limit",
        ]
    )
    assert "Traceback" not in result.stdout.str()
    stored = report(pytester)["tests"][0]
    assert (stored["verdict"], stored["outcome"]) == ("FAIL", "failed")
    assert {check["metric"]: check["verdict"] for check in stored["slas"]} == {
        "ttft_p95": "FAIL",
        "output_throughput": "PASS",
    }


def test_met_limits_pass_and_show_a_table(pytester: pytest.Pytester, server: TruthServer) -> None:
    result = run(
        pytester,
        server,
        """
@pytest.mark.sla(ttft_p95="5 s")
def test_fine(llmperf):
    result = llmperf.run()
    assert (result.ok, result.failed, result.cut) == (10, 0, 0)
    assert 0.005 < result.value("ttft_p50") < 5
    with pytest.raises(ValueError, match="itl_p50 was not measured"):
        result.value("itl_p50")
    with pytest.raises(KeyError, match="is not among the measured metrics"):
        result.value("nonsense")
""",
    )
    assert result.ret == 0
    result.stdout.fnmatch_lines(["PASS  test_it.py::test_fine", "*TTFT*ms*10", "*ttft_p95*ms*5 s*n=10*", "report: *"])


def test_run_must_be_called_exactly_once(pytester: pytest.Pytester, server: TruthServer) -> None:
    result = run(
        pytester,
        server,
        """
def test_never(llmperf):
    pass

def test_twice(llmperf):
    llmperf.run()
    llmperf.run()
""",
    )
    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(
        [
            "*test_never*",
            "the test never called llmperf.run(): nothing was measured",
            "*test_twice*",
            "llmperf.run() was called a second time: *",
        ]
    )
    verdicts = {test["nodeid"]: test["verdict"] for test in report(pytester)["tests"]}
    assert verdicts["test_it.py::test_never"] == "NOT_RUN"


def test_swallowing_the_error_of_run_does_not_pass(pytester: pytest.Pytester) -> None:
    with TruthServer(status=500) as server:
        result = run(
            pytester,
            server,
            """
def test_swallowed(llmperf):
    try:
        llmperf.run()
    except BaseException:
        pass
""",
        )
    result.assert_outcomes(failed=1)


def test_strict_limit_that_cannot_be_decided_is_inconclusive(pytester: pytest.Pytester, server: TruthServer) -> None:
    body = """
@pytest.mark.sla(ttft_p99="5 s", confidence=0.95)
def test_strict(llmperf):
    llmperf.run()
"""
    warned = run(pytester, server, body, "-v")
    assert warned.ret == 0
    warned.stdout.fnmatch_lines(
        ["*test_strict INCONCLUSIVE*", "*not decidable with n=10: 0 beyond; about 299 requests would decide*"]
    )
    warned.stdout.fnmatch_lines(["*1 inconclusive in *"])
    failed = run(pytester, server, body, "--llmperf-undecided=fail")
    assert failed.ret == 10


def test_limit_on_something_unmeasured_is_invalid_never_passed(pytester: pytest.Pytester, server: TruthServer) -> None:
    result = run(
        pytester,
        server,
        """
@pytest.mark.sla(kv_usage_p95=0.9)
def test_unmeasured(llmperf):
    llmperf.run()
""",
    )
    assert result.ret == 1
    result.stdout.fnmatch_lines(["INVALID: kv_usage_p95: not measured: *"])


def test_errors_fail_the_test_unless_a_limit_allows_them(pytester: pytest.Pytester) -> None:
    body = """
def test_plain(llmperf):
    llmperf.run()

@pytest.mark.sla(error_rate="100 %")
def test_allowed(llmperf):
    llmperf.run()
"""
    with TruthServer(ttft=5, gap=1, error_after=3) as server:
        result = run(pytester, server, body)
    result.stdout.fnmatch_lines(["*stream_error*"])
    tests = {test["nodeid"].rpartition("::")[2]: test for test in report(pytester)["tests"]}
    assert tests["test_plain"]["verdict"] == "FAIL"
    assert tests["test_plain"]["trials"][0]["failures"] == {"stream_error": 10}
    assert [check["kind"] for check in tests["test_plain"]["slas"] if check["verdict"] == "FAIL"] == ["errors"]
    assert [check["kind"] for check in tests["test_allowed"]["slas"]] == ["validity", "sla"]


def test_own_assertion_fails_and_the_measurement_is_kept(pytester: pytest.Pytester, server: TruthServer) -> None:
    result = run(
        pytester,
        server,
        """
@pytest.mark.sla(ttft_p95="5 s")
def test_own(llmperf):
    assert llmperf.run().value("ttft_p50") < 0
""",
    )
    result.assert_outcomes(failed=1)
    stored = report(pytester)["tests"][0]
    assert (stored["verdict"], stored["outcome"]) == ("PASS", "failed")
    assert stored["slas"][0]["metric"] == "ttft_p95"


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("-k", "one or three"), ["test_one", "test_three"]),
        (("-x",), ["test_one", "test_two"]),
        (("--deselect", "test_it.py::test_two"), ["test_one", "test_three"]),
    ],
)
def test_selection_shrinks_the_campaign(
    pytester: pytest.Pytester, server: TruthServer, options: tuple[str, ...], expected: list[str]
) -> None:
    body = """
def test_one(llmperf):
    llmperf.run()

@pytest.mark.sla(ttft_p50="1 us")
def test_two(llmperf):
    llmperf.run()

def test_three(llmperf):
    llmperf.run()
"""
    run(pytester, server, body, *options)
    tests = report(pytester)["tests"]
    assert [test["nodeid"].rpartition("::")[2] for test in tests if test["trials"]] == expected
    loads = [one for one in server.log() if one.body.get("stream")]
    assert len(loads) == 12 * len(expected)


def test_last_failed_runs_only_what_failed(pytester: pytest.Pytester, server: TruthServer) -> None:
    pytester.makepyfile(
        test_it=TESTS
        + """
@pytest.mark.sla(ttft_p50="1 us")
def test_bad(llmperf):
    llmperf.run()

def test_good(llmperf):
    llmperf.run()
"""
    )
    options = ("--llmperf", "--llmperf-url", server.url)
    pytester.runpytest_subprocess(*options).assert_outcomes(failed=1, passed=1)
    again = pytester.runpytest_subprocess(*options, "--lf")
    again.assert_outcomes(failed=1)


def test_parametrized_plan_fields_reach_the_plan(pytester: pytest.Pytester, server: TruthServer) -> None:
    run(
        pytester,
        server,
        """
@pytest.mark.parametrize("concurrency", [1, 3])
def test_levels(llmperf, concurrency):
    llmperf.run()
""",
    ).assert_outcomes(passed=2)
    plans = {test["nodeid"]: test["plan"]["load"]["concurrency"] for test in report(pytester)["tests"]}
    assert plans == {"test_it.py::test_levels[1]": 1, "test_it.py::test_levels[3]": 3}


def test_replays_are_pooled(pytester: pytest.Pytester, server: TruthServer) -> None:
    body = "\ndef test_it(llmperf):\n    assert len(llmperf.run().trials) == 3\n"
    run(pytester, server, body, "--llmperf-replays=3").assert_outcomes(passed=1)
    stored = report(pytester)["tests"][0]
    assert [trial["replay"] for trial in stored["trials"]] == [0, 1, 2]
    assert stored["metrics"]["ttft_p50"]["n"] == 30
    prompts = [str(one.body["messages"]) for one in server.log() if one.body.get("stream")]
    assert len(prompts) == len(set(prompts)) == 36


def test_dry_run_prints_the_campaign_and_sends_nothing(pytester: pytest.Pytester, server: TruthServer) -> None:
    result = run(pytester, server, "\ndef test_it(llmperf):\n    llmperf.run()\n", "--llmperf-dry-run")
    assert result.ret == 0
    result.stdout.fnmatch_lines(
        ["llmperf: server url (http*): a running server, 1 test(s), *", "*test_it: inline, concurrency 2, 10 requests*"]
    )
    assert server.log() == []
    assert not (pytester.path / "llmperf-report").exists()


def test_report_folder_is_chosen_and_cleared_of_the_last_run(pytester: pytest.Pytester, server: TruthServer) -> None:
    body = "\ndef test_it(llmperf):\n    llmperf.run()\n"
    run(pytester, server, body, "--llmperf-report=out", "--llmperf-replays=2")
    assert len(list((pytester.path / "out" / "records").iterdir())) == 2
    (pytester.path / "out" / "mine.txt").write_text("kept")
    run(pytester, server, body, "--llmperf-report=out")
    assert len(list((pytester.path / "out" / "records").iterdir())) == 1
    assert (pytester.path / "out" / "mine.txt").exists()


def test_verdict_and_figures_reach_junit(pytester: pytest.Pytester, server: TruthServer) -> None:
    run(pytester, server, "\ndef test_it(llmperf):\n    llmperf.run()\n", "--junitxml=junit.xml")
    text = (pytester.path / "junit.xml").read_text()
    assert '<property name="llmperf_verdict" value="PASS"' in text
    assert '<property name="llmperf_ttft_p95" value="0.' in text


def test_api_key_is_sent_and_stored_nowhere(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = "sk-very-secret-0123456789"
    monkeypatch.setenv("MY_KEY", secret)
    with TruthServer(ttft=5, gap=1, api_key=secret) as server:
        body = "\ndef test_it(llmperf, llmperf_server):\n    print(llmperf_server)\n    print(llmperf.run())\n"
        result = run(pytester, server, body, "--llmperf-api-key-env=MY_KEY", "-s")
        assert result.ret == 0, result.stdout.str()
        refused = run(pytester, server, body)
    assert refused.ret == 1
    refused.stdout.fnmatch_lines(["*401*--llmperf-api-key-env*"])
    assert secret not in result.stdout.str() + result.stderr.str() + refused.stdout.str()
    for path in pytester.path.rglob("*"):
        if path.is_file():
            assert secret.encode() not in path.read_bytes(), path


def test_last_failed_plans_only_what_is_left(pytester: pytest.Pytester, server: TruthServer) -> None:
    """Whatever deselects, and in whatever order the tests stand: a deselected test costs no load."""
    pytester.makepyfile(
        test_it=TESTS
        + """
def test_good(llmperf):
    llmperf.run()

@pytest.mark.sla(ttft_p50="1 us")
def test_bad(llmperf):
    llmperf.run()
"""
    )
    options = ("--llmperf", "--llmperf-url", server.url)
    pytester.runpytest_subprocess(*options)
    again = pytester.runpytest_subprocess(*options, "--lf", "test_it.py")
    again.stdout.fnmatch_lines(["llmperf: server url (*): a running server, 1 test(s), *"])
    assert [test["nodeid"] for test in report(pytester)["tests"]] == ["test_it.py::test_bad"]


def test_skip_after_the_measurement_does_not_hide_a_missed_limit(
    pytester: pytest.Pytester, server: TruthServer
) -> None:
    result = run(
        pytester,
        server,
        """
@pytest.mark.sla(ttft_p50="1 us")
def test_it(llmperf):
    llmperf.run()
    pytest.skip("never mind")
""",
    )
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*ttft_p50*"])


def test_missed_limits_are_told_beside_an_assertion_of_the_tests_own(
    pytester: pytest.Pytester, server: TruthServer
) -> None:
    result = run(
        pytester,
        server,
        """
@pytest.mark.sla(ttft_p50="1 us")
def test_it(llmperf):
    llmperf.run()
    assert "mine" == "yours"
""",
        "--junitxml=junit.xml",
    )
    result.stdout.fnmatch_lines(["*mine*", "*Captured llmperf call*", "FAIL: ttft_p50*"])
    assert '<property name="llmperf_verdict" value="FAIL"' in (pytester.path / "junit.xml").read_text()


def test_undecided_test_with_another_failure_is_an_ordinary_failure(
    pytester: pytest.Pytester, server: TruthServer
) -> None:
    """Exit status 10 says that nothing but undecided tests failed."""
    result = run(
        pytester,
        server,
        """
@pytest.fixture
def broken():
    yield
    raise RuntimeError("teardown")

@pytest.mark.sla(ttft_p99="5 s", confidence=0.95)
def test_it(llmperf, broken):
    llmperf.run()
""",
        "--llmperf-undecided=fail",
    )
    result.assert_outcomes(failed=1, errors=1)
    assert result.ret == 1


def test_measurement_is_judged_although_a_later_fixture_fails(pytester: pytest.Pytester, server: TruthServer) -> None:
    run(
        pytester,
        server,
        """
@pytest.fixture
def measured(llmperf):
    return llmperf.run()

@pytest.fixture
def broken(measured):
    raise RuntimeError("setup")

@pytest.mark.sla(ttft_p95="5 s")
def test_it(llmperf, broken):
    pass
""",
    ).assert_outcomes(errors=1)
    stored = report(pytester)["tests"][0]
    assert (stored["verdict"], stored["outcome"], len(stored["slas"])) == ("PASS", "error", 1)


def test_run_in_a_fixture_counts(pytester: pytest.Pytester, server: TruthServer) -> None:
    run(
        pytester,
        server,
        """
@pytest.fixture
def measured(llmperf):
    return llmperf.run()

def test_it(llmperf, measured):
    assert measured.ok == 10
""",
    ).assert_outcomes(passed=1)


def test_stop_at_the_first_failure_leaves_a_partial_report(pytester: pytest.Pytester, server: TruthServer) -> None:
    result = run(
        pytester,
        server,
        """
@pytest.mark.sla(ttft_p50="1 us")
def test_one(llmperf):
    llmperf.run()

def test_two(llmperf):
    llmperf.run()
""",
        "-x",
    )
    result.stdout.fnmatch_lines(["1 test(s) not run: the run ended before their turn"])
    content = report(pytester)
    assert content["partial"] is True
    assert [test["verdict"] for test in content["tests"]] == ["FAIL", "NOT_RUN"]


def test_closer_load_replaces_a_farther_one(pytester: pytest.Pytester, server: TruthServer) -> None:
    run(
        pytester,
        server,
        """
@pytest.mark.parametrize("request_rate", ["50 req/s"])
def test_parameter(llmperf, request_rate):
    llmperf.run()

@pytest.mark.llmperf(request_rate="50 req/s", arrival="constant")
class TestClass:
    def test_class(self, llmperf):
        llmperf.run()

    @pytest.mark.llmperf(concurrency=3)
    def test_function(self, llmperf):
        llmperf.run()
""",
    ).assert_outcomes(passed=3)
    loads = [test["plan"]["load"] for test in report(pytester)["tests"]]
    assert [(load["concurrency"], load["request_rate"]) for load in loads] == [(None, 50.0), (None, 50.0), (3, None)]


def test_ordinary_tests_beside_performance_tests_stay_ordinary(pytester: pytest.Pytester, server: TruthServer) -> None:
    body = "\ndef test_it(llmperf):\n    llmperf.run()\n\ndef test_plain():\n    pass\n"
    run(pytester, server, body).assert_outcomes(passed=2)
    pytester.runpytest_subprocess().assert_outcomes(passed=1, skipped=1)


def test_foreign_report_is_not_overwritten(pytester: pytest.Pytester, server: TruthServer) -> None:
    folder = pytester.mkdir("mine")
    (folder / "report.json").write_text('{"hello": 1}')
    (folder / "logs").mkdir()
    (folder / "logs" / "app.log").write_text("kept")
    result = run(pytester, server, "\ndef test_it(llmperf):\n    llmperf.run()\n", "--llmperf-report=mine")
    assert result.ret == 4
    result.stderr.fnmatch_lines(["ERROR: *report.json is no report of ours: *"])
    assert (folder / "report.json").read_text() == '{"hello": 1}'
    assert (folder / "logs" / "app.log").exists()


def test_secrets_of_the_server_configuration_are_stored_nowhere(pytester: pytest.Pytester, server: TruthServer) -> None:
    pytester.makefile(
        ".toml",
        llmperf="default_server = 'x'\n[servers.x]\nengine = 'embedded'\n"
        "env = { HF_TOKEN = 'hf_supersecret_1' }\nextra_args = ['--api-key', 'sk_supersecret_2']\n",
    )
    pytester.makepyfile(TESTS + "\ndef test_it(llmperf):\n    llmperf.run()\n")
    result = pytester.runpytest_subprocess("--llmperf")
    assert "supersecret" not in result.stdout.str() + result.stderr.str()
    stored = [path for path in (pytester.path / "llmperf-report").rglob("*") if path.is_file()]
    assert any(path.suffix == ".log" for path in stored)
    for path in stored:
        assert b"supersecret" not in path.read_bytes(), path


@pytest.mark.parametrize("option", ["--llmperf-url=http://127.0.0.1:1", "--llmperf-dry-run", "--llmperf-replays=2"])
def test_options_without_llmperf_are_refused(pytester: pytest.Pytester, option: str) -> None:
    """A job that loses --llmperf must not stay green on skipped tests."""
    pytester.makepyfile(TESTS + "\ndef test_it(llmperf):\n    llmperf.run()\n")
    result = pytester.runpytest_subprocess(option)
    assert result.ret == 4
    result.stderr.fnmatch_lines([f"ERROR: {option} needs --llmperf beside it*"])
