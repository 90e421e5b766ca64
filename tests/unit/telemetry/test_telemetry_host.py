"""The process tree of a real process: memory, CPU, children that come and go."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import psutil
import pytest
from waiting import within

from pytest_llmperf.telemetry.host import ProcessTree
from pytest_llmperf.telemetry.recorder import record

SECOND = 1_000_000_000
BURN = "t=__import__('time'); e=t.process_time()+{0}\nwhile t.process_time()<e: pass"


@contextmanager
def python(code: str) -> Iterator[subprocess.Popen[bytes]]:
    """A child that has run ``code`` up to its ``ready()``; killed at the end."""
    head = "import sys, time, subprocess\ndef ready(): print('x', flush=True)\n"
    process = subprocess.Popen([sys.executable, "-c", head + code], stdout=subprocess.PIPE, stdin=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.read(1)
    try:
        yield process
    finally:
        for child in psutil.Process(process.pid).children() if process.poll() is None else []:
            child.kill()
        process.kill()
        process.communicate()


def test_memory_that_the_process_holds_is_seen() -> None:
    with python("x = bytearray(b'1') * 60_000_000; ready(); sys.stdin.read()") as process:
        sample = ProcessTree(process.pid).sample(0)
    assert sample is not None
    assert 60_000_000 < sample.rss_bytes < 200_000_000
    assert sample.processes == 1


def test_cpu_time_of_the_process_is_seen() -> None:
    with python(f"{BURN.format(0.3)}\nready(); sys.stdin.read()") as process:
        sample = ProcessTree(process.pid).sample(0)
    assert sample is not None
    assert 0.28 <= sample.cpu_seconds < 1.0


def test_children_count_and_a_child_that_ends_keeps_its_cpu_time() -> None:
    child = "import sys; " + BURN.format(0.3).replace("\n", "\\n") + "\\nprint(1, flush=True); sys.stdin.read()"
    code = f"""
child = subprocess.Popen([sys.executable, '-c', "{child}"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
child.stdout.read(1); ready(); sys.stdin.read(1); child.kill(); child.wait(); ready(); sys.stdin.read()
"""
    with python(code) as process:
        tree = ProcessTree(process.pid)
        before = tree.sample(0)
        assert process.stdin is not None
        process.stdin.write(b"x")
        process.stdin.flush()
        assert process.stdout is not None
        process.stdout.read(2)
        after = tree.sample(2 * SECOND)
    assert before is not None
    assert after is not None
    assert (before.processes, after.processes) == (2, 1)
    assert before.cpu_seconds >= 0.28
    assert after.cpu_seconds >= before.cpu_seconds
    assert after.rss_bytes < before.rss_bytes


def test_a_child_started_later_is_found_at_the_next_look() -> None:
    code = "ready(); sys.stdin.read(1); subprocess.Popen(['sleep', '60']); ready(); sys.stdin.read()"
    with python(code) as process:
        tree = ProcessTree(process.pid)
        assert process.stdin is not None
        assert process.stdout is not None
        first = tree.sample(0)
        process.stdin.write(b"x")
        process.stdin.flush()
        process.stdout.read(2)
        soon, later = tree.sample(SECOND // 5), tree.sample(2 * SECOND)
    assert [s.processes for s in (first, soon, later) if s is not None] == [1, 1, 2]


def test_a_process_that_is_gone_gives_no_sample_and_no_error() -> None:
    with python("ready()") as process:
        process.wait()
        assert ProcessTree(process.pid).sample(0) is None


def test_a_server_that_dies_during_the_load_leaves_the_samples_before() -> None:
    with python("ready(); sys.stdin.read()") as process:
        with record(process.pid, interval_s=0.02) as recorder:
            time.sleep(0.1)
            process.kill()
            process.wait()
            time.sleep(0.1)
        assert recorder.telemetry.host
        assert not any("failed" in note for note in recorder.telemetry.notes)


def test_recorder_samples_on_entry_on_exit_and_between() -> None:
    with python("ready(); sys.stdin.read()") as process:
        start = time.monotonic_ns()
        with record(process.pid, interval_s=0.05) as recorder:
            assert within(30, lambda: len(recorder.telemetry.host) >= 3)
        end = time.monotonic_ns()
        stamps = [sample.t_ns for sample in recorder.telemetry.host]
    assert start <= stamps[0]
    assert stamps[-1] <= end
    assert stamps == sorted(stamps)
    assert len(stamps) >= 4  # on entry, in between, on exit
    cpu = [sample.cpu_seconds for sample in recorder.telemetry.host]
    assert cpu == sorted(cpu)


def test_an_empty_block_has_its_two_samples() -> None:
    with python("ready(); sys.stdin.read()") as process:
        with record(process.pid, interval_s=10) as recorder:
            pass
        assert len(recorder.telemetry.host) == 2


def test_a_server_that_is_not_ours_is_said_and_not_zero() -> None:
    with record(None, interval_s=0.05) as recorder:
        pass
    assert recorder.telemetry.host == ()
    assert "which processes are the server's is not known" in recorder.telemetry.notes[0]


def test_a_late_sampler_reports_its_own_gaps(monkeypatch: pytest.MonkeyPatch) -> None:
    slow, looks = iter([0.0, 0.3, 0.0]), []

    def sample(self: ProcessTree, t_ns: int) -> None:
        looks.append(t_ns)
        time.sleep(next(slow, 0.0))

    monkeypatch.setattr(ProcessTree, "sample", sample)
    with record(1, interval_s=0.02) as recorder:
        assert within(30, lambda: len(looks) >= 3)
    assert any("missed its turn" in note for note in recorder.telemetry.notes)


def test_a_sampler_that_fails_leaves_a_note_and_the_load_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def sample(self: ProcessTree, t_ns: int) -> None:
        raise RuntimeError("kernel says no")

    monkeypatch.setattr(ProcessTree, "sample", sample)
    with record(1, interval_s=0.02) as recorder:
        time.sleep(0.1)
    assert "the sampler failed: RuntimeError: kernel says no" in recorder.telemetry.notes


def test_a_failing_load_passes_its_error_on_and_ends_the_thread() -> None:
    with pytest.raises(ZeroDivisionError), record(None, interval_s=0.01):
        _ = 1 / 0
    import threading

    assert not any(thread.name == "llmperf-telemetry" for thread in threading.enumerate())
