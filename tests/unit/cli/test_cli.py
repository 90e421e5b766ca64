"""The command line: text, exit status, and errors in one line."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import get_args

import pytest
import reported

from pytest_llmperf.catalog import FAMILIES, METRICS
from pytest_llmperf.cli.__main__ import main
from pytest_llmperf.cli.help import TOPICS
from pytest_llmperf.metrics import MEASURED
from pytest_llmperf.metrics.start import START_METRICS
from pytest_llmperf.records import RequestRecord
from pytest_llmperf.reports.jsonfile import write_report
from pytest_llmperf.samples import Buckets, EngineSample, GpuSample, HostSample, Quantity, Telemetry


@pytest.fixture
def report(tmp_path: Path) -> Path:
    path = tmp_path / "report.json"
    write_report(path, reported.run_report(reported.passing(), reported.failing()))
    return path


def test_report_prints_the_table_of_every_test(report: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(report)]) == 0
    text = capsys.readouterr().out
    assert text.startswith("2 tests, 2027-01-02T03:04:05+00:00, pytest-llmperf 0.1.0\n")
    assert "PASS  test_chat.py::test_chat" in text
    assert "slowest requests by TTFT" in text
    assert "\x1b" not in text


def test_report_takes_the_folder_too(report: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(report.parent)]) == 0
    assert "2 tests" in capsys.readouterr().out


def test_an_unfinished_report_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_report(tmp_path / "report.json", reported.run_report(partial=True))
    assert main(["report", str(tmp_path)]) == 0
    assert "partial: the run was interrupted or is still going on" in capsys.readouterr().out


def test_report_as_json_is_the_report(report: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(report), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(report.read_text())


def test_schema_is_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "--schema"]) == 0
    assert json.loads(capsys.readouterr().out)["type"] == "object"


@pytest.mark.parametrize("content", [None, "{", '{"schema": "pytest-llmperf/report/9"}'])
def test_a_file_that_cannot_be_used_is_status_two_and_one_line(
    tmp_path: Path, content: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "report.json"
    if content is not None:
        path.write_text(content)
    assert main(["report", str(path)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"pytest-llmperf report: error: {path}: ")
    assert err.count("\n") == 1


def test_report_without_a_path_is_that_of_the_default_folder(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["report"]) == 2
    assert "llmperf-report: cannot be read" in capsys.readouterr().err


def test_help_metrics_lists_every_family(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["help", "metrics"]) == 0
    words = capsys.readouterr().out.split()
    assert {entry.family.name for entry in METRICS.values()} <= set(words)
    assert {family.definition for family in FAMILIES.values()} <= set(words)


@pytest.mark.parametrize("topic", TOPICS)
def test_every_topic_has_text(topic: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["help", topic]) == 0
    assert capsys.readouterr().out.count("\n") >= 5


def test_an_unknown_topic_names_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["help", "metric"]) == 2
    assert "did you mean 'metrics'?" in capsys.readouterr().err


def test_help_without_a_topic_lists_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["help"]) == 0
    assert "topics: metrics, units, records, exit-codes, verdicts" in capsys.readouterr().out


def test_version_and_wrong_usage_have_their_statuses(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("pytest-llmperf ")
    assert main([]) == 2
    assert main(["nonsense"]) == 2


def test_the_module_runs_and_stands_a_closed_pipe(report: Path) -> None:
    command = [sys.executable, "-m", "pytest_llmperf.cli", "report", str(report), "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    assert process.stderr.read() == b""
    assert process.wait() == 0
    process.stderr.close()


def test_the_command_imports_neither_scipy_nor_httpx_nor_pytest(report: Path) -> None:
    code = (
        "import sys; from pytest_llmperf.cli.__main__ import main; main(sys.argv[1:]);"
        "sys.exit(', '.join({'scipy', 'httpx', 'pytest', 'numpy'} & sys.modules.keys()) or None)"
    )
    command = [sys.executable, "-c", code, "report", str(report)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_help_metrics_says_what_is_not_measured(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["help", "metrics"]) == 0
    rows = {line.split()[0]: line for line in capsys.readouterr().out.splitlines() if line.startswith("  ")}
    marked = {name for name, line in rows.items() if line.endswith("(not measured by this version)")}
    assert marked == {"mbu", "mfu", "scaling_efficiency"}
    assert marked == {name for name, entry in METRICS.items() if entry.family.name == name} - {
        *MEASURED,
        *START_METRICS,
        "cost_per_mtok",
    }


def test_help_records_names_every_field_that_is_stored(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["help", "records"]) == 0
    words = set(re.findall(r"[a-z0-9_]+", capsys.readouterr().out))
    kinds = (RequestRecord, HostSample, GpuSample, EngineSample, Buckets, Telemetry)
    stored = {field.name for kind in kinds for field in fields(kind)} - {"texts", "host", "engine"}
    assert stored <= words
    assert set(get_args(Quantity)) <= words


def test_help_exit_codes_names_every_command_that_ends_with_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["help", "exit-codes"]) == 0
    said = capsys.readouterr().out
    for command in ("baseline list", "baseline prune", "doctor gpu", "doctor reap", "doctor noise"):
        assert command in said
