"""Ending what is left of a launch whose guard can't: known by pid and start time, or by the name of the launch."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import psutil

from pytest_llmperf.plan import LAUNCH_VARIABLE
from pytest_llmperf.server.guardtalk import end_of
from pytest_llmperf.server.tree import Process, failure, kill, runs, started

__all__ = ["ENDED_SECONDS", "run_ended", "survivors", "sweep"]

ENDED_SECONDS: Final = 60.0
"""What a command gets that ends a server elsewhere."""
_KILL_SECONDS: Final = 15.0
_SAID_BYTES: Final = 1 << 16


def survivors(launch: str, known: Iterable[Process] = ()) -> list[Process]:
    """What still runs of ``launch``: of ``known`` processes, of ours that carry its name, and all below them.

    A process is known again by pid and start time together. Where the system tells no start times, and wherever a
    process says which launch it is of, that must be this one. Some engines overwrite their environment to show a title:
    of these only ``known`` ones are found.
    """
    found: dict[int, psutil.Process] = {}
    noted = {pid: begun for pid, begun in known if runs((pid, begun))}
    for process in psutil.process_iter():
        try:
            if process.pid == os.getpid() or process.uids().real != os.getuid():
                continue
            name = _launch_of(process)
            same = bool(noted.get(process.pid)) and name is None
            if name == launch or same:
                found |= {each.pid: each for each in (process, *process.children(recursive=True))}
        except (psutil.Error, OSError):  # gone
            continue
    found.pop(os.getpid(), None)
    return [each for pid in found if runs(each := (pid, noted.get(pid) or started(pid)))]


def sweep(launch: str, known: Sequence[Process] = (), *, grace: float = 0.0) -> tuple[int, ...]:
    """End all ``survivors``: SIGTERM, ``grace`` seconds, SIGKILL. Pids that outlasted even that."""

    for process in survivors(launch, known) if grace else ():
        kill(process, signal.SIGTERM)
    deadline, patient = time.monotonic() + grace + _KILL_SECONDS, time.monotonic() + grace
    while (found := survivors(launch, known)) and time.monotonic() < deadline:
        for process in found if time.monotonic() >= patient else ():
            kill(process, signal.SIGKILL)
        time.sleep(0.05)
    return tuple(pid for pid, _ in found)


def run_ended(command: Sequence[str], env: Mapping[str, str], cwd: str) -> tuple[str | None, str]:
    """Run the command that ends a server elsewhere. What went wrong, or None; and the end of what it said."""
    with tempfile.TemporaryFile() as output:  # a pipe might be held open by what it leaves running
        try:
            done = subprocess.Popen(
                command, env=env, cwd=cwd, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                start_new_session=True,
            )  # fmt: skip
        except (OSError, ValueError) as error:
            return f"can't be executed: {error}", ""
        code = None
        try:
            code = done.wait(ENDED_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(done.pid, signal.SIGKILL)
            done.wait()
        said = end_of(output.fileno()).decode(errors="replace")
    return failure(code, ENDED_SECONDS, said), said


def _launch_of(process: psutil.Process) -> str | None:
    """The launch that ``process`` says it is of; None where it says none, or nothing at all."""
    try:
        return process.environ().get(LAUNCH_VARIABLE)
    except (psutil.Error, OSError):
        return None
