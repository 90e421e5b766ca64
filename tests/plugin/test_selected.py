"""A campaign of comparisons is as small as what is selected: only those loads are sent, only those servers started."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from comparing import launches, prepare, report

# Each test asks for a number of output tokens of its own, so the server's log tells whose load it was.
TESTS = """
import pytest

def load(output, server="truth"):
    return pytest.mark.llmperf(
        server=server, workload={"input": 24, "output": output}, concurrency=2, requests=10, warmup=2, replays=1
    )

@load(11)
@pytest.mark.regression
def test_first(llmperf):
    assert not llmperf.run()

@load(12)
@pytest.mark.regression
def test_second(llmperf):
    llmperf.run()

@load(13, "other")
@pytest.mark.regression
def test_third(llmperf):
    llmperf.run()
"""
FIRST, SECOND, THIRD = 11, 12, 13
REQUESTS = 12
BLOCKS = 2
NOISE = ("--llmperf-noise", str(BLOCKS))
"""Launches side by side whose number is known beforehand: one unjudged of each arm, then two for each block."""


@pytest.fixture
def project(pytester: pytest.Pytester) -> pytest.Pytester:
    log = pytester.path / "truth.jsonl"
    other = (
        f'[tool.llmperf.servers.other]\nengine = "truth"\nmax_num_seqs = 3\n'
        f'env = {{ LAUNCHES = "{pytester.path}/launches.txt", TRUTH_LOG = "{log}" }}'
    )
    prepare(pytester, TESTS, more=other, TRUTH_LOG=log)
    return pytester


def run(pytester: pytest.Pytester, *options: str) -> pytest.RunResult:
    (pytester.path / "truth.jsonl").write_text("")
    (pytester.path / "launches.txt").write_text("")
    return pytester.runpytest_subprocess("--llmperf", "-p", "no:benchmark", *options)


def loads(pytester: pytest.Pytester) -> dict[int, int]:
    """Requests of each test's load, by its number of output tokens."""
    lines = (pytester.path / "truth.jsonl").read_text().splitlines()
    asked = Counter(json.loads(line)["body"].get("max_tokens") for line in lines)
    return {tokens: asked[tokens] for tokens in (FIRST, SECOND, THIRD) if asked[tokens]}


@pytest.mark.parametrize(
    ("options", "selected"),
    [
        (("-k", "second"), {SECOND}),
        (("--deselect", "test_it.py::test_first", "--deselect", "test_it.py::test_third"), {SECOND}),
        (("test_it.py::test_third",), {THIRD}),
        (("-k", "not third"), {FIRST, SECOND}),
    ],
)
def test_what_is_deselected_is_not_run(project: pytest.Pytester, options: tuple[str, ...], selected: set[int]) -> None:
    run(project, *NOISE, *options)
    assert loads(project) == dict.fromkeys(selected, REQUESTS * 2 * BLOCKS)
    assert launches(project) == 2 + 2 * BLOCKS
    assert len(report(project)["tests"]) == len(selected)


def test_the_last_failed_alone_are_run(project: pytest.Pytester) -> None:
    run(project, "-k", "not third", "--llmperf-against", "none").assert_outcomes(passed=1, failed=1)
    run(project, "--lf", *NOISE).assert_outcomes(failed=1)
    assert loads(project) == {FIRST: REQUESTS * 2 * BLOCKS}
    assert launches(project) == 2 + 2 * BLOCKS


@pytest.mark.parametrize("option", ["-x", "--maxfail=1"])
def test_a_run_that_stops_early_begins_no_other_campaign(project: pytest.Pytester, option: str) -> None:
    run(project, *NOISE, option).assert_outcomes(failed=1)
    # Every launch of a campaign serves all of its tests: the second was measured beside the first.
    assert loads(project) == {FIRST: REQUESTS * 2 * BLOCKS, SECOND: REQUESTS * 2 * BLOCKS}
    assert launches(project) == 2 + 2 * BLOCKS


def test_where_limits_alone_are_judged_a_run_that_stops_early_sends_one_load(project: pytest.Pytester) -> None:
    run(project, "-x", "--llmperf-against", "none").assert_outcomes(failed=1)
    assert loads(project) == {FIRST: REQUESTS}
    assert launches(project) == 1


def test_noise_that_was_not_learnt_is_no_pass(project: pytest.Pytester) -> None:
    result = run(project, *NOISE, "--llmperf-budget", "1 s", "-k", "second")
    assert result.ret != 0
    assert "passed" not in result.parseoutcomes()
    result.stdout.fnmatch_lines(["*the noise of this runner is not known: fewer than two blocks could be measured*"])
    assert report(project)["tests"][0]["verdict"] != "PASS"


# --- where launches cannot be shared as asked


@pytest.mark.parametrize("how", ["option", "server"])
def test_noise_of_a_running_server_is_refused(project: pytest.Pytester, how: str) -> None:
    url = "http://127.0.0.1:9"
    if how == "option":
        result = run(project, *NOISE, "--llmperf-url", url)
    else:
        prepare(project, TESTS, more=f'[tool.llmperf.servers.other]\nengine = "openai"\nurl = "{url}"')
        result = run(project, *NOISE)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    [line] = [line for line in result.stderr.lines if line.startswith("ERROR: ")]
    assert "--llmperf-noise learns how fresh launches vary" in line
    assert "is a running one (url): a reconnect is no launch" in line
    assert launches(project) == 0


WORKERS = "[tool.llmperf.workers]\ngw0.gpus = [0]\ngw1.gpus = [1]"


@pytest.mark.parametrize(
    "options",
    [("--llmperf-ab", "env.TTFT=9"), ("--llmperf-refresh", "--llmperf-reason", "a test"), NOISE],
    ids=lambda options: options[0],
)
def test_workers_that_would_each_run_all_comparisons_are_refused(
    pytester: pytest.Pytester, options: tuple[str, ...]
) -> None:
    prepare(pytester, more=WORKERS)
    result = pytester.runpytest_subprocess("--llmperf", "-n2", "-p", "no:benchmark", *options)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    [line] = [line for line in result.stderr.lines if line.startswith("ERROR: ")]
    assert line == f"ERROR: {options[0]} under pytest-xdist would run every comparison in each worker: run with -n0"


@pytest.mark.parametrize("options", [(), NOISE], ids=["loads", "launches"])
def test_workers_without_devices_of_their_own_are_refused(pytester: pytest.Pytester, options: tuple[str, ...]) -> None:
    prepare(pytester)
    result = pytester.runpytest_subprocess("--llmperf", "-n2", "-p", "no:benchmark", *options)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "needs devices of its own for every worker (gw0, gw1 own none)" in result.stderr.str()


def test_a_candidate_on_a_device_of_another_worker_is_refused(pytester: pytest.Pytester) -> None:
    other = 'engine = "openai"\nstart = ["true"]\nready_url = "http://127.0.0.1:1"\ngpus = [1]'
    prepare(pytester, more=f"{WORKERS}\n[tool.llmperf.servers.other]\n{other}")
    result = pytester.runpytest_subprocess("--llmperf", "-n1", "--llmperf-ab", "server=other", "-p", "no:benchmark")
    assert result.ret == 1
    assert "is not a GPU of this worker's own: run with -n0" in result.stdout.str()
    assert launches(pytester) == 0
