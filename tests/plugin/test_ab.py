"""--llmperf-ab, whole: launches side by side of an engine whose speed is known."""

from __future__ import annotations

import gzip
import json

import pytest
from comparing import TEST, compare, launches, prepare, report, the_test


def test_a_slower_candidate_fails_with_its_metric_named(pytester: pytest.Pytester) -> None:
    prepare(pytester)
    result = compare(pytester, "--llmperf-ab", "env.TTFT=16")
    assert result.ret == 1
    found = the_test(pytester)
    assert (found["verdict"], found["outcome"]) == ("FAIL", "failed")
    rows = {row["metric"]: row for row in found["comparisons"]}
    assert rows["ttft_p50"]["verdict"] == "FAIL"
    assert rows["tpot_mean"]["verdict"] != "FAIL"
    # 8 ms and 16 ms are programmed, plus what the client's request takes to arrive.
    assert rows["ttft_p50"]["change"] == pytest.approx(1.0, abs=0.25)
    assert found["judgement"]["variable"] == "env.TTFT: not set → 16"
    blocks = found["judgement"]["blocks"]
    assert launches(pytester) == 2 + 2 * blocks, "one unjudged launch of each arm, then blocks of two"
    order = [launch["arm"] for launch in report(pytester)["campaigns"][0]["launches"] if not launch["priming"]]
    assert order == (["baseline", "candidate", "candidate", "baseline"] * 4)[: 2 * blocks]
    assert "FAIL" in result.stdout.str()


def test_a_change_that_does_nothing_passes(pytester: pytest.Pytester) -> None:
    prepare(pytester)
    result = compare(pytester, "--llmperf-ab", "env.NOTHING=1")
    assert the_test(pytester)["verdict"] == "PASS"
    assert result.ret == 0
    result.stdout.fnmatch_lines(["*2 comparisons (2 passed)*"])


def test_tests_of_one_campaign_share_their_launches(pytester: pytest.Pytester) -> None:
    marker, own = TEST[TEST.index("@pytest.mark.regression") :], "test_speed"
    prepare(pytester, TEST + marker.replace(own, "test_second") + marker.replace(own, "test_third"))
    compare(pytester, "--llmperf-ab", "env.TTFT=20")
    stored = report(pytester)
    assert [test["verdict"] for test in stored["tests"]] == ["FAIL"] * 3
    blocks = max(test["judgement"]["blocks"] for test in stored["tests"])
    assert launches(pytester) == len(stored["campaigns"][0]["launches"]) == 2 + 2 * blocks


def test_both_arms_get_the_same_texts(pytester: pytest.Pytester) -> None:
    prepare(pytester, TRUTH_LOG=pytester.path / "truth.jsonl")
    compare(pytester, "--llmperf-ab", "env.NOTHING=1")
    served = [json.loads(line) for line in (pytester.path / "truth.jsonl").read_text().splitlines()]
    texts = [entry["body"]["messages"][0]["content"] for entry in served if entry["body"].get("stream")]
    assert len(texts) > 200
    assert set(map(texts.count, texts)) == {2}, "every text goes to both arms, and never twice to one"


def test_a_second_variable_is_confounded_before_any_load(pytester: pytest.Pytester) -> None:
    more = '[tool.llmperf.servers.other]\nengine = "truth"\nmax_num_seqs = 3\nenv = { TTFT = "9" }'
    prepare(pytester, more=more)
    result = compare(pytester, "--llmperf-ab", "server=other")
    found = the_test(pytester)
    assert (result.ret, found["verdict"]) == (1, "CONFOUNDED")
    names = {each["name"] for each in found["judgement"]["differences"] if each["role"] == "confounding"}
    assert {"max_num_seqs", "env.TTFT"} <= names
    assert found["trials"] == []
    assert "no measured requests" not in result.stdout.str(), "no word of what nobody tried to measure"
    result.stdout.fnmatch_lines(["*max_num_seqs*"])


def test_an_undecided_sequence_goes_on_in_the_next_run(pytester: pytest.Pytester) -> None:
    prepare(pytester, SPREAD=0.15)
    compare(pytester, "--llmperf-ab", "env.TTFT=9", "--llmperf-budget", "1 s")
    first = the_test(pytester)
    assert first["verdict"] == "INCONCLUSIVE"
    compare(pytester, "--llmperf-ab", "env.TTFT=9")
    second = the_test(pytester)
    assert second["judgement"]["blocks"] > first["judgement"]["blocks"]
    done = first["judgement"]["blocks"]
    if done:
        assert any(f"continues a sequence of {done} blocks" in note for note in second["judgement"]["notes"])


def test_a_candidate_that_does_not_start_fails_by_launch(pytester: pytest.Pytester) -> None:
    prepare(pytester)
    result = compare(pytester, "--llmperf-ab", "env.BREAKS=1")
    assert result.ret == 1
    assert the_test(pytester)["verdict"] == "FAIL"
    result.stdout.fnmatch_lines(["*FAIL: launch*", "*no such kernel image*"])


def test_a_baseline_that_does_not_start_is_no_fail(pytester: pytest.Pytester) -> None:
    prepare(pytester, BREAKS=1)
    result = compare(pytester, "--llmperf-ab", "env.TTFT=9")
    assert result.ret == 1
    assert the_test(pytester)["verdict"] == "NOT_RUN"
    assert "FAIL: launch" not in result.stdout.str()


def test_a_candidate_with_errors_fails_by_errors(pytester: pytest.Pytester) -> None:
    prepare(pytester)
    compare(pytester, "--llmperf-ab", "env.FAILS=100")
    found = the_test(pytester)
    assert found["verdict"] == "FAIL"
    assert "fail" in found["judgement"]["reason"]


def test_arms_that_answer_in_different_lengths_are_invalid(pytester: pytest.Pytester) -> None:
    prepare(pytester)
    compare(pytester, "--llmperf-ab", "env.TOKENS=2")
    found = the_test(pytester)
    assert found["verdict"] == "INVALID"


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("env.TTFT=8", "nothing would be compared"),
        ("max_num_sequences=3", "max_num_seqs"),
        ("threads=2", "no such parameter"),
        ("max_num_seqs", "write key=value"),
    ],
)
def test_a_bad_variable_is_a_usage_error_before_any_launch(pytester: pytest.Pytester, written: str, said: str) -> None:
    prepare(pytester, TTFT=8)
    result = compare(pytester, "--llmperf-ab", written)
    assert result.ret == 4
    assert said in result.stderr.str()
    assert launches(pytester) == 0


def test_two_launches_with_errors_fail_and_one_is_run_again(pytester: pytest.Pytester) -> None:
    """Errors in two judged launches are the candidate's, in one they may be luck."""
    prepare(pytester)
    compare(pytester, "--llmperf-ab", "env.ERRS_IN=0 1")
    found = the_test(pytester)
    assert found["verdict"] == "FAIL"
    assert "in 2 launches of the candidate" in found["judgement"]["reason"]


def test_one_launch_with_errors_is_run_again(pytester: pytest.Pytester) -> None:
    prepare(pytester)
    compare(pytester, "--llmperf-ab", "env.ERRS_IN=0")
    found = the_test(pytester)
    assert found["verdict"] == "PASS"
    assert sum(trial["discarded"] is not None for trial in found["trials"]) == 4, "a block of two launches, two replays"


def test_a_metric_that_the_test_names_must_be_judged_for_a_pass(pytester: pytest.Pytester) -> None:
    prepare(pytester, TEST.replace("'tpot_mean']", "'energy_per_mtok']").replace("tpot_mean=", "energy_per_mtok="))
    compare(pytester, "--llmperf-ab", "env.NOTHING=1")
    found = the_test(pytester)
    assert found["verdict"] == "INCONCLUSIVE"
    assert "energy_per_mtok" in found["judgement"]["reason"]


def test_the_value_of_a_secret_variable_reaches_no_file_and_no_terminal(pytester: pytest.Pytester) -> None:
    prepare(pytester, SPREAD=0.15)
    secret = "sk-9f86d081884c7d65"
    result = compare(pytester, "--llmperf-ab", f"env.HF_TOKEN={secret}", "--llmperf-budget", "1 s")
    found = the_test(pytester)
    assert found["verdict"] == "INCONCLUSIVE"
    assert "--llmperf-ab 'env.HF_TOKEN=***'" in found["judgement"]["remedy"]
    assert secret not in result.stdout.str() + result.stderr.str()
    files = [path for name in ("llmperf-report", "baselines") for path in (pytester.path / name).rglob("*")]
    read = {path: gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
            for path in files if path.is_file()}  # fmt: skip
    assert {"report.json", "report.md"} <= {path.name for path in read}
    assert any("_state" in path.parts for path in read)
    assert [path for path, data in read.items() if secret.encode() in data] == []
