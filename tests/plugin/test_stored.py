"""The stored baseline, whole: refresh, compare, and what is said where there is none or it cannot decide."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from comparing import TEST, compare, launches, prepare, report, the_test

WIDE = TEST.replace("'10 %'", "'40 %'")
"""Loads of a second on a busy machine differ by more than a tenth from one session to the next."""
REFRESH = ("--llmperf-refresh", "--llmperf-reason", "a test")


def set_env(pytester: pytest.Pytester, **env: object) -> None:
    """The same project with another speed of its server: what an upgrade or a bad day does."""
    prepare(pytester, **env)


def entry(pytester: pytest.Pytester) -> dict[str, Any]:
    [path] = [path for path in (pytester.path / "baselines").rglob("*.json") if "_state" not in path.parts]
    [found] = json.loads(path.read_text())["entries"].values()
    assert isinstance(found, dict)
    return found


def refresh(pytester: pytest.Pytester, sessions: int = 3) -> None:
    for _ in range(sessions):
        assert compare(pytester, *REFRESH).ret == 0


def test_a_refresh_stores_three_launches_with_who_and_why(pytester: pytest.Pytester) -> None:
    prepare(pytester)
    result = compare(pytester, *REFRESH)
    assert result.ret == 0
    [session] = entry(pytester)["sessions"]
    assert session["reason"] == "a test"
    assert len(session["launches"]) == launches(pytester) == 3
    values = [launch["metrics"]["ttft_p50"] for launch in session["launches"]]
    assert values == pytest.approx([0.008] * 3, rel=0.4)
    result.stdout.fnmatch_lines(["*baseline of *test_speed refreshed: 3 launches, 1 session(s) stored*"])
    [samples] = (pytester.path / "baselines").rglob("*.samples.jsonl.gz")
    assert samples.stat().st_size > 0


def test_a_second_refresh_shows_what_a_gate_judges_and_where_the_rest_is(pytester: pytest.Pytester) -> None:
    prepare(pytester)
    refresh(pytester, 1)
    lines = [line.strip() for line in compare(pytester, *REFRESH).stdout.lines]
    said = lines[next(number for number, line in enumerate(lines) if "2 session(s) stored" in line) + 1 :]
    shown = [line.partition(":")[0] for line in said if " → " in line]
    usual = {"ttft_p50", "tpot_mean", "output_throughput", "peak_memory", "ttft_p95", "cpu_seconds_per_mtok"}
    assert {"ttft_p50", "e2e_p50", "time_to_ready"} <= set(shown) <= usual | {"e2e_p50", "time_to_ready"}
    assert len(set(shown)) == len(shown)
    assert "all: pytest-llmperf baseline diff test_it.py::test_speed" in said
    command = Path(sys.executable).with_name("pytest-llmperf")  # which need not be on the path
    told = pytester.run(command, "baseline", "diff", "test_it.py::test_speed", "--baselines", "baselines")
    assert told.ret == 0
    told.stdout.fnmatch_lines(["metric *A *B *change*", "ttft_p50 *3 / 3", "ttft_p99 *3 / 3"])


def test_an_unchanged_server_passes_in_two_launches(pytester: pytest.Pytester) -> None:
    prepare(pytester, WIDE)
    refresh(pytester)
    before = launches(pytester)
    result = compare(pytester)
    found = the_test(pytester)
    assert found["verdict"] == "PASS", result.stdout.str()
    assert launches(pytester) - before == 2
    assert "the same version" in found["judgement"]["against"]


def test_a_gross_regression_fails_in_three(pytester: pytest.Pytester) -> None:
    prepare(pytester)
    refresh(pytester)
    before = launches(pytester)
    # The speed comes by the environment of the run, which is no input of the server: as a bad driver would.
    pytester.makefile(".env", "")
    import os

    os.environ["TTFT"] = "20"
    try:
        result = compare(pytester)
    finally:
        del os.environ["TTFT"]
    found = the_test(pytester)
    assert (result.ret, found["verdict"]) == (1, "FAIL")
    assert [row["metric"] for row in found["comparisons"] if row["verdict"] == "FAIL"] == ["ttft_p50"]
    assert launches(pytester) - before == 3


def test_without_a_baseline_the_test_says_so_and_is_no_pass(pytester: pytest.Pytester) -> None:
    prepare(pytester)
    result = compare(pytester)
    assert (result.ret, the_test(pytester)["verdict"]) == (0, "NO_BASELINE")
    result.stdout.fnmatch_lines(["*NO_BASELINE*", "*--llmperf-refresh --llmperf-reason*"])
    assert compare(pytester, "--llmperf-undecided", "fail").ret == 10
    assert launches(pytester) == 2, "one launch each, for the limits"


def test_against_none_compares_nothing(pytester: pytest.Pytester) -> None:
    prepare(pytester)
    compare(pytester, "--llmperf-against", "none")
    assert the_test(pytester)["verdict"] == "PASS"
    assert the_test(pytester)["judgement"] is None


def test_another_input_is_confounded_and_allowed_only_by_name(pytester: pytest.Pytester) -> None:
    prepare(pytester)
    refresh(pytester, 1)
    result = compare(pytester, "--llmperf-set", "max_num_seqs=7")
    found = the_test(pytester)
    assert (result.ret, found["verdict"]) == (1, "CONFOUNDED")
    assert "max_num_seqs" in found["judgement"]["reason"]
    compare(pytester, "--llmperf-set", "max_num_seqs=7", "--llmperf-allow", "max_num_seqs")
    assert the_test(pytester)["verdict"] != "CONFOUNDED"


def test_another_load_is_confounded(pytester: pytest.Pytester) -> None:
    prepare(pytester)
    refresh(pytester, 1)
    prepare(pytester, TEST.replace("requests=30", "requests=40"))
    compare(pytester)
    found = the_test(pytester)
    assert found["verdict"] == "CONFOUNDED"
    assert "workload" in found["judgement"]["reason"]


def test_a_truncated_baseline_is_an_error_that_says_what_to_do(pytester: pytest.Pytester) -> None:
    prepare(pytester)
    refresh(pytester, 1)
    [path] = [path for path in (pytester.path / "baselines").rglob("*test_speed*.json") if "_state" not in path.parts]
    path.write_text(path.read_text()[:100])
    result = compare(pytester)
    assert result.ret == 1
    assert the_test(pytester)["verdict"] not in ("PASS", "NO_BASELINE")
    result.stdout.fnmatch_lines([f"*{path.name}*"])


def test_launches_that_fail_are_no_baseline(pytester: pytest.Pytester) -> None:
    prepare(pytester, BREAKS=1)
    assert compare(pytester, *REFRESH).ret == 1
    assert not list((pytester.path / "baselines").rglob("*test_speed*.json"))


def test_a_refresh_needs_a_reason(pytester: pytest.Pytester) -> None:
    prepare(pytester)
    result = compare(pytester, "--llmperf-refresh")
    assert result.ret == 4
    assert "--llmperf-reason" in result.stderr.str()
    assert launches(pytester) == 0


def test_an_upgrade_is_screened_and_then_decided_side_by_side(pytester: pytest.Pytester) -> None:
    """Baseline of version 1.0 stored, candidate 2.0 half as fast to the first token by its own doing."""
    for version in ("1.0", "2.0"):
        program = pytester.path / "engines" / version / "python"
        program.parent.mkdir(parents=True)
        program.symlink_to(Path(__import__("sys").executable))
    more = f'executable = "{pytester.path}/engines/{{version}}/python"\n'
    prepare(pytester, more=f'{more}version = "1.0"', SLOW_VERSION="2.0")
    refresh(pytester, 1)
    prepare(pytester, more=f'{more}version = "2.0"', SLOW_VERSION="2.0")
    result = compare(pytester, "--llmperf-against", "version=1.0")
    found = the_test(pytester)
    assert found["verdict"] == "FAIL", result.stdout.str()
    assert report(pytester)["campaigns"][0]["mode"] == "screened"
    assert "version" in found["judgement"]["variable"]


def test_an_accepted_trade_is_shown_and_holds_until_its_day(pytester: pytest.Pytester) -> None:
    trade = (
        '[[tool.llmperf.accept]]\ntest = "*test_speed"\nmetric = "ttft_p50"\nup_to = "300 %"\nreason = "more room"\n'
    )
    signed = 'approved_by = "a person"\n'
    prepare(pytester, more=f"{trade}{signed}until = 2999-01-01")
    compare(pytester, "--llmperf-ab", "env.TTFT=16")
    found = the_test(pytester)
    assert found["verdict"] == "PASS"
    assert any("approved by a person: more room" in note for note in found["judgement"]["notes"])
    prepare(pytester, more=f"{trade}{signed}until = 2001-01-01")
    compare(pytester, "--llmperf-ab", "env.TTFT=16.5")
    found = the_test(pytester)
    assert found["verdict"] == "FAIL"
    assert any("expired" in note for note in found["judgement"]["notes"])


def test_three_undecided_runs_in_a_row_are_said_to_be_blind(pytester: pytest.Pytester) -> None:
    prepare(pytester)
    for _ in range(3):
        result = compare(pytester)
    result.stdout.fnmatch_lines(["*this gate is blind: 3 undecided runs in a row*"])


def test_an_entry_in_another_engine_s_folder_only_is_no_pass(pytester: pytest.Pytester) -> None:
    """Without a marker the store decides whether a comparison is asked for: one elsewhere is missing here."""
    plain = TEST.replace(
        "@pytest.mark.regression(metrics=['ttft_p50', 'tpot_mean'], ttft_p50='10 %', tpot_mean='10 %')\n", ""
    )
    prepare(pytester, plain)
    refresh(pytester, 1)
    [folder] = (pytester.path / "baselines" / "truth").iterdir()
    folder.rename(folder.parent.parent / "vllm")
    result = compare(pytester)
    assert the_test(pytester)["verdict"] == "NO_BASELINE", result.stdout.str()


def test_sessions_of_another_load_are_left_out_and_counted(pytester: pytest.Pytester) -> None:
    prepare(pytester, WIDE)
    refresh(pytester, 1)
    prepare(pytester, WIDE.replace("requests=30", "requests=40"))
    refresh(pytester, 2)
    compare(pytester)
    found = the_test(pytester)
    assert found["verdict"] == "PASS"
    assert any("1 stored session(s) of another load are left out" in note for note in found["judgement"]["notes"])
    assert found["comparisons"][0]["baseline_launches"] == 6


def test_launches_with_errors_are_no_baseline(pytester: pytest.Pytester) -> None:
    prepare(pytester, FAILS=300)
    assert compare(pytester, *REFRESH).ret == 1
    assert not list((pytester.path / "baselines").rglob("*test_speed*.json"))
