"""Servers that run already: a stored baseline can acquit them, two of them are compared in alternating replays."""

from __future__ import annotations

import pytest
from comparing import TEST, compare, prepare, the_test
from truth_server import TruthServer


def test_a_running_server_is_acquitted_by_its_baseline_and_never_convicted(pytester: pytest.Pytester) -> None:
    prepare(pytester, TEST)
    with TruthServer(ttft=8, gap=2) as usual, TruthServer(ttft=24, gap=2) as slow:
        for _ in range(3):
            assert compare(pytester, "--llmperf-url", usual.url, "--llmperf-refresh", "--llmperf-reason", "x").ret == 0
        compare(pytester, "--llmperf-url", usual.url)
        found = the_test(pytester)
        assert (found["verdict"], found["judgement"]["mode"]) == ("PASS", "targeted")
        result = compare(pytester, "--llmperf-url", slow.url)
        found = the_test(pytester)
        assert (result.ret, found["verdict"]) == (0, "INCONCLUSIVE")
        assert "--llmperf-ab url=" in found["judgement"]["remedy"]


def test_two_running_servers_are_compared_in_turns(pytester: pytest.Pytester) -> None:
    prepare(pytester, TEST)
    with TruthServer(ttft=8, gap=2) as usual, TruthServer(ttft=24, gap=2) as slow:
        result = compare(pytester, "--llmperf-url", usual.url, "--llmperf-ab", f"url={usual.url},{slow.url}")
        found = the_test(pytester)
        assert (result.ret, found["verdict"]) == (1, "FAIL")
        assert [row["metric"] for row in found["comparisons"] if row["verdict"] == "FAIL"] == ["ttft_p50"]
        arms = [trial["arm"] for trial in found["trials"]]
        assert arms == ["baseline", "candidate", "candidate", "baseline"] * 2
        compare(pytester, "--llmperf-url", usual.url, "--llmperf-ab", f"url={slow.url},{usual.url}")
        assert the_test(pytester)["verdict"] == "PASS"
