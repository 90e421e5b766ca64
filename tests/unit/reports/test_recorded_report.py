"""A report of real vLLM 0.26.0 on an H200 can be read, shown, and recomputed from its records."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from pytest_llmperf.reports.terminal import render
from pytest_llmperf.result import TestReport

FOLDER = Path(__file__).parents[2] / "fixtures" / "h200-vllm-0.26.0"
REPORT = json.loads((FOLDER / "report.json").read_text())


@pytest.mark.parametrize("test", REPORT["tests"][:2], ids=lambda test: test["nodeid"].rpartition("::")[2])
def test_percentiles_follow_from_the_records(test: dict) -> None:  # type: ignore[type-arg]
    with gzip.open(FOLDER / test["trials"][0]["records"], "rt") as file:
        rows = [row for row in map(json.loads, file) if row["phase"] == "measured"]
    start = [row["sent_ns"] if row["scheduled_ns"] is None else row["scheduled_ns"] for row in rows]
    ttft = [(row["first_output_ns"] - at) / 1e9 for row, at in zip(rows, start, strict=True)]
    e2e = [(row["last_output_ns"] - at) / 1e9 for row, at in zip(rows, start, strict=True)]
    assert {row["token_source"] for row in rows} == {"continuous_usage"}
    tpot = [
        (row["last_output_ns"] - row["first_output_ns"]) / 1e9 / (row["output_tokens"] - row["chunk_tokens"][0])
        for row in rows
    ]
    for name, values in {"ttft": ttft, "e2e": e2e, "tpot": tpot}.items():
        for suffix, q in {"p50": 50, "p90": 90, "p95": 95, "p99": 99}.items():
            assert test["metrics"][f"{name}_{suffix}"]["value"] == pytest.approx(np.percentile(values, q), rel=1e-6)
    # The engine was told to ignore the end of text: every request got what it asked for.
    assert all(row["output_tokens"] == row["requested_output_tokens"] for row in rows)
    # The client was not the bottleneck of a real engine: no two chunks shared a read.
    client = test["trials"][0]["client"]
    assert client["stamps"] == "kernel"
    assert client["shared_reads"] <= 0.001 * client["output_chunks"]


def test_tables_of_a_gpu_run_show_engine_model_and_memory() -> None:
    first = {**REPORT["tests"][0], "identity": REPORT["tests"][0]["identity"]}
    shown = render(TestReport.model_validate_json(json.dumps(first)), 120, color=False)
    assert "vllm 0.26.0" in shown
    assert "peak memory 85.4 GiB" in shown
