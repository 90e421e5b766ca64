"""A test that is run again gets the same measurement, or the same error: no PASS for want of anything to do."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest
from comparing import TEST, launches, prepare, report, the_test
from truth_engine import CONFTEST

TWICE = """
import pytest

seen = set()

@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item, nextitem):
    result = yield
    if item.nodeid not in seen:
        seen.add(item.nodeid)
        item.ihook.pytest_runtest_protocol(item=item, nextitem=nextitem)
    return result
"""
"""For a conftest: every test runs again, as by a plugin that reruns what failed."""
LIMITED = """
import pytest

@pytest.mark.llmperf(workload={'input': 24, 'output': 8}, concurrency=2, requests=10)
@pytest.mark.sla(ttft_p50='LIMIT')
def test_speed(llmperf):
    llmperf.run()
"""
FLAKY_FIXTURE = """
times = []

@pytest.fixture
def flaky():
    times.append(1)
    assert len(times) > 1
"""


def run(pytester: pytest.Pytester, *options: str, more: str = TWICE) -> pytest.RunResult:
    pytester.makeconftest(CONFTEST + more)
    return pytester.runpytest_subprocess(
        "--llmperf", "-p", "no:cacheprovider", "-p", "no:benchmark", "--junit-xml=junit.xml", *options
    )


def verdicts(pytester: pytest.Pytester) -> list[str]:
    """Of every run of every test, as JUnit has them; each is given once."""
    [suite] = ET.parse(pytester.path / "junit.xml").getroot()
    found = []
    for case in suite:
        [verdict] = [each for each in case.iter("property") if each.attrib["name"] == "llmperf_verdict"]
        found.append(verdict.attrib["value"])
    return found


@pytest.mark.parametrize(
    ("limit", "verdict", "outcomes"), [("1 ms", "FAIL", {"failed": 2}), ("10 s", "PASS", {"passed": 2})]
)
def test_limits_are_judged_by_one_measurement(
    pytester: pytest.Pytester, limit: str, verdict: str, outcomes: dict[str, int]
) -> None:
    prepare(pytester, LIMITED.replace("LIMIT", limit))
    result = run(pytester)
    result.assert_outcomes(**outcomes)
    assert verdicts(pytester) == [verdict] * 2
    assert the_test(pytester)["verdict"] == verdict
    assert sum(trial["attempted"] for trial in the_test(pytester)["trials"]) == 10
    assert launches(pytester) == 1


def test_a_measurement_that_broke_off_stays_broken(pytester: pytest.Pytester) -> None:
    """By anything at all, here as by a plugin that limits the time of a test."""
    prepare(pytester, LIMITED.replace("LIMIT", "10 s"))
    breaks = """
from pytest_llmperf.campaign.rig import Rig

def replay(self, *given):
    raise pytest.fail.Exception("Timeout (>1.0s)")

Rig.replay = replay
"""
    result = run(pytester, more=TWICE + breaks)
    assert result.ret == 1
    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(["the measurement broke off: Failed: Timeout (>1.0s)"])
    assert the_test(pytester)["verdict"] == "NOT_RUN"


def test_a_fixture_that_fails_once_costs_no_measurement(pytester: pytest.Pytester) -> None:
    prepare(pytester, LIMITED.replace("LIMIT", "10 s").replace("(llmperf)", "(llmperf, flaky)") + FLAKY_FIXTURE)
    result = run(pytester)
    result.assert_outcomes(errors=1, passed=1)
    assert the_test(pytester)["verdict"] == "PASS"
    assert sum(trial["ok"] for trial in the_test(pytester)["trials"]) == 10


def test_a_test_that_the_campaign_went_on_without_is_no_pass(pytester: pytest.Pytester) -> None:
    """It is run again when others have had their turn."""
    second = LIMITED[LIMITED.index("@") :].replace("test_speed(llmperf)", "test_second(llmperf)")
    first = LIMITED.replace("(llmperf)", "(llmperf, flaky)")
    prepare(pytester, (first + second + FLAKY_FIXTURE).replace("LIMIT", "10 s"))
    later = """
import pytest

@pytest.hookimpl(wrapper=True)
def pytest_runtestloop(session):
    result = yield
    item = session.items[0]
    item.ihook.pytest_runtest_protocol(item=item, nextitem=None)
    return result
"""
    result = run(pytester, more=later)
    result.assert_outcomes(errors=1, passed=1, failed=1)
    result.stdout.fnmatch_lines(["the campaign went on without this test*"])
    assert {test["nodeid"]: test["verdict"] for test in report(pytester)["tests"]} == {
        "test_it.py::test_speed": "NOT_RUN", "test_it.py::test_second": "PASS"
    }  # fmt: skip


def test_launches_side_by_side_are_not_repeated(pytester: pytest.Pytester) -> None:
    prepare(pytester)
    result = run(pytester, "--llmperf-ab", "env.TTFT=24")
    result.assert_outcomes(failed=2)
    assert verdicts(pytester) == ["FAIL"] * 2
    assert launches(pytester) == 2 + 2 * the_test(pytester)["judgement"]["blocks"]


def test_a_candidate_that_does_not_start_fails_every_time(pytester: pytest.Pytester) -> None:
    prepare(pytester)
    result = run(pytester, "--llmperf-ab", "env.BREAKS=1")
    result.assert_outcomes(failed=2)
    assert the_test(pytester)["verdict"] == "FAIL"
    assert launches(pytester) == 1 + 2, "the candidate is tried twice, not four times"


def test_a_stored_comparison_is_the_same_again(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """Undecided the first time, by one session of a baseline; then by one that cannot be read."""
    prepare(pytester)
    run(pytester, "--llmperf-refresh", "--llmperf-reason", "a test", more="").assert_outcomes(passed=1)
    before = launches(pytester)
    monkeypatch.setenv("TTFT", "9.5")
    result = run(pytester, "--llmperf-undecided", "fail")
    assert result.ret == 10
    result.assert_outcomes(failed=2)
    assert verdicts(pytester) == ["INCONCLUSIVE"] * 2
    assert launches(pytester) - before == 3
    [path] = [path for path in (pytester.path / "baselines").rglob("*test_speed*.json") if "_state" not in path.parts]
    path.write_text(path.read_text()[:100])
    result = run(pytester)
    assert result.ret == 1
    result.assert_outcomes(failed=2)
    assert the_test(pytester)["verdict"] == "NOT_RUN"


def test_a_server_that_does_not_start_is_one_error_every_time(pytester: pytest.Pytester) -> None:
    prepare(pytester, TEST, BREAKS=1)
    result = run(pytester, "--llmperf-against", "none")
    result.assert_outcomes(errors=2)
    assert launches(pytester) == 1
