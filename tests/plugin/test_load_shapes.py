"""Load shapes as users write them: markers and workload files, run against a scripted server and read back."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from truth_server import TruthServer

TRACE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:17:03.9000000,60,4
2023-11-16 18:17:04.1000000,35,0
2023-11-16 18:17:04.2000000,80,6
2023-11-16 18:17:04.5000000,50,3
2023-11-16 18:17:05.1000000,40,5
"""


def run(
    pytester: pytest.Pytester, server: TruthServer, marker: str
) -> tuple[dict[str, Any], list[dict[str, Any]], str]:
    """The report's entry, its records, and what was printed."""
    pytester.makepyfile(f"import pytest\n\n@pytest.mark.llmperf({marker})\ndef test_it(llmperf):\n    llmperf.run()\n")
    result = pytester.runpytest_subprocess("--llmperf", "--llmperf-url", server.url, "-p", "no:cacheprovider")
    assert result.ret == 0, result.stdout.str() + result.stderr.str()
    folder = pytester.path / "llmperf-report"
    test = json.loads((folder / "report.json").read_text())["tests"][0]
    with gzip.open(folder / test["trials"][0]["records"], "rt") as file:
        records = [json.loads(line) for line in file]
    return test, records, " ".join(result.stdout.str().split())


@pytest.mark.parametrize("how", ["marker", "file"])
def test_a_trace_is_replayed(pytester: pytest.Pytester, how: str) -> None:
    """Times, lengths and the row that is left out, in the server's log and in the report."""
    (pytester.path / "azure.csv").write_text(TRACE)
    (pytester.path / "replay.toml").write_text("api = 'completions'\ntrace = 'azure.csv'\ntime_scale = 0.5\n")
    marker = "workload='replay.toml'" if how == "file" else "trace='azure.csv', time_scale=0.5"
    with TruthServer(ttft=5, gap=1) as server:
        test, records, printed = run(pytester, server, f"{marker}, warmup=1")
        log = [one for one in server.wait_log(6) if one.body.get("stream")]
    due = [row["scheduled_ns"] - records[0]["scheduled_ns"] for row in records]
    assert due == [0, 150_000_000, 300_000_000, 600_000_000]
    assert [row["requested_input_tokens"] for row in records] == [60, 80, 50, 40]
    assert sorted(one.body["max_tokens"] for one in log) == [3, 4, 5, 6]
    assert test["plan"]["load"]["requests"] == 3
    assert Path(test["plan"]["load"]["trace"]["path"]).name == "azure.csv"
    assert "trace azure.csv at 0.5 of its times, 3 requests after 1 of warm-up" in " ".join(printed.split())
    assert "note: trace azure.csv: 1 requests without prompt or output tokens are left out" in printed


def test_a_hybrid_load_is_called_so_and_its_waiting_is_no_client_lag(pytester: pytest.Pytester) -> None:
    marker = (
        "workload={'input': {'uniform': [20, 40]}, 'output': 8}, request_rate='100 req/s', burstiness=0.5, "
        "max_concurrency=2, requests=40, warmup=2"
    )
    with TruthServer(ttft=20, gap=2) as server:
        test, records, printed = run(pytester, server, marker)
    assert "hybrid, 100 req/s gamma, burstiness 0.5, at most 2 in flight, 40 requests" in printed
    assert "latency counts from the timetable, so waiting for a place is part of it" in printed
    validity = test["trials"][0]["validity"]
    assert (validity["valid"], validity["reasons"]) == (True, [])
    waits = [row["cap_wait_ns"] for row in records]
    assert max(waits) > 0
    late = max(row["first_output_ns"] - row["scheduled_ns"] for row in records)
    assert test["metrics"]["ttft_p99"]["value"] > 0.5 * late / 1e9


def test_a_data_set_of_conversations_is_sent_turn_by_turn(pytester: pytest.Pytester) -> None:
    talk = [
        {"from": "human", "value": "what is one"},
        {"from": "gpt", "value": "it is one"},
        {"from": "human", "value": "and two"},
        {"from": "gpt", "value": "two"},
    ]
    (pytester.path / "talk.json").write_text(json.dumps([{"conversations": talk}] * 3))
    (pytester.path / "talk.toml").write_text("dataset = 'talk.json'\nturns = 2\noutput = { empirical = [3, 4] }\n")
    with TruthServer(ttft=5, gap=1) as server:
        _, records, _ = run(pytester, server, "workload='talk.toml', concurrency=2, requests=8, warmup=2")
        log = [one for one in server.wait_log(14) if one.body.get("stream")]
    assert [row["turn"] for row in records] == [0, 1] * 6
    assert {row["requested_input_tokens"] for row in records} == {None}
    texts = {tuple(message["content"] for message in one.body["messages"]) for one in log}
    assert texts == {("what is one",), ("what is one", "it is one", "and two")}


@pytest.mark.parametrize("api", ["chat", "completions"])
def test_prompts_of_later_turns_are_as_long_as_asked_although_a_template_surrounds_each_message(
    pytester: pytest.Pytester, api: str
) -> None:
    workload = f"{{'api': '{api}', 'input': {{'uniform': [30, 40]}}, 'output': {{'uniform': [20, 30]}}, 'turns': 4}}"
    with TruthServer(ttft=2, gap=1) as server:
        _, records, _ = run(pytester, server, f"workload={workload}, concurrency=2, requests=16, warmup=2")
    assert {row["turn"] for row in records} == {0, 1, 2, 3}
    for row in records:  # without the template's part the last prompts would be 30 tokens longer
        assert row["prompt_tokens"] == pytest.approx(row["requested_input_tokens"], abs=1 + 1.25 * (row["turn"] + 1))


def test_constant_lengths_in_a_closed_loop_are_warned_of(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        "import pytest\n"
        "@pytest.mark.llmperf(server='embedded', workload={'input': 16, 'output': 8}, concurrency=4, requests=6)\n"
        "def test_it(llmperf): ...\n"
    )
    result = pytester.runpytest("--llmperf", "--llmperf-dry-run")
    result.stdout.fnmatch_lines(["*note: constant lengths in a closed loop: requests move in convoys*"])


def test_a_closer_marker_changes_the_kind_of_load_as_a_whole(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        "import pytest\n"
        "pytestmark = pytest.mark.llmperf(server='embedded', workload='chat', request_rate='5 req/s', burstiness=0.5,\n"
        "                                 max_concurrency=3, requests=6)\n"
        "@pytest.mark.llmperf(request_rate='9 req/s')\n"
        "def test_faster(llmperf): ...\n"
        "@pytest.mark.llmperf(concurrency=2)\n"
        "def test_closed(llmperf): ...\n"
        "@pytest.mark.llmperf(schedule=[0, 1, 2, 3, 4, 5, 6, 7])\n"
        "def test_times(llmperf): ...\n"
    )
    result = pytester.runpytest("--llmperf", "--llmperf-dry-run")
    result.stdout.fnmatch_lines(
        [
            "*test_faster: chat, hybrid, 9 req/s gamma, burstiness 0.5, at most 3 in flight, 6 requests*",
            "*test_closed: chat, concurrency 2, 6 requests after 4 of warm-up*",
            "*test_times: chat, 8 given times, 6 requests after 2 of warm-up*",
        ]
    )
