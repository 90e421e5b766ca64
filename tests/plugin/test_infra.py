"""Trouble that says nothing about performance is pytest's *error*, wherever it comes from, and never a failure."""

from __future__ import annotations

import re
import socket
import xml.etree.ElementTree as ET
from collections.abc import Iterator

import psutil
import pytest
from comparing import TEST, launches, prepare, report
from truth_engine import CONFTEST

PREFIX = "INFRA (says nothing about performance): "
REFRESH = ("--llmperf-refresh", "--llmperf-reason", "a test")
EMBEDDED = """
import pytest

@pytest.mark.llmperf(server="embedded", workload={"input": 24, "output": 8}, concurrency=1, requests=4)
def test_speed(llmperf):
    llmperf.run()
"""
TWO_SERVERS = """
import pytest

load = dict(workload={"input": 24, "output": 8}, concurrency=1, requests=4)

@pytest.mark.llmperf(server="truth", **load)
def test_a(llmperf):
    llmperf.run()

@pytest.mark.llmperf(server="truth", **load)
def test_a2(llmperf):
    llmperf.run()

@pytest.mark.llmperf(server="other", **load)
def test_b(llmperf):
    llmperf.run()
"""
OTHER = '[tool.llmperf.servers.other]\nengine = "truth"\nmax_num_seqs = 3'
ON_GPUS = """
from dataclasses import replace
truth_engine.ENGINES["truth"] = replace(truth_engine.TRUTH, cpu=False)
"""
"""For a conftest: the engine takes devices, as a worker of xdist must have them."""
STAYS = """
from pytest_llmperf.errors import InfraError
from pytest_llmperf.server.launch import Launch

stop = Launch.stop

def stays(self):
    stop(self)
    raise InfraError(f"processes of {self.spec.name} could not be ended: 1")

Launch.stop = stays
"""
"""For a conftest: every server ends, and it seems that it did not."""


def run(pytester: pytest.Pytester, *options: str) -> pytest.RunResult:
    return pytester.runpytest_subprocess("--llmperf", "-p", "no:benchmark", "-v", "--junit-xml=junit.xml", *options)


def extend_conftest(pytester: pytest.Pytester, more: str) -> None:
    pytester.makeconftest(CONFTEST + more)


def junit(pytester: pytest.Pytester) -> tuple[dict[str, str], dict[str, ET.Element]]:
    """Counts of the JUnit file, and its tests by name."""
    [suite] = ET.parse(pytester.path / "junit.xml").getroot()
    return dict(suite.attrib), {case.attrib["name"]: case for case in suite}


def assert_error(pytester: pytest.Pytester, result: pytest.RunResult, said: str, count: int = 1) -> None:
    """All there is, in the terminal, in JUnit, in the report and in the exit status, are so many errors."""
    text = result.stdout.str()
    assert result.ret == 12, text
    result.assert_outcomes(errors=count)
    assert "Traceback" not in text
    assert re.search(r"::test_\w+ INFRA", text)
    counts, cases = junit(pytester)
    assert (counts["tests"], counts["errors"], counts["failures"]) == (str(count), str(count), "0")
    for case in cases.values():
        assert case.find("failure") is None
        error = case.find("error")
        assert error is not None
        assert f"{PREFIX}" in error.attrib["message"]
        assert re.search(said, error.text or "")
    for test in report(pytester)["tests"]:
        assert (test["verdict"], test["outcome"]) == ("INFRA", "error")


@pytest.fixture
def taken() -> Iterator[int]:
    """A port that somebody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening.getsockname()[1]


def test_a_taken_port_is_an_error_where_limits_alone_are_judged(pytester: pytest.Pytester, taken: int) -> None:
    prepare(pytester)
    result = run(pytester, f"--llmperf-set=port={taken}", "--llmperf-against", "none")
    assert_error(pytester, result, f"port {taken} is taken")


def test_a_taken_port_is_an_error_of_every_test_side_by_side(pytester: pytest.Pytester, taken: int) -> None:
    marker = TEST[TEST.index("@pytest.mark.regression") :]
    prepare(pytester, TEST + marker.replace("test_speed", "test_second"))
    options = (f"--llmperf-set=port={taken}", "--llmperf-ab", "env.TTFT=16")
    assert_error(pytester, run(pytester, *options), f"port {taken} is taken", count=2)
    # What stops at, selects and counts failures takes errors for such, as it does those of set-up.
    stopped = run(pytester, *options, "-x")
    assert stopped.ret == 12
    stopped.assert_outcomes(errors=1)
    result = run(pytester, *options, "--lf", "--maxfail=2")
    result.stdout.fnmatch_lines(["*run-last-failure: rerun previous 2 failures*", "*stopping after 2 failures*"])
    assert_error(pytester, result, f"port {taken} is taken", count=2)


def test_a_taken_port_is_an_error_by_way_of_the_server_fixture(pytester: pytest.Pytester, taken: int) -> None:
    prepare(pytester, TEST.replace("(llmperf)", "(llmperf, llmperf_server)"))
    result = run(pytester, f"--llmperf-set=port={taken}", "--llmperf-ab", "env.TTFT=16")
    assert_error(pytester, result, f"port {taken} is taken")


def test_a_store_that_cannot_be_written_is_an_error(pytester: pytest.Pytester) -> None:
    prepare(pytester)
    (pytester.path / "file").write_text("")
    result = run(pytester, *REFRESH, "--llmperf-baselines", "file/store")
    assert_error(pytester, result, "file/store/.* cannot be written: Not a directory")


def test_a_full_store_is_an_error(pytester: pytest.Pytester) -> None:
    prepare(pytester)
    extend_conftest(
        pytester,
        """
import errno, os, pathlib

def full(source, target):
    if "baselines" in pathlib.Path(target).parts:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    return replace(source, target)

replace, pathlib.Path.replace = pathlib.Path.replace, full
""",
    )
    assert_error(pytester, run(pytester, *REFRESH), "cannot be written: No space left on device")


def test_a_package_index_that_does_not_answer_is_an_error(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytester.makepyfile(test_it=EMBEDDED)
    pytester.makeconftest(
        f"""
import pathlib
from pytest_llmperf.server import environments
environments.cache_dir = lambda: pathlib.Path({str(pytester.path)!r}) / "cache"
"""
    )
    monkeypatch.setenv("UV_DEFAULT_INDEX", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    monkeypatch.setenv("UV_CACHE_DIR", str(pytester.path / "uv"))
    result = run(pytester, "--llmperf-ab", "version=0.0.1")
    assert_error(pytester, result, "the package index does not answer")


def test_an_error_of_a_worker_is_one_of_the_run(pytester: pytest.Pytester) -> None:
    prepare(pytester, more="[tool.llmperf.workers.gw0]\ngpus = [0]")
    extend_conftest(pytester, ON_GPUS)
    (pytester.path / "file").write_text("")
    result = run(pytester, *REFRESH, "--llmperf-baselines", "file/store", "-n1")
    assert result.ret == 12
    result.assert_outcomes(errors=1)
    counts, _ = junit(pytester)
    assert (counts["errors"], counts["failures"]) == ("1", "0")
    result.stdout.fnmatch_lines(["*INFRA*"])


def test_an_error_that_the_test_swallows_is_one_all_the_same(pytester: pytest.Pytester, taken: int) -> None:
    swallow = "    try:\n        llmperf.run()\n    except BaseException:\n        pass\n"
    prepare(pytester, TEST.replace("    llmperf.run()\n", swallow))
    result = run(pytester, f"--llmperf-set=port={taken}", "--llmperf-ab", "env.TTFT=16")
    assert_error(pytester, result, f"port {taken} is taken")


def test_a_failure_beside_an_error_is_a_failure_of_the_run(pytester: pytest.Pytester, taken: int) -> None:
    prepare(pytester, TEST + "\ndef test_other():\n    assert False\n")
    result = run(pytester, f"--llmperf-set=port={taken}", "--llmperf-ab", "env.TTFT=16")
    assert result.ret == 1
    result.assert_outcomes(errors=1, failed=1)


# --- trouble that is of no test


def gone(pytester: pytest.Pytester) -> bool:
    pids = [launch["pid"] for campaign in report(pytester)["campaigns"] for launch in campaign["launches"]]
    assert pids
    return not any(psutil.pid_exists(pid) for pid in pids)


def test_a_server_that_does_not_end_fails_no_test_and_is_said(pytester: pytest.Pytester) -> None:
    prepare(pytester, TWO_SERVERS, more=OTHER)
    extend_conftest(pytester, STAYS)
    result = run(pytester)
    assert result.ret == 12
    result.assert_outcomes(passed=3)
    result.stdout.fnmatch_lines(
        [
            "INFRA: processes of truth could not be ended: 1",
            "INFRA: processes of other could not be ended: 1",
        ]
    )
    assert [test["outcome"] for test in report(pytester)["tests"]] == ["passed"] * 3
    assert report(pytester)["partial"] is False
    assert gone(pytester)


def test_a_server_that_does_not_end_after_a_failure_leaves_the_failure(pytester: pytest.Pytester) -> None:
    prepare(pytester, TWO_SERVERS.replace("llmperf.run()", "assert not llmperf.run()", 1), more=OTHER)
    extend_conftest(pytester, STAYS)
    result = run(pytester, "-x")
    assert result.ret == 1
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["INFRA: processes of truth could not be ended: 1"])
    assert "INTERNALERROR" not in result.stdout.str() + result.stderr.str()
    assert gone(pytester)


def test_a_server_of_a_worker_that_does_not_end_is_said_by_the_controller(pytester: pytest.Pytester) -> None:
    prepare(pytester, TWO_SERVERS, more=f"{OTHER}\n[tool.llmperf.workers.gw0]\ngpus = [0]")
    extend_conftest(pytester, ON_GPUS + STAYS)
    result = run(pytester, "-n1")
    assert result.ret == 12
    result.assert_outcomes(passed=3)
    result.stdout.fnmatch_lines(["INFRA: processes of truth could not be ended: 1"])


def test_what_ends_a_campaign_is_said_by_its_own_tests(pytester: pytest.Pytester) -> None:
    """The other campaign asks for the machine when one test of the first has yet to come."""
    prepare(pytester, TWO_SERVERS, more=OTHER)
    extend_conftest(
        pytester,
        """
import pytest
from pytest_llmperf.campaign.campaign import Campaign
from pytest_llmperf.errors import InfraError

def finish(self):
    raise InfraError("the cable is out")

Campaign.finish = finish

@pytest.hookimpl(trylast=True)
def pytest_collection_finish(session):
    session.items.append(session.items.pop(1))
""",
    )
    result = run(pytester)
    assert result.ret == 12
    result.assert_outcomes(passed=2, errors=1)
    outcomes = {test["nodeid"].rpartition("::")[2]: test["outcome"] for test in report(pytester)["tests"]}
    assert outcomes == {"test_a": "passed", "test_b": "passed", "test_a2": "error"}
    result.stdout.fnmatch_lines([f"{PREFIX}the cable is out"])


# --- a store that cannot be reached


def test_a_store_out_of_reach_ends_the_run_as_infra(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    prepare(pytester)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "none")
    url = "s3://bucket/store"
    result = run(pytester, "--llmperf-baselines", url)
    assert result.ret == 12
    [line] = [line for line in result.stdout.lines if PREFIX in line]
    assert url in line
    assert "Traceback" not in result.stdout.str() + result.stderr.str()
    assert launches(pytester) == 0


def test_a_store_without_a_driver_is_a_usage_error(pytester: pytest.Pytester) -> None:
    prepare(pytester)
    result = run(pytester, "--llmperf-baselines", "nosuch://store")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "nosuch://store" in result.stderr.str()
