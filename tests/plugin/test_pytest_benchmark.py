"""Beside the real pytest-benchmark: results are in its tables, files and comparisons, and in none of its traps.

Most runs are handed stored results in place of measuring them, which is what the rows are made from in any case.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import compared
import pytest
from test_run import TESTS
from truth_server import TruthServer

from pytest_llmperf.options import read_options
from pytest_llmperf.reports.jsonfile import write_report
from pytest_llmperf.session import LlmperfSession

PASSED, FAILED = compared.accepted(), compared.regressed()
"""Made here, so that all of numpy that it takes is loaded before any run in this process puts sys.modules back."""

HANDED = """
from pathlib import Path
from pytest_llmperf.benchmark_rows import BenchmarkRows
from pytest_llmperf.reports.jsonfile import read_report

def pytest_configure(config):
    if not hasattr(config, "workerinput"):
        report = read_report(Path({report!r}))
        config.pluginmanager.register(BenchmarkRows(config, lambda: report.tests, {file}), "rows")
"""


def hand(pytester: pytest.Pytester, *ttfts_ms: int, file: Path | None = None, failed: bool = False) -> None:
    """Make the next run one that has measured these TTFTs, one a launch."""
    test = compared.with_launches(FAILED if failed else PASSED, ttfts_ms)
    path = pytester.path / "handed" / "report.json"
    write_report(path, compared.run(test))
    pytester.makeconftest(HANDED.format(report=str(path), file=f"Path({str(file)!r})" if file else None))
    if not (pytester.path / "test_plain.py").exists():
        pytester.makepyfile(test_plain="def test_plain():\n    pass\n")


def measured(content: dict[str, Any]) -> dict[str, list[float]]:
    return {row["fullname"]: row["stats"]["data"] for row in content["benchmarks"]}


def load(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(path.read_text())
    return content


TTFT = "perf/test_chat.py::test_chat[16]/ttft_p50"


def test_results_are_in_the_table_and_in_the_json_of_pytest_benchmark(pytester: pytest.Pytester) -> None:
    hand(pytester, 100, 110, 130)
    result = pytester.runpytest("--benchmark-json=out.json")
    assert result.ret == 0
    result.stdout.fnmatch_lines(["*benchmark 'ttft_p50': 1 tests*"])
    assert measured(load(pytester.path / "out.json"))[TTFT] == pytest.approx([0.1, 0.11, 0.13])


def test_a_saved_run_is_compared_with_and_a_regression_fails(pytester: pytest.Pytester) -> None:
    hand(pytester, 100, 100)
    assert pytester.runpytest("--benchmark-save=first").ret == 0
    hand(pytester, 101, 101)
    result = pytester.runpytest("--benchmark-compare", "--benchmark-compare-fail=mean:5%")
    assert result.ret == 0
    result.stdout.fnmatch_lines(["*test_chat[[]16[]]/ttft_p50 (NOW)*"])
    hand(pytester, 120, 120)
    result = pytester.runpytest_subprocess("--benchmark-compare", "--benchmark-compare-fail=mean:5%")
    assert result.ret != 0
    (regressed,) = [line for line in (result.outlines + result.errlines) if "ttft_p50" in line and "has failed" in line]
    assert "20.0" in regressed or "19.9" in regressed


def test_the_compare_command_reads_what_was_saved_and_what_was_written_without_the_plugin(
    pytester: pytest.Pytester,
) -> None:
    """Given as files: the folder of saved runs is named after the Python version, which hides them after a change."""
    hand(pytester, 100, 110, file=pytester.path / "ours.json")
    assert pytester.runpytest("--benchmark-json=theirs.json").ret == 0
    hand(pytester, 120, 121, file=pytester.path / "later.json")
    assert pytester.runpytest("-p", "no:benchmark").ret == 0
    command = [str(Path(sys.executable).with_name("pytest-benchmark")), "compare", "theirs.json", "ours.json"]
    done = subprocess.run(
        [*command, "later.json", "--csv=out.csv", "--group-by=group"], cwd=pytester.path, capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "benchmark 'ttft_p50': 3 tests" in done.stdout
    assert (pytester.path / "out.csv").read_text().count("ttft_p50") >= 3


def test_the_file_without_the_plugin_is_that_of_the_plugin(pytester: pytest.Pytester) -> None:
    hand(pytester, 100, 110, 130, file=pytester.path / "ours.json")
    assert pytester.runpytest("--benchmark-json=theirs.json").ret == 0
    ours, theirs = load(pytester.path / "ours.json"), load(pytester.path / "theirs.json")
    assert ours.keys() == theirs.keys()
    assert ours["machine_info"].keys() == theirs["machine_info"].keys()
    assert ours["commit_info"].keys() == theirs["commit_info"].keys()
    assert len(ours["benchmarks"]) == len(theirs["benchmarks"]) > 3
    for mine, other in zip(ours["benchmarks"], theirs["benchmarks"], strict=True):
        assert mine.keys() == other.keys()
        assert mine["stats"].keys() == other["stats"].keys()
        assert mine["stats"]["data"] == other["stats"]["data"]
        assert {k: mine[k] for k in ("group", "name", "fullname", "param", "params", "extra_info")} == {
            k: other[k] for k in ("group", "name", "fullname", "param", "params", "extra_info")
        }


def test_rows_of_a_failed_test_are_shown_and_never_stored(pytester: pytest.Pytester) -> None:
    hand(pytester, 100, 110, failed=True)
    result = pytester.runpytest("--benchmark-json=out.json")
    result.stdout.fnmatch_lines(["*test_rag_long[[]16[]]/ttft_p50*"])
    assert load(pytester.path / "out.json")["benchmarks"] == []


@pytest.mark.parametrize("switch", ["--benchmark-disable", "--benchmark-skip"])
def test_switched_off_it_gets_no_rows_and_our_own_file_is_still_written(pytester: pytest.Pytester, switch: str) -> None:
    hand(pytester, 100, 110, file=pytester.path / "ours.json")
    result = pytester.runpytest(switch)
    assert result.ret == 0
    result.stdout.no_fnmatch_line("*ttft_p50*")
    assert TTFT in measured(load(pytester.path / "ours.json"))


def test_a_plugin_that_blocks_pytest_benchmark_leaves_our_own_file(pytester: pytest.Pytester) -> None:
    hand(pytester, 100, 110, file=pytester.path / "ours.json")
    pytester.makepyfile(
        blocking="""
        import pytest

        @pytest.hookimpl(tryfirst=True)
        def pytest_configure(config):
            config.pluginmanager.set_blocked("benchmark")
        """
    )
    pytester.syspathinsert()
    result = pytester.runpytest("-p", "blocking")
    assert result.ret == 0
    result.stdout.fnmatch_lines(["llmperf: rows in the form of pytest-benchmark: *ours.json"])
    assert TTFT in measured(load(pytester.path / "ours.json"))


def test_a_version_that_takes_no_rows_is_said_and_breaks_nothing(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    hand(pytester, 100, 110, file=pytester.path / "ours.json")
    monkeypatch.setattr("pytest_benchmark.stats.Metadata", lambda fixture: None)
    result = pytester.runpytest()
    assert result.ret == 0
    result.stdout.fnmatch_lines(["llmperf: pytest-benchmark of this version takes no rows*"])
    assert TTFT in measured(load(pytester.path / "ours.json"))


def test_under_xdist_the_controller_stores_the_rows_once(pytester: pytest.Pytester) -> None:
    """A worker that stored its own would overwrite those of the others."""
    hand(pytester, 100, 110)
    result = pytester.runpytest_subprocess("-n1", "--benchmark-json=out.json")
    assert result.ret == 0
    assert measured(load(pytester.path / "out.json"))[TTFT] == pytest.approx([0.1, 0.11])
    result = pytester.runpytest_subprocess("-n1", "--benchmark-disable", "--benchmark-json=off.json")
    assert result.ret == 0
    assert not (pytester.path / "off.json").exists()


def test_the_controller_takes_the_reports_of_this_runs_workers_only(pytester: pytest.Pytester) -> None:
    pytester.makefile(".toml", llmperf="[workers]\ngw0.gpus = [0]\ngw1.gpus = [1]\ngw2.gpus = [2]\n")
    config = pytester.parseconfig("--llmperf", "-n2")
    session = LlmperfSession(config, read_options(config))
    folder = pytester.path / "llmperf-report"
    for worker, year, test in (("gw0", 9999, PASSED), ("gw1", 2020, FAILED)):
        write_report(folder / worker / "report.json", compared.run(test, created=f"{year}-01-01T00:00:00+00:00"))
    assert [test.nodeid for test in session.reports()] == [PASSED.nodeid]


def test_a_measured_run_ends_in_both_forms(pytester: pytest.Pytester) -> None:
    body = "@pytest.mark.parametrize('concurrency', [1, 2])\ndef test_it(llmperf, concurrency):\n    llmperf.run()\n"
    pytester.makepyfile(test_it=TESTS + body + "def test_broken(llmperf):\n    llmperf.run()\n    assert False\n")
    with TruthServer(ttft=10, gap=2) as server:
        result = pytester.runpytest_subprocess(
            "--llmperf",
            "--llmperf-url",
            server.url,
            "--benchmark-json=theirs.json",
            "--llmperf-benchmark-json=ours.json",
        )
    result.assert_outcomes(passed=2, failed=1)
    theirs, ours = measured(load(pytester.path / "theirs.json")), measured(load(pytester.path / "ours.json"))
    assert theirs == ours
    assert {name for name in ours if name.endswith("ttft_p50")} == {
        "test_it.py::test_it[1]/ttft_p50", "test_it.py::test_it[2]/ttft_p50"
    }  # fmt: skip
    assert all(len(values) == 1 for values in ours.values())
    stored = load(pytester.path / "llmperf-report" / "report.json")["tests"][0]["metrics"]["ttft_p50"]["value"]
    assert ours["test_it.py::test_it[1]/ttft_p50"] == [stored]
    assert (pytester.path / "llmperf-report" / "report.md").read_text().startswith("<!-- pytest-llmperf report -->\n❌")


def test_benchmark_only_would_skip_everything_and_is_refused(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=TESTS + "def test_it(llmperf):\n    llmperf.run()\n")
    result = pytester.runpytest("--llmperf", "--llmperf-url", "http://127.0.0.1:1", "--benchmark-only")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*--benchmark-only skips every test without the fixture 'benchmark'*"])


def test_the_fixture_and_the_marker_of_pytest_benchmark_stay_its_own(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.benchmark(group="own", min_rounds=2)
        def test_own(benchmark):
            benchmark.pedantic(lambda: None, rounds=2)
        """
    )
    result = pytester.runpytest("--llmperf")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["*benchmark 'own': 1 tests*"])


def test_a_file_that_cannot_be_one_is_refused_before_anything_runs(pytester: pytest.Pytester) -> None:
    result = pytester.runpytest("--llmperf", "--llmperf-benchmark-json", ".")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*--llmperf-benchmark-json: '.' is not the name of a file*"])
    pytester.makefile(".toml", llmperf="benchmark_json = ''\n")
    result = pytester.runpytest("--llmperf")
    result.stderr.fnmatch_lines(["*llmperf.toml: benchmark_json: '' is not the name of a file*"])
