"""``pytest-llmperf baseline``: text, JSON, exit status, and nothing removed or accepted by accident."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import reported
from kept import START, TEST, identity, launch, put, session
from made import client, failure, trial

from pytest_llmperf.baseline.keys import Key
from pytest_llmperf.baseline.store import Store
from pytest_llmperf.cli.__main__ import main
from pytest_llmperf.differences import differences, with_test
from pytest_llmperf.identity import Fact
from pytest_llmperf.metrics.trial import measure
from pytest_llmperf.recordfile import write_records, write_telemetry
from pytest_llmperf.records import Trial
from pytest_llmperf.reports.jsonfile import write_report
from pytest_llmperf.result import MetricReport, RunReport, TestReport
from pytest_llmperf.stored import metric_reports

KEY = Key.of(identity(), TEST)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.chdir(tmp_path)
    return Store(tmp_path / "baselines")


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    status = main(["baseline", *arguments])
    out, err = capsys.readouterr()
    return status, out, err


def data(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    status, out, err = run(capsys, *arguments, "--json")
    assert (status, err) == (0, "")
    return json.loads(out)


def test_list_of_an_empty_store_says_how_to_fill_it(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, "list")
    assert status == 0
    where = Path.cwd() / "baselines"
    assert out == f"{where} holds no baseline yet; make one with: pytest --llmperf --llmperf-refresh\n"


def test_list_has_a_line_for_every_parameter_set(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    put(store)
    put(store, identity(max_num_seqs="32"), session(1))
    put(store, what=session(2))
    status, out, _ = run(capsys, "list")
    assert status == 0
    head, *rows = [line.split() for line in out.splitlines()]
    assert head[:4] == ["test", "engine", "version", "quant"]
    assert sorted(row[6] for row in rows) == sorted([identity().digest(), identity(max_num_seqs="32").digest()])
    assert {(row[0], row[2], " ".join(row[7:10])) for row in rows} == {
        (TEST, "0.33.0", "6 in 2"),
        (TEST, "0.33.0", "3 in 1"),
    }
    [file] = data(capsys, "list")["files"]
    assert file["path"] == KEY.path
    assert {entry["requests"] for entry in file["entries"]} == {600, 1200}


def test_list_goes_on_past_a_refused_file_and_ends_with_one(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    put(store)
    put(store, identity("0.34.0"))
    place = Path(store.location, KEY.path)
    place.write_bytes(place.read_bytes()[:50])
    status, out, _ = run(capsys, "list")
    assert status == 1
    assert "0.34.0" in out
    assert f"refused: {place}: not JSON (truncated?)" in out
    status, out, _ = run(capsys, "list", "--json")
    assert status == 1
    assert [each["path"] for each in json.loads(out)["refused"]] == [KEY.path]


def test_the_store_is_that_of_the_configuration(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], store: Store
) -> None:
    put(Store(tmp_path / "kept"))
    (tmp_path / "llmperf.toml").write_text('baselines = "kept"\n')
    assert len(data(capsys, "list")["files"]) == 1
    assert data(capsys, "list", "--baselines", str(tmp_path / "other"))["files"] == []


@pytest.mark.parametrize(
    "word",
    [KEY.path, KEY.path.removesuffix(".json"), TEST, "test_chat", "vllm/0.33.0", identity().digest(),
     identity().digest()[:6], f"{TEST}#{identity().digest()[:4]}", f"{KEY.path}#{identity().digest()}"],
)  # fmt: skip
def test_show_takes_a_path_a_node_id_or_a_digest(store: Store, capsys: pytest.CaptureFixture[str], word: str) -> None:
    put(store)
    put(store, identity("0.34.0", model="other"), test="t.py::elsewhere")
    [shown] = data(capsys, "show", word)
    assert (shown["path"], shown["digest"]) == (KEY.path, identity().digest())
    assert shown["sessions"][0]["launches"][0]["metrics"]["ttft_p50"] == 0.12


def test_show_prints_values_sessions_and_identity(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    put(store, what=session(0, [launch(0, 0.1), launch(1, 0.4)], reason="nightly\x1b[2J"))
    put(store, what=session(1, [launch(0, None, rate=2000.0)]))
    status, out, _ = run(capsys, "show", TEST)
    assert status == 0
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert "output_throughput 2,191 tok/s 2,000 tok/s 2,400 tok/s 3" in lines  # exp((log 2400 + log 2000) / 2)
    assert "ttft_p50 n/a 100 ms ∞ 3" in lines
    assert "input version 0.33.0 live" in lines
    assert "consequence cuda 13.0 live" in lines
    assert any("Ada 0123abc gpu-7 nightly\\x1b[2J" in line for line in lines)
    assert "\x1b" not in out


def test_what_means_nothing_or_too_much_is_an_error(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    put(store)
    put(store, identity("0.34.0"))
    status, _, err = run(capsys, "show", "test_nothing")
    assert status == 2
    assert "'test_nothing' is no path, node id or digest" in err
    status, _, err = run(capsys, "diff", TEST, KEY.path)
    assert status == 2
    assert f"{TEST!r} means 2 entries; name one of them" in err
    assert f"{KEY.path}#{identity().digest()}" in err


def test_diff_shows_effects_and_every_differing_field(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    put(store)
    other = identity("0.34.0", max_num_seqs="32")
    put(store, other, session(1, [launch(0, 0.15, rate=2640.0)]))
    pair = (KEY.path, Key.of(other, TEST).path)
    status, out, _ = run(capsys, "diff", *pair)
    assert status == 0
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert "ttft_p50 120 ms 150 ms +25.00 % worse 3 / 1" in lines
    assert "output_throughput 2,400 tok/s 2,640 tok/s +10.00 % better 3 / 1" in lines
    assert "input max_num_seqs not set 32" in lines
    assert "input version 0.33.0 0.34.0" in lines
    content = data(capsys, "diff", *pair)
    assert content["identity"] == [
        {"kind": "input", "name": "max_num_seqs", "before": "not set", "after": "32"},
        {"kind": "input", "name": "version", "before": "0.33.0", "after": "0.34.0"},
    ]
    assert content["metrics"][0]["change"] == pytest.approx(0.25)
    assert "the identities are the same" in run(capsys, "diff", KEY.path, KEY.path)[1]


def test_diff_of_one_entry_shows_its_newest_session_beside_those_before(
    store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    put(store)
    status, _, err = run(capsys, "diff", KEY.path)
    assert (status, "has one session, and none before it" in err) == (2, True)
    put(store, what=session(1))
    driver = {**identity().environment, "driver": Fact(value="590.2", source="live")}
    put(store, what=session(2, [launch(0, 0.15)], environment=driver))
    lines = [" ".join(line.split()) for line in run(capsys, "diff", KEY.path)[1].splitlines()]
    assert lines[0].endswith(" 2 sessions, the last of 2027-01-02T00:00:00+00:00")
    assert lines[1].endswith(" the session of 2027-01-03T00:00:00+00:00")
    assert "ttft_p50 120 ms 150 ms +25.00 % worse 6 / 1" in lines
    assert "environment driver 580.1 590.2" in lines


def versions(store: Store) -> list[str]:
    return sorted(key.version for key in store.versions(KEY))


def test_prune_asks_first_and_keeps_the_newest_versions(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    for number, version in enumerate(("0.10.0", "0.9.0", "0.33.0")):
        put(store, identity(version), session(number))
    status, out, _ = run(capsys, "prune", "--keep-versions", "2")
    assert status == 1
    assert "would go: vllm/0.9.0/" in out
    assert "nothing was removed; add --yes" in out
    assert versions(store) == ["0.10.0", "0.33.0", "0.9.0"]
    assert run(capsys, "prune", "--keep-versions", "2", "--yes")[0] == 0
    assert versions(store) == ["0.10.0", "0.33.0"]
    assert run(capsys, "prune", "--keep-versions", "2", "--yes")[1] == "nothing to remove\n"


def test_prune_keeps_the_newest_where_versions_have_no_order(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    for number, version in enumerate(("main-b", "main-a", "0.33.0")):
        put(store, identity(version), session(number))
    run(capsys, "prune", "--keep-versions", "2", "--yes")
    assert versions(store) == ["0.33.0", "main-a"]


def test_prune_removes_old_sessions_and_what_gets_empty(
    store: Store, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pytest_llmperf.cli.baseline_change.utc_now", lambda: START.replace(day=12))
    put(store, what=session(0))
    put(store, what=session(10))
    put(store, identity("0.32.0"), session(0))
    content = json.loads(run(capsys, "prune", "--older-than", "5", "--json")[1])
    assert content["removed"] is False
    assert {each["path"].split("/")[1]: each["what"] for each in content["files"]} == {
        "0.33.0": "1 of 2 sessions, from before 2027-01-07",
        "0.32.0": "1 of 1 sessions, from before 2027-01-07",
    }
    assert run(capsys, "prune", "--older-than", "5", "--yes")[0] == 0
    file = store.read(KEY)
    assert file is not None
    assert [each.id for each in file.entries[identity().digest()].sessions] == [session(10).id]
    assert versions(store) == ["0.33.0"]


@pytest.mark.parametrize(
    "arguments", [[], ["--older-than", "0"], ["--keep-versions", "x"], ["--keep-versions", "9" * 99]]
)
def test_prune_wants_to_know_what(store: Store, capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    assert run(capsys, "prune", *arguments)[0] == 2


def promote(capsys: pytest.CaptureFixture[str], report: Path, *more: str) -> tuple[int, str, str]:
    return run(capsys, "promote", str(report), "--reason", "accepted", *more)


def written(folder: Path, *tests: TestReport, partial: bool = False) -> RunReport:
    report = reported.run_report(*tests, partial=partial)
    write_report(folder / "report.json", report)
    return report


def only(store: Store) -> Any:
    [(_, file)] = store.walk()
    assert not isinstance(file, Exception)
    [entry] = file.entries.values()
    return entry


def test_promote_stores_what_a_report_recorded(
    store: Store, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    measured = reported.with_memory(reported.closed_loop())
    test = reported.report_of(measured)
    beside = test.trials[0].model_copy(update={"telemetry": "telemetry/lost.jsonl.gz"})
    test = test.model_copy(update={"trials": (beside,)})
    folder = tmp_path / "run"
    write_records(folder / str(test.trials[0].records), measured.records)
    written(folder, test)
    status, out, err = promote(capsys, folder)
    assert (status, err) == (0, "")
    assert "session 20270102T030405Z-" in out
    assert "one session is all there is: it rarely acquits" in out
    entry = only(store)
    [kept] = entry.sessions
    assert kept.reason == "promoted: accepted"
    assert kept.node.startswith("promoted on ")
    [one] = kept.launches
    assert (one.n_requests, one.n_failed, one.n_tokens, one.replays) == (40, 0, 120, 1)
    truth = measure([measured], None, ["ttft_p50", "ttft_p95", "output_throughput", "peak_memory"])
    for name, value in truth.items():
        assert one.metrics[name] == pytest.approx(value.value, rel=1e-5)
    assert "queue_wait_mean" not in one.metrics
    assert entry.definitions["ttft_p50"] == "ttft/1"
    [(path, _)] = store.walk()
    [line] = [line for line in store.samples(path, entry.identity().digest()) if line.family == "ttft"]
    assert line.seconds() == pytest.approx([0.1 + 0.005 * n for n in range(40)])
    promote(capsys, folder)
    assert len(only(store).sessions) == 1  # the same runs again


def test_a_launch_that_was_discarded_is_no_part_of_the_session(
    store: Store, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    test = reported.passing()
    [good] = test.trials
    lost = good.model_copy(update={"launch": 1, "discarded": "screen: launches side by side decide"})
    invalid = good.validity.model_copy(update={"valid": False, "reasons": ("a foreign process",)})
    broken = lost.model_copy(update={"launch": 2, "validity": invalid, "failed": 40})
    written(tmp_path, test.model_copy(update={"trials": (lost, good, broken)}))
    status, _, err = promote(capsys, tmp_path)
    assert (status, err) == (0, "")
    [session] = only(store).sessions
    assert [each.n_requests for each in session.launches] == [40]
    assert session.launches[0].metrics["ttft_p50"] == pytest.approx(good.metrics["ttft_p50"].value, rel=1e-5)
    written(tmp_path, test.model_copy(update={"trials": (lost, broken)}))
    status, _, err = promote(capsys, tmp_path, "--force")
    assert (status, "every launch of the candidate was discarded in this report" in err) == (2, True)


def test_what_is_promoted_is_comparable_with_the_next_run_of_the_test(
    store: Store, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    test = reported.passing()
    assert test.identity is not None
    assert "workload" not in test.identity.environment, "as in a report without a comparison"
    written(tmp_path, test)
    promote(capsys, tmp_path)
    stored = only(store).identity()
    next_run = with_test(test.identity, test.plan)
    assert differences(stored, next_run, ("version",), stored=True) == ()
    other = test.plan.model_copy(update={"seed": 7})
    [found] = differences(stored, with_test(test.identity, other), ("version",), stored=True)
    assert (found.name, found.role) == ("workload", "confounding")


def test_replays_are_pooled_from_their_records(
    store: Store, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    first = reported.with_memory(reported.closed_loop())
    second = replace(reported.with_memory(reported.closed_loop(20)), replay=1)
    one, two = (reported.report_of(each) for each in (first, second))
    paths = {"records": "records/second.jsonl.gz", "telemetry": "telemetry/second.jsonl.gz"}
    beside = one.trials[0].model_copy(update={"telemetry": "telemetry/first.jsonl.gz"})
    trials = (beside, two.trials[0].model_copy(update=paths))
    both = one.model_copy(update={"trials": trials})
    written(tmp_path, both)
    status, _, err = promote(capsys, tmp_path)
    assert status == 2
    assert "launch 0 has 2 replays, and their records are not beside the report" in err
    for each, measured in zip(trials, (first, second), strict=True):
        write_records(tmp_path / str(each.records), measured.records)
        write_telemetry(tmp_path / str(each.telemetry), measured.telemetry)
    assert promote(capsys, tmp_path)[0] == 0
    [launched] = only(store).sessions[0].launches
    assert (launched.replays, launched.n_requests) == (2, 60)
    for name, value in measure(
        [first, second], None, ["ttft_p50", "e2e_p95", "output_throughput", "peak_memory", "cpu_seconds_per_mtok"]
    ).items():
        assert launched.metrics[name] == pytest.approx(value.value, rel=1e-5), name


def test_how_a_metric_was_measured_is_stored_with_its_value(
    store: Store, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    found = reported.passing()
    [one, *_] = found.trials
    bucketed = MetricReport(value=0.4, unit="s", n=9, definition="queue_wait/1", lower=0.3, upper=0.5)
    memory = MetricReport(value=70e9, unit="B", n=9, definition="peak_memory/1:whole-gpus")
    metrics = one.metrics | {"queue_wait_p95": bucketed, "peak_memory": memory}
    written(tmp_path, found.model_copy(update={"trials": (one.model_copy(update={"metrics": metrics}),)}))
    assert promote(capsys, tmp_path / "report.json")[0] == 0
    entry = only(store)
    [launched] = entry.sessions[0].launches
    assert (launched.metrics["peak_memory"], launched.sources) == (70e9, {"peak_memory": "whole-gpus"})
    assert entry.definitions["peak_memory"] == "peak_memory/1"
    assert "queue_wait_p95" not in launched.metrics


def test_without_records_values_are_stored_and_that_is_said(
    store: Store, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    written(tmp_path, reported.passing())
    assert (
        "no records beside the report: values are stored without samples"
        in promote(capsys, tmp_path / "report.json")[1]
    )
    assert [path for path in store.files.walk() if "samples" in path] == []


def doubtful(name: str) -> TestReport:
    made: dict[str, Trial] = {
        "not valid": trial(reported.closed_loop(), end_ms=4000, client=client(shared_reads=20)),
        "8 of 48 requests failed": trial(
            reported.closed_loop() + [failure(40 + n, sent_ms=3600) for n in range(8)], end_ms=4000
        ),
        "the trial was interrupted": trial(reported.closed_loop(), end_ms=4000, complete=False),
    }
    if name == "not valid":
        return reported.invalid()
    return reported.report_of(made[name])


@pytest.mark.parametrize("why", ["not valid", "8 of 48 requests failed", "the trial was interrupted"])
def test_promote_refuses_what_cannot_be_trusted_unless_forced(
    store: Store, capsys: pytest.CaptureFixture[str], tmp_path: Path, why: str
) -> None:
    written(tmp_path, doubtful(why))
    status, out, err = promote(capsys, tmp_path)
    assert (status, out) == (2, "")
    assert why in err
    assert store.paths() == []
    status, out, _ = promote(capsys, tmp_path, "--force")
    assert status == 0
    assert "forced, in spite of:" in out
    assert len(store.paths()) == 1


def test_promote_refuses_partial_reports_other_tests_and_no_reason(
    store: Store, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    written(tmp_path, reported.passing(), partial=True)
    assert "the report is partial" in promote(capsys, tmp_path)[2]
    assert "'other.py::t' is not in" in promote(capsys, tmp_path, "--test", "other.py::t")[2]
    assert "--reason: empty" in run(capsys, "promote", str(tmp_path), "--reason", " ")[2]
    unmeasured = reported.passing().model_copy(update={"trials": (), "outcome": "error"})
    written(tmp_path, unmeasured)
    assert "no candidate was measured" in promote(capsys, tmp_path, "--force")[2]
    assert store.paths() == []


def test_a_missed_limit_is_no_doubt_about_the_measurement(
    store: Store, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    passed = reported.passing()
    missed = passed.model_copy(update={"verdict": "FAIL", "outcome": "failed", "metrics": metric_reports({})})
    written(tmp_path, missed)
    assert promote(capsys, tmp_path)[0] == 0


def test_records_outside_of_the_report_are_not_read(
    store: Store, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    test = reported.passing()
    outside = test.trials[0].model_copy(update={"records": "../secret.jsonl.gz"})
    write_records(tmp_path / "secret.jsonl.gz", reported.closed_loop())
    written(tmp_path / "run", test.model_copy(update={"trials": (outside,)}))
    assert "no records beside the report" in promote(capsys, tmp_path / "run")[1]


def test_promote_tells_old_and_new_as_json(store: Store, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    written(tmp_path, reported.passing())
    content = data(capsys, "promote", str(tmp_path), "--reason", "accepted")
    [stored] = content["stored"]
    assert stored["test"] == "test_chat.py::test_chat"
    assert {row["metric"]: row["before"] for row in stored["metrics"]}["ttft_p50"] is None
    assert content["forced"] == []


def test_refresh_is_a_pytest_run_with_its_exit_status(tmp_path: Path) -> None:
    """Shown by a pytest that writes down what it was asked."""
    (tmp_path / "pytest.py").write_text("import sys\nprint(sys.argv[1:])\nsys.exit(5)\n")
    command = [sys.executable, "-m", "pytest_llmperf.cli", "baseline", "refresh", "--reason", "new driver", "--replace",
               "--baselines", "s3://b/x", "test_chat.py::test_chat", "--", "-x"]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 5
    assert done.stdout == (
        "['--llmperf', '--llmperf-refresh', '--llmperf-reason', 'new driver', '--llmperf-replace', "
        "'--llmperf-baselines=s3://b/x', 'test_chat.py::test_chat', '-x']\n"
    )


def test_refresh_needs_a_reason(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "refresh")[0] == 2
