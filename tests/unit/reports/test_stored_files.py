"""report.json and records: round trips, atomic writes, refusal of what is not ours."""

from __future__ import annotations

import gzip
import json
import math
import os
import stat
from dataclasses import replace
from pathlib import Path

import pytest
import reported
from hypothesis import given, settings
from hypothesis import strategies as st
from made import MS, client, failure, record, trial

from pytest_llmperf.catalog import metric
from pytest_llmperf.errors import UsageError
from pytest_llmperf.metrics import LoadFacts, assess, measure
from pytest_llmperf.recordfile import read_records, read_telemetry, write_records, write_telemetry
from pytest_llmperf.records import Outcome, Phase, RequestRecord, TokenSource
from pytest_llmperf.reports.jsonfile import json_schema, read_report, write_report
from pytest_llmperf.reports.phrases import cell_text
from pytest_llmperf.result import MetricReport
from pytest_llmperf.samples import Buckets, EngineSample, GpuSample, HostSample, Telemetry
from pytest_llmperf.stats.value import MetricValue
from pytest_llmperf.stored import metric_reports, stored_trial, trial_report

# report.json


def test_a_report_reads_back_equal(tmp_path: Path) -> None:
    report = reported.run_report(reported.passing(), reported.failing(), reported.invalid())
    write_report(tmp_path / "deep" / "report.json", report)
    assert read_report(tmp_path / "deep" / "report.json") == report
    assert read_report(tmp_path / "deep") == report


def test_the_stored_form_is_that_of_the_product(tmp_path: Path) -> None:
    write_report(tmp_path / "report.json", reported.run_report(reported.failing()))
    stored = json.loads((tmp_path / "report.json").read_text())
    assert stored["schema"] == "pytest-llmperf/report/1"
    assert {"plugin_version", "created", "environment", "campaigns", "tests"} <= stored.keys()
    test = stored["tests"][0]
    assert {"nodeid", "verdict", "plan", "identity", "trials", "slas", "comparisons", "findings"} <= test.keys()
    trial = test["trials"][0]
    assert {"arm", "launch", "replay", "window", "validity", "metrics", "records"} <= trial.keys()
    assert {"value", "unit", "n", "definition"} <= trial["metrics"]["ttft_p50"].keys()
    assert trial["metrics"]["ttft_p95"]["value"] is None  # infinite: JSON has no word for it
    assert trial["attempted"] == trial["ok"] + trial["failed"] + trial["cut"]


def test_a_reader_never_sees_half_a_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "report.json"
    write_report(path, reported.run_report(reported.passing()))
    before = path.read_bytes()

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_report(path, reported.run_report(reported.failing()))
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["report.json"]


def test_others_may_read_a_report(tmp_path: Path) -> None:
    write_report(tmp_path / "report.json", reported.run_report())
    assert stat.S_IMODE((tmp_path / "report.json").stat().st_mode) == 0o644


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b"\xff\xfe", "not UTF-8"),
        (b"[]", "no schema, this version reads 'pytest-llmperf/report/1'"),
        (b"{}", "no schema"),
        (b'{"schema": "pytest-llmperf/report/9"}', "schema 'pytest-llmperf/report/9', this version reads"),
        (b'{"schema": "pytest-llmperf/report/1"}', "plugin_version: Field required"),
    ],
)
def test_what_is_not_our_report_is_refused_by_name(tmp_path: Path, content: bytes, complaint: str) -> None:
    path = tmp_path / "report.json"
    path.write_bytes(content)
    with pytest.raises(UsageError) as caught:
        read_report(path)
    assert str(path) in str(caught.value)
    assert complaint in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_report_that_is_not_there_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read: No such file"):
        read_report(tmp_path / "nothing.json")
    with pytest.raises(UsageError, match=r"report\.json: cannot be read"):
        read_report(tmp_path)


def test_the_schema_names_the_required_keys() -> None:
    schema = json.loads(json_schema())
    assert "schema" in schema["properties"]
    assert "tests" in schema["properties"]


# records


def test_records_read_back_equal(tmp_path: Path) -> None:
    records = (
        record(0, phase=Phase.WARMUP, chunk_tokens=(1, 2, 3), token_source=TokenSource.CONTINUOUS_USAGE),
        failure(1, Outcome.HTTP_STATUS, detail="503 «überlastet»\n"),
        record(2, scheduled_ns=5, cached_tokens=0, chunks_ms=(1,)),
    )
    path = tmp_path / "records" / "x.jsonl.gz"
    write_records(path, records)
    assert read_records(path) == records
    assert [p.name for p in path.parent.iterdir()] == ["x.jsonl.gz"]


@given(chunks=st.lists(st.integers(0, 2**62), min_size=1, max_size=20).map(sorted))
@settings(deadline=None)
def test_times_survive_exactly(chunks: list[int], tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("records") / "x.jsonl.gz"
    written = record(chunk_ns=tuple(chunks), sent_ns=2**62 + 1)
    write_records(path, [written])
    assert read_records(path) == (written,)


def test_one_object_per_request_with_the_names_of_the_product_and_deltas(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl.gz"
    write_records(path, [record(0, chunks_ms=(1, 3, 6)), record(1)])
    lines = gzip.decompress(path.read_bytes()).decode().splitlines()
    assert len(lines) == 2
    stored = json.loads(lines[0])
    names = """scheduled_ns connect_start_ns connected_ns sent_ns first_byte_ns first_output_ns first_answer_ns
    last_output_ns closed_ns chunk_ns chunk_tokens prompt_tokens output_tokens token_source outcome detail
    connection"""
    assert set(names.split()) <= stored.keys()
    assert stored["chunk_ns"] == [1_000_000, 2_000_000, 3_000_000]
    assert stored["outcome"] == "ok"
    assert stored["chunk_tokens"] is None


def test_equal_records_give_equal_files(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_records(tmp_path / f"{name}.jsonl.gz", [record(0)])
    assert (tmp_path / "a.jsonl.gz").read_bytes() == (tmp_path / "b.jsonl.gz").read_bytes()


def _gzip(text: str) -> bytes:
    return gzip.compress(text.encode())


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"plain text", "cannot be read"),
        (_gzip("{}\n")[:-4], "cannot be read"),
        (_gzip("{}\n"), "line 1: not a request record"),
        (_gzip("[1]\n"), "line 1: not a request record"),
        (_gzip("nonsense\n"), "line 1: not a request record"),
    ],
    ids=["plain", "cut", "object", "list", "nonsense"],
)
def test_what_are_not_records_is_refused_by_name(tmp_path: Path, content: bytes, complaint: str) -> None:
    path = tmp_path / "x.jsonl.gz"
    path.write_bytes(content)
    with pytest.raises(UsageError) as caught:
        read_records(path)
    assert str(path) in str(caught.value)
    assert complaint in str(caught.value)


MEMORY = ("peak_memory", "memory_growth", "cpu_seconds_per_mtok")
HOST = tuple(HostSample(at * 200 * MS, size, at / 8, 2) for at, size in enumerate((100, 300, 250, 400)))
GPU = tuple(GpuSample(at, gpu, 90, None if at == 2 else 10 * at) for at in (1, 2, 3) for gpu in (0, 1))
FULL = Telemetry(
    gpu=(GpuSample(1, 0, 90, 80, foreign_pids=(7, 8), utilization=0.5, power_w=300.5, throttle=4, dram_activity=0.25),),
    gpus=(0,),
    engine=(
        EngineSample(1, {"running": 2.0, "preemptions": 0.0}, {"ttft": Buckets(2, 0.5, (0.1, math.inf), (1, 2))}),
        EngineSample(2, {"kv_usage": 0.75}, logged=True),
        EngineSample(2, {}, untold={"preemptions": "preempted_total: nan"}),
        EngineSample(3, {"running": 3.0}, pages=(EngineSample(3, {"running": 1.0}), EngineSample(3, {"running": 2.0}))),
    ),
    preemption_warnings=0,
    log_errors=("ERROR one", "ERROR two"),
)


@pytest.mark.parametrize(
    "telemetry",
    [
        Telemetry(HOST),
        Telemetry(HOST, GPU, (0, 1), ("a «note»\n",)),
        Telemetry((), GPU, (0, 1)),
        Telemetry(gpus=()),
        FULL,
    ],
)
def test_telemetry_reads_back_equal_and_gives_the_same_metrics(tmp_path: Path, telemetry: Telemetry) -> None:
    path = tmp_path / "telemetry" / "x.jsonl.gz"
    write_telemetry(path, telemetry)
    found = read_telemetry(path)
    assert found == telemetry
    before, after = (measure([trial([record()], telemetry=each)], None, MEMORY) for each in (telemetry, found))
    assert before == after
    assert [p.name for p in path.parent.iterdir()] == ["x.jsonl.gz"]


def test_memory_can_be_recomputed_from_the_stored_samples_alone(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl.gz"
    write_telemetry(path, Telemetry(HOST, notes=("n",)))
    head, *samples = (json.loads(line) for line in gzip.decompress(path.read_bytes()).decode().splitlines())
    assert head == {"gpus": None, "notes": ["n"], "preemption_warnings": None, "log_errors": []}
    found = measure([trial([record()], telemetry=Telemetry(HOST))], None, MEMORY)
    assert found["peak_memory"].value == max(sample["rss_bytes"] for sample in samples) == 400


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "line 1: not the head of telemetry"),
        ('{"t_ns":1,"rss_bytes":2,"cpu_seconds":3,"processes":1}\n', "line 1: not the head of telemetry"),
        ('{"gpus":null,"notes":[]}\n{"t_ns":1}\n', "line 2: not a sample"),
        ("[1]\n", "line 1: not a sample"),
    ],
)
def test_what_is_no_telemetry_is_refused_by_name(tmp_path: Path, text: str, complaint: str) -> None:
    path = tmp_path / "x.jsonl.gz"
    path.write_bytes(_gzip(text))
    with pytest.raises(UsageError) as caught:
        read_telemetry(path)
    assert f"{path}: {complaint}" in str(caught.value)


def test_records_of_no_requests_are_an_empty_file(tmp_path: Path) -> None:
    none: list[RequestRecord] = []
    write_records(tmp_path / "x.jsonl.gz", none)
    assert read_records(tmp_path / "x.jsonl.gz") == ()


def test_the_bounds_of_a_percentile_from_buckets_are_stored() -> None:
    found = metric_reports({"queue_wait_p95": MetricValue(metric("queue_wait_p95"), 2.0, 9, "n", lower=2.0)})
    read = MetricReport.model_validate_json(found["queue_wait_p95"].model_dump_json())
    assert (read.value, read.lower, read.upper) == (2.0, 2.0, None)
    assert cell_text(read) == "> 2.00 s"


def test_a_stored_trial_is_the_one_that_was_reported() -> None:
    one = trial([record()], client=client(retried=3, processes=2, busiest=0.5))
    measured = measure([one], None)
    report = trial_report(one, measured, assess(one, LoadFacts()), None)
    kept = stored_trial(report, one.records, one.telemetry)
    assert kept.client == replace(one.client, wake_lag_p99_ns=None)
    assert measure([kept], None) == measured
