"""Runs on an H200 in which the plugin started real vLLM 0.26.0: what is reported follows from what is stored."""

from __future__ import annotations

import gzip
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pytest_llmperf.measured import launch_values
from pytest_llmperf.metrics import measure
from pytest_llmperf.recordfile import read_records, read_telemetry
from pytest_llmperf.result import RunReport
from pytest_llmperf.samples import StartUp
from pytest_llmperf.stats.interleaved import judge_interleaved
from pytest_llmperf.stats.launches import GateConfig, LaunchValues
from pytest_llmperf.stored import stored_trial

FOLDER = Path(__file__).parents[2] / "fixtures" / "h200-vllm-0.26.0"


def report(name: str) -> RunReport:
    return RunReport.model_validate_json((FOLDER / name / "report.json").read_text())


LAUNCHED = report("launched")
SIDES = report("side-by-side")


def lines(path: Path) -> list[dict[str, Any]]:
    with gzip.open(path, "rt") as file:
        return [json.loads(line) for line in file]


def test_the_identity_names_version_quantization_and_gpu() -> None:
    identity = LAUNCHED.tests[0].identity
    assert identity is not None
    names = ("engine", "version", "quantization", "gpu", "gpu_count", "max_num_seqs", "engine_evidence")
    assert [identity.value(name) for name in names] == [
        "vllm", "0.26.0", "bf16", "NVIDIA H200", "1", "64", "run for real",
    ]  # fmt: skip


def test_the_start_is_told_by_clock_driver_log_and_page() -> None:
    [launch] = LAUNCHED.campaigns[0].launches
    with gzip.open(FOLDER / "launched" / "logs" / "h200-1.log.gz", "rt") as file:
        log = file.read()
    assert launch.start_up.cold
    assert "GPU KV cache size: 553,712 tokens" in log
    assert launch.start_up.kv_capacity_tokens == 553_712
    assert launch.start_up.memory_bytes is not None
    # 0.6 of the 140 GiB that the driver tells, less than 1 % off: what vLLM was allowed.
    assert launch.start_up.memory_bytes / 2**30 == pytest.approx(0.6 * 140, rel=0.01)
    assert (launch.exit_code, launch.error) == (0, None)


@pytest.mark.parametrize("test", LAUNCHED.tests, ids=lambda test: test.nodeid.rpartition("::")[2])
def test_memory_energy_and_cost_follow_from_the_samples(test: Any) -> None:
    [trial] = test.trials
    samples = [each for each in lines(FOLDER / "launched" / trial.telemetry) if "gpu" in each]
    start, end = trial.window.start_ns, trial.window.end_ns
    assert max(each["server_bytes"] for each in samples if "server_bytes" in each) == test.metrics["peak_memory"].value
    assert all(each.get("foreign_pids") in (None, []) for each in samples)
    inside = [each for each in samples if "energy_j" in each and start <= each["t_ns"] <= end]
    joules = inside[-1]["energy_j"] - inside[0]["energy_j"]
    seconds = (inside[-1]["t_ns"] - inside[0]["t_ns"]) / 1e9
    # The rate of tokens is nearly constant: the window's is that between the samples, within a few per cent.
    tokens = test.metrics["output_throughput"].value * seconds
    assert test.metrics["energy_per_mtok"].value == pytest.approx(joules / tokens * 1e6, rel=0.05)
    assert 150 < joules / seconds < 700
    usd = 3.5 / 3600 / test.metrics["output_throughput"].value * 1e6
    assert test.metrics["cost_per_mtok"].value == pytest.approx(usd)


def test_the_engine_s_own_figures_are_of_its_page() -> None:
    [trial] = LAUNCHED.tests[1].trials
    pages = [each for each in lines(FOLDER / "launched" / str(trial.telemetry)) if "values" in each]
    first, last = pages[0]["values"], pages[-1]["values"]
    hits, queries = (last[name] - first[name] for name in ("prefix_hits", "prefix_queries"))
    shown = LAUNCHED.tests[1].metrics["prefix_hit_rate"].value
    # 1,200 of about 1,500 prompt tokens are shared; counters and the responses' own usage tell the same story.
    assert shown == pytest.approx(hits / queries, abs=0.06)
    assert 0.7 < hits / queries < 0.85


def values() -> dict[str, list[LaunchValues]]:
    [test] = SIDES.tests
    arms: dict[str, list[LaunchValues]] = {"baseline": [], "candidate": []}
    launches = {launch.index: launch for launch in SIDES.campaigns[0].launches}
    for order, number in enumerate(sorted({trial.launch for trial in test.trials})):
        own = [trial for trial in test.trials if trial.launch == number]
        folder = FOLDER / "side-by-side"
        trials = [
            stored_trial(each, read_records(folder / str(each.records)), read_telemetry(folder / str(each.telemetry)))
            for each in own
        ]
        block = launches[number].block
        assert block is not None
        made = launch_values(test.plan, trials, StartUp(), order=order, block=block, session="one")
        assert made.metrics["ttft_p50"] == pytest.approx(
            _median_ttft([FOLDER / "side-by-side" / str(t.records) for t in own])
        )
        arms[own[0].arm].append(made)
    return arms


def _median_ttft(paths: list[Path]) -> float:
    rows = [row for path in paths for row in lines(path) if row["phase"] == "measured"]
    return float(np.median([(row["first_output_ns"] - row["sent_ns"]) / 1e9 for row in rows]))


def test_prefix_caching_off_fails_on_ttft_after_two_blocks() -> None:
    arms, [test] = values(), SIDES.tests
    assert (test.verdict, test.outcome) == ("FAIL", "failed")
    shown = {row.metric: row for row in test.comparisons}
    judged = judge_interleaved(arms["baseline"], arms["candidate"], config=GateConfig(("ttft_p50", "tpot_mean")))
    assert (judged.result, judged.blocks) == ("FAIL", 2)
    logs = {arm: [math.log(each.metrics["ttft_p50"]) for each in found] for arm, found in arms.items()}
    change = math.exp(np.mean(logs["candidate"]) - np.mean(logs["baseline"])) - 1
    assert change > 0.2
    assert shown["ttft_p50"].verdict == "FAIL"
    assert shown["ttft_p50"].change == pytest.approx(change, rel=1e-3)
    assert shown["peak_memory"].verdict == "PASS"


def test_the_servers_of_both_arms_have_ended() -> None:
    launches = SIDES.campaigns[0].launches
    assert len(launches) == 6  # one unjudged for each arm, two blocks
    assert [launch.exit_code for launch in launches] == [0] * 6
    assert [launch.start_up.cold for launch in launches] == [True, True, False, False, False, False]


@pytest.mark.parametrize("turn", json.loads((FOLDER / "agreement" / "turns.json").read_text()))
def test_the_plugin_agrees_with_the_engine_s_own_benchmark(turn: dict[str, Any]) -> None:
    """The same server in turns: within 2 %, and what differs is in the server's own histograms too."""
    ours, bench = {name: each["value"] for name, each in turn["ours"].items()}, turn["bench"]
    assert ours["tpot_mean"] * 1e3 == pytest.approx(bench["mean_tpot_ms"], rel=0.02)
    assert ours["tpot_p50"] * 1e3 == pytest.approx(bench["median_tpot_ms"], rel=0.02)
    assert ours["e2e_mean"] * 1e3 == pytest.approx(bench["mean_e2el_ms"], rel=0.02)
    assert ours["output_throughput"] == pytest.approx(bench["output_throughput"], rel=0.02)
    before, between, after = (turn["pages"][name] for name in ("before", "between", "after"))

    def mean_ms(first: dict[str, Any], last: dict[str, Any], name: str) -> float:
        found = {key: last[name][key] - first[name][key] for key in ("sum", "count")}
        return 1e3 * float(found["sum"]) / float(found["count"])

    # vLLM's own clock starts when the request has been read: what its callers see besides is the way there and back.
    name = "time_to_first_token_seconds"
    besides_ours = ours["ttft_mean"] * 1e3 - mean_ms(before, between, name)
    besides_bench = bench["mean_ttft_ms"] - mean_ms(between, after, name)
    assert 0 < besides_ours < besides_bench + 2
    assert besides_bench < 15
    per_token = mean_ms(before, between, "request_time_per_output_token_seconds")
    assert ours["tpot_mean"] * 1e3 == pytest.approx(per_token, rel=0.02)


def test_metrics_of_a_stored_trial_are_those_of_the_report() -> None:
    [test, _] = LAUNCHED.tests
    [trial] = test.trials
    folder = FOLDER / "launched"
    again = stored_trial(
        trial, read_records(folder / str(trial.records)), read_telemetry(folder / str(trial.telemetry))
    )
    names = ("ttft_p95", "tpot_mean", "output_throughput", "peak_memory", "kv_usage_p95", "queue_wait_mean")
    for name, found in measure([again], None, names).items():
        assert found.value == pytest.approx(test.metrics[name].value, rel=1e-9), name
