"""Servers that do not come up, die or refuse: one clear error each, with the evidence, and nothing left running."""

from __future__ import annotations

import fcntl
import json
import re
import socket
from pathlib import Path
from typing import Any

import psutil
import pytest
from made import trial
from truth_server import TruthServer

from pytest_llmperf.metrics import measure
from pytest_llmperf.recordfile import read_telemetry
from pytest_llmperf.records import Window

TEST = """
import pytest

@pytest.mark.llmperf(server={server!r}, workload={{'input': 24, 'output': 8}}, concurrency=2, requests=10)
def test_it(llmperf):
    llmperf.run()
"""


def run(pytester: pytest.Pytester, *options: str, server: str = "embedded") -> pytest.RunResult:
    pytester.makepyfile(TEST.format(server=server))
    return pytester.runpytest_subprocess("--llmperf", "-p", "no:cacheprovider", *options)


def no_traceback(result: pytest.RunResult) -> str:
    text = result.stdout.str()
    assert "Traceback" not in text
    assert "pytest_llmperf/" not in re.sub(r"  (command|log): .*", "", text)
    return text


def test_server_that_dies_at_start_shows_command_exit_code_and_log(pytester: pytest.Pytester) -> None:
    broken = pytester.path / "broken.gguf"
    broken.write_bytes(b"GGUF but not really")
    result = run(pytester, f"--llmperf-set=model={broken}")
    assert result.ret == 1
    text = no_traceback(result)
    assert "ERROR at setup of test_it" in text
    for expected in ("command:", "embedded_server.py", "exit code:", "log lines:"):
        assert expected in text
    report = json.loads((pytester.path / "llmperf-report" / "report.json").read_text())
    assert report["tests"][0]["outcome"] == "error"
    assert report["campaigns"][0]["launches"][0]["exit_code"] not in (None, 0)


def test_server_that_does_not_start_is_tried_once_for_all_its_tests(pytester: pytest.Pytester) -> None:
    broken = pytester.path / "broken.gguf"
    broken.write_bytes(b"GGUF but not really")
    pytester.makepyfile(
        TEST.format(server="embedded") + "\n@pytest.mark.llmperf(server='embedded', workload='chat', concurrency=1, "
        "requests=2)\ndef test_other(llmperf):\n    llmperf.run()\n"
    )
    result = pytester.runpytest_subprocess("--llmperf", f"--llmperf-set=model={broken}")
    result.assert_outcomes(errors=2)
    assert len(list((pytester.path / "llmperf-report" / "logs").iterdir())) == 1


def test_missing_model_file_is_one_clear_error(pytester: pytest.Pytester) -> None:
    result = run(pytester, "--llmperf-set=model=no/such.gguf")
    assert result.ret == 1
    assert "no/such.gguf" in no_traceback(result)


def test_port_in_use_is_infra_with_an_exit_status_of_its_own(pytester: pytest.Pytester) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = run(pytester, f"--llmperf-set=port={port}")
    assert result.ret == 12
    text = no_traceback(result)
    assert "INFRA (says nothing about performance)" in text
    assert str(port) in text


def test_unreachable_url_is_one_clear_error(pytester: pytest.Pytester) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    result = run(pytester, f"--llmperf-url=http://127.0.0.1:{port}")
    assert result.ret == 1
    assert f"127.0.0.1:{port}" in no_traceback(result)


@pytest.mark.parametrize("url", ["127.0.0.1:8000", "ftp://127.0.0.1", "http://", "http://127.0.0.1:99999"])
def test_bad_url_is_one_clear_error(pytester: pytest.Pytester, url: str) -> None:
    result = run(pytester, f"--llmperf-url={url}")
    assert result.ret in (1, 4)
    no_traceback(result)
    assert url in result.stdout.str() + result.stderr.str()


def test_unknown_model_is_one_clear_error(pytester: pytest.Pytester) -> None:
    with TruthServer() as server:
        result = run(pytester, f"--llmperf-url={server.url}", "--llmperf-set=model=nope")
    assert result.ret == 1
    text = no_traceback(result)
    assert "nope" in text
    assert "truth" in text


DIES = """
import os, signal, threading
import pytest

@pytest.mark.llmperf(server="embedded", workload={"input": 24, "output": 400}, concurrency=2, duration="60 s")
def test_dies(llmperf, llmperf_server):
    import psutil
    def kill():
        port = int(llmperf_server.url.rpartition(":")[2])
        for process in psutil.process_iter(["cmdline"]):
            command = process.info["cmdline"] or []
            if str(port) in command and any("embedded_server" in part for part in command):
                process.kill()
    threading.Timer(1.0, kill).start()
    llmperf.run()

@pytest.mark.llmperf(server="embedded", workload={"input": 24, "output": 8}, concurrency=2, requests=10)
def test_next_gets_a_launch_of_its_own(llmperf):
    llmperf.run()
"""


def died_and_healthy(pytester: pytest.Pytester) -> tuple[str, dict[str, Any], dict[str, Any]]:
    """A server that is killed from the test's own process while its load runs, and the next test."""
    pytester.makepyfile(DIES)
    result = pytester.runpytest_subprocess("--llmperf", "-p", "no:cacheprovider", timeout=60)
    report = json.loads((pytester.path / "llmperf-report" / "report.json").read_text())
    died, healthy = report["tests"]
    assert died["trials"][0]["complete"] is False
    assert (pytester.path / "llmperf-report" / died["trials"][0]["records"]).is_file()
    assert healthy["verdict"] == "PASS"
    assert [launch["exit_code"] for launch in report["campaigns"][0]["launches"]] == [-9, 0]
    return no_traceback(result), died, healthy


def test_server_that_dies_under_load_shows_the_evidence_and_keeps_records(pytester: pytest.Pytester) -> None:
    text, died, _ = died_and_healthy(pytester)
    assert (died["verdict"], died["outcome"]) == ("NOT_RUN", "failed")
    for expected in ("the server ended while it was still needed", "command:", "killed by signal 9", "log:"):
        assert expected in text


def test_server_that_was_taken_away_is_infra_and_the_next_test_has_its_own(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(
        """
        from pytest_llmperf.server.process import ServerProcess

        ServerProcess.trouble = lambda self: "its container was taken away" if self.exit_code else None
        """
    )
    text, died, _ = died_and_healthy(pytester)
    assert (died["verdict"], died["outcome"]) == ("INFRA", "error")
    assert "the server ended while it was still needed: its container was taken away" in text


def test_nothing_runs_after_an_ordinary_run(pytester: pytest.Pytester) -> None:
    assert run(pytester).ret == 0
    report = json.loads((pytester.path / "llmperf-report" / "report.json").read_text())
    pid = report["campaigns"][0]["launches"][0]["pid"]
    assert not psutil.pid_exists(pid)


def test_memory_of_a_server_can_be_recomputed_from_what_is_stored(pytester: pytest.Pytester) -> None:
    folder = pytester.path / "llmperf-report"
    for replays in (2, 1):  # the second run clears the first one's files away
        assert run(pytester, f"--llmperf-replays={replays}").ret == 0
        trials = json.loads((folder / "report.json").read_text())["tests"][0]["trials"]
        assert sorted(p.name for p in (folder / "telemetry").iterdir()) == sorted(
            Path(each["telemetry"]).name for each in trials
        )
        assert len(trials) == replays
    stored = read_telemetry(folder / trials[0]["telemetry"])
    assert stored.gpus is None
    names = ("peak_memory", "memory_growth")
    watched = Window(stored.host[0].t_ns, stored.host[-1].t_ns)
    found = measure([trial([], telemetry=stored, window=watched)], None, names)
    assert {name: found[name].value for name in names} == {name: trials[0]["metrics"][name]["value"] for name in names}
    assert (found["peak_memory"].value or 0) > 1e6
    report = json.loads((folder / "report.json").read_text())
    starting = report["campaigns"][0]["launches"][0]["start_up"]["memory_bytes"]
    assert 1e6 < starting == report["tests"][0]["metrics"]["startup_memory"]["value"]


def test_a_server_elsewhere_has_no_samples(pytester: pytest.Pytester) -> None:
    with TruthServer(ttft=5, gap=1) as server:
        assert run(pytester, "--llmperf-url", server.url).ret == 0
    folder = pytester.path / "llmperf-report"
    assert json.loads((folder / "report.json").read_text())["tests"][0]["trials"][0]["telemetry"] is None
    assert not (folder / "telemetry").exists()


def test_two_servers_never_run_side_by_side(pytester: pytest.Pytester) -> None:
    """Tests of one server are brought together, and its server is gone before the next one starts."""
    pytester.makefile(".toml", llmperf="[servers.other]\nengine = 'embedded'\nmax_num_seqs = 1\n")
    pytester.makepyfile(
        """
        import psutil
        import pytest

        def servers():
            return sum("embedded_server" in " ".join(p.info["cmdline"] or []) for p in psutil.process_iter(["cmdline"])
                       if psutil.Process().pid in [q.pid for q in p.parents()])

        load = dict(workload={"input": 24, "output": 8}, concurrency=1, requests=4)

        @pytest.mark.llmperf(server="embedded", **load)
        def test_a1(llmperf):
            llmperf.run()
            assert servers() == 1

        @pytest.mark.llmperf(server="other", **load)
        def test_b(llmperf):
            llmperf.run()
            assert servers() == 1

        @pytest.mark.llmperf(server="embedded", **load)
        def test_a2(llmperf):
            llmperf.run()
            assert servers() == 1
        """
    )
    result = pytester.runpytest_subprocess("--llmperf", "-p", "no:cacheprovider", "-v")
    result.assert_outcomes(passed=3)
    order = [line.split("::")[1].split()[0] for line in result.stdout.lines if "PASSED" in line]
    assert order == ["test_a1", "test_a2", "test_b"]
    report = json.loads((pytester.path / "llmperf-report" / "report.json").read_text())
    assert [len(campaign["launches"]) for campaign in report["campaigns"]] == [1, 1]


def test_run_in_a_folder_that_another_run_uses_is_refused(pytester: pytest.Pytester) -> None:
    folder = pytester.mkdir("llmperf-report")
    with Path(folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        result = run(pytester)
    assert result.ret == 4
    result.stderr.fnmatch_lines(["ERROR: another run writes its report to *; give this one --llmperf-report DIR"])
