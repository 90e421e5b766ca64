"""What a run reports agrees with the truth, recomputed here from the log of a server with a programmed timetable."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from truth_server import Served, TruthServer

STATISTICS: dict[str, Callable[[list[float]], float]] = {
    "mean": lambda values: float(np.mean(values)),
    "p50": lambda values: float(np.percentile(values, 50)),
    "p90": lambda values: float(np.percentile(values, 90)),
    "p95": lambda values: float(np.percentile(values, 95)),
    "p99": lambda values: float(np.percentile(values, 99)),
}
WORKLOAD = {"input": {"uniform": [20, 60]}, "output": {"uniform": [8, 32]}}
TEST = """
import pytest

@pytest.mark.llmperf(workload={workload}, {load}, seed=3)
def test_it(llmperf):
    llmperf.run()
"""


def run(pytester: pytest.Pytester, server: TruthServer, load: str, **workload: Any) -> tuple[dict[str, Any], Path]:
    """The report's entry of one test, and the report's folder."""
    pytester.makepyfile(TEST.format(workload={**WORKLOAD, **workload}, load=load))
    result = pytester.runpytest_subprocess("--llmperf", "--llmperf-url", server.url, "-p", "no:cacheprovider")
    assert result.ret == 0, result.stdout.str()
    folder = pytester.path / "llmperf-report"
    report = json.loads((folder / "report.json").read_text())
    assert (report["schema"], report["partial"]) == ("pytest-llmperf/report/1", False)
    return report["tests"][0], folder


def records(folder: Path, test: dict[str, Any]) -> list[dict[str, Any]]:
    with gzip.open(folder / test["trials"][0]["records"], "rt") as file:
        return [json.loads(line) for line in file]


def streamed(server: TruthServer, count: int) -> list[Served]:
    """The server's view of the load, in the order of arrival; calibration is not streamed."""
    log = [one for one in server.wait_log(count) if one.body.get("stream")]
    assert len(log) == count
    return sorted(log, key=lambda one: one.arrived_ns)


def assert_latencies(test: dict[str, Any], name: str, before: list[float], after: list[float]) -> None:
    """Between what follows from the times just before and just after each send, give or take 1.5 ms or 3 %.

    That is far above the client's error and far below any mistake of definition; the two highest percentiles get 3 ms,
    since on a busy machine single requests wait for the server's process or ours. Where the client had to read two
    chunks at once, gaps are said to be invalid, with evidence.
    """
    metrics, client = test["metrics"], test["trials"][0]["client"]
    assert metrics[f"{name}_p50"]["n"] == len(before)
    if name == "icl" and metrics["icl_p50"]["invalid"]:
        assert metrics["icl_p50"]["value"] is None
        shared = client["shared_reads"] > 0.001 * client["output_chunks"]
        assert shared or client["unstamped_reads"] > 0.001 * client["reads"]
        return
    for key, statistic in STATISTICS.items():
        low, high, found = statistic(before), statistic(after), metrics[f"{name}_{key}"]["value"]
        slack = max(0.003 if key in ("p95", "p99") else 0.0015, 0.03 * high)
        assert low - slack <= found <= high + slack, f"{name}_{key}: {found} but truly {low} to {high}"


def seconds(later: Sequence[int], earlier: Sequence[int]) -> list[float]:
    return [(end - start) / 1e9 for end, start in zip(later, earlier, strict=True)]


@pytest.mark.parametrize("api", ["chat", "completions"])
def test_closed_loop_agrees_with_the_servers_log(pytester: pytest.Pytester, api: str) -> None:
    with TruthServer(ttft=60, gap=12, close=True) as server:
        test, folder = run(pytester, server, "concurrency=4, requests=40, warmup=4", api=api)
        everything = streamed(server, 44)
    truth = everything[4:]
    metrics = test["metrics"]
    arrived = [one.arrived_ns for one in truth]
    for name, at in (("ttft", 0), ("e2e", -1)):
        before, after = [one.sends[at] for one in truth], [one.after[at] for one in truth]
        assert_latencies(test, name, seconds(before, arrived), seconds(after, arrived))
    least = [(one.sends[-1] - one.after[0]) / 1e9 / (sum(one.tokens) - one.tokens[0]) for one in truth]
    most = [(one.after[-1] - one.sends[0]) / 1e9 / (sum(one.tokens) - one.tokens[0]) for one in truth]
    assert_latencies(test, "tpot", least, most)
    shortest = [gap for one in truth for gap in seconds(one.sends[1:], one.after[:-1])]
    longest = [gap for one in truth for gap in seconds(one.after[1:], one.sends[:-1])]
    assert_latencies(test, "icl", shortest, longest)
    start, end = truth[0].arrived_ns, max(one.sends[-1] for one in truth)
    tokens = sum(t for one in everything for t, at in zip(one.tokens, one.sends, strict=True) if start <= at <= end)
    assert metrics["output_throughput"]["value"] == pytest.approx(tokens / ((end - start) / 1e9), rel=0.01)
    assert metrics["error_rate"]["value"] == 0
    rows = [row for row in records(folder, test) if row["phase"] == "measured"]
    assert [row["output_tokens"] for row in rows] == [one.body["max_tokens"] for one in truth]
    assert all(row["prompt_tokens"] == one.prompt_tokens for row, one in zip(rows, truth, strict=True))


def test_open_loop_counts_from_the_schedule_and_keeps_it(pytester: pytest.Pytester) -> None:
    """Latency counts from the planned time; the plan itself is seen in what arrived at the server."""
    with TruthServer(ttft=40, gap=4) as server:
        test, folder = run(pytester, server, "request_rate='25 req/s', arrival='constant', requests=50, warmup=5")
        truth = streamed(server, 55)
    rows = records(folder, test)
    gaps = np.diff([row["scheduled_ns"] for row in rows])
    assert gaps == pytest.approx(np.full(54, 40e6), abs=2)
    planned = np.array([row["scheduled_ns"] for row in rows])
    arrived = np.array([one.arrived_ns for one in truth])
    assert np.all(arrived - planned > -1e6)  # none before its time
    assert np.median(arrived - planned) < 10e6
    due = [int(at) for at in planned[5:]]
    before, after = [one.sends[0] for one in truth[5:]], [one.after[0] for one in truth[5:]]
    assert_latencies(test, "ttft", seconds(before, due), seconds(after, due))
    assert test["trials"][0]["client"]["slip_p99_s"] is not None


def test_tokens_merged_in_a_chunk_are_counted_as_tokens(pytester: pytest.Pytester) -> None:
    """Four tokens per chunk: the counts come from usage, never from chunks, and ICL is not ITL."""
    with TruthServer(ttft=30, gap=10, merge=4) as server:
        test, folder = run(pytester, server, "concurrency=2, requests=10, warmup=2", output=32)
    metrics = test["metrics"]
    assert metrics["icl_p50"]["n"] == 10 * 7
    assert metrics["itl_p50"]["value"] is None
    assert metrics["itl_p50"]["note"]
    rows = [row["chunk_ns"][1:] for row in records(folder, test) if row["phase"] == "measured"]
    chunks = float(np.mean(rows)) / 1e9
    assert metrics["icl_mean"]["invalid"] or metrics["icl_mean"]["value"] == pytest.approx(chunks)
    # The first chunk's tokens are not told, so it counts as one: 31 tokens in 7 gaps.
    assert metrics["tpot_mean"]["value"] == pytest.approx(7 * chunks / 31, rel=0.02)


def test_records_allow_to_recompute_every_latency(pytester: pytest.Pytester) -> None:
    with TruthServer(ttft=25, gap=6) as server:
        test, folder = run(pytester, server, "concurrency=3, requests=20")
    rows = [row for row in records(folder, test) if row["phase"] == "measured"]
    ttft = [(row["first_output_ns"] - row["sent_ns"]) / 1e9 for row in rows]
    tpot = [(row["last_output_ns"] - row["first_output_ns"]) / 1e9 / (row["output_tokens"] - 1) for row in rows]
    assert test["metrics"]["ttft_p95"]["value"] == pytest.approx(np.percentile(ttft, 95))
    assert test["metrics"]["tpot_p50"]["value"] == pytest.approx(np.percentile(tpot, 50))
    for row in rows:
        first, *gaps = row["chunk_ns"]
        assert first == row["first_output_ns"]
        assert sum(gaps) == row["last_output_ns"] - first
        assert len(gaps) == row["output_tokens"] - 1
