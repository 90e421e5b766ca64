"""A client process: reads its job and requests, runs the loop, writes progress and records.

Started as a file by ``processes``, isolated from site-packages and environment: it needs the standard library only,
and must send its first request about a tenth of a second later. Frames on standard input and output; one more pipe,
whose number is the only argument, brings the start and the stop, and its end is the death of the parent.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

if __name__ == "__main__":  # the standard library comes first: nothing beside the package may shadow it
    sys.path.append(str(Path(__file__).parents[2]))

from pytest_llmperf.errors import InfraError
from pytest_llmperf.load.clock import KernelStamps
from pytest_llmperf.load.connection import UNIX, Address
from pytest_llmperf.load.drive import Drive, Progress
from pytest_llmperf.load.job import Frames, Job, Limits, Load, frame, pack_record, unpack_request
from pytest_llmperf.load.limits import need_descriptors
from pytest_llmperf.load.loop import Run
from pytest_llmperf.load.polling import Stop
from pytest_llmperf.load.request import PreparedRequest
from pytest_llmperf.load.transport import Transport

__all__ = ["main"]

_READ: Final = 1 << 20
_BATCH: Final = 256
_LATER_NS: Final = 2_000_000
_REPORT_NS: Final = 100_000_000


class Requests:
    """The requests of standard input, as an iterator that waits for the next one."""

    def __init__(self, frames: Frames) -> None:
        self._frames = frames
        self._waits = 0
        self._next: PreparedRequest | None = None
        self._ended = False
        self._again_ns = 0

    def prefill(self, count: int) -> None:
        """Until ``count`` requests are taken, waiting for one is in order."""
        self._waits = count

    def available(self) -> bool:
        """Whether ``next`` returns at once; asks the pipe every 2 ms at most."""
        if self._waits > 0 or self._next is not None or self._ended or self._parse():
            return True
        now_ns = time.monotonic_ns()
        if now_ns < self._again_ns:
            return False
        os.set_blocking(0, False)
        try:
            self._fill()
        except BlockingIOError:
            self._again_ns = now_ns + _LATER_NS
        finally:
            os.set_blocking(0, True)
        return self._parse()

    def __iter__(self) -> Iterator[PreparedRequest]:
        return self

    def __next__(self) -> PreparedRequest:
        while self._next is None and not self._ended and not self._parse():
            self._fill()
        if self._next is None:
            raise StopIteration
        found, self._next = self._next, None
        self._waits -= 1
        return found

    def _parse(self) -> bool:
        found = self._frames.next()
        if found is None:
            return False
        kind, content = found
        if kind == b"e":
            self._ended = True
        else:
            self._next = unpack_request(content)
        return True

    def _fill(self) -> None:
        data = os.read(0, _READ)
        if data:
            self._frames.feed(data)
        else:
            self._ended = True


class Parent:
    """What the parent says while the load runs, heard by a thread that only waits."""

    def __init__(self, fd: int, stop: Stop) -> None:
        self._fd, self._stop = fd, stop
        self._go = threading.Event()
        self._start_ns = 0
        threading.Thread(target=self._listen, name="llmperf-parent", daemon=True).start()

    def wait(self, lead_ns: int) -> int:
        """Say that all is ready; the time to start at."""
        _write(frame(b"r", lead_ns))
        self._go.wait()
        return self._start_ns or time.monotonic_ns()

    def _listen(self) -> None:
        frames = Frames()
        while True:
            data = os.read(self._fd, 4096)
            if not data:
                os._exit(1)  # nobody is left to tell
            frames.feed(data)
            while (found := frames.next()) is not None:
                kind, self._start_ns = found
                if kind == b"s":
                    self._stop.set()
                self._go.set()


class Report:
    """Counters for the parent, ten times a second; skipped rather than waited for."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._due_ns = 0
        self._parent = os.getppid()

    def tick(self) -> None:
        if os.getppid() != self._parent:
            os._exit(1)
        now_ns = time.monotonic_ns()
        if now_ns < self._due_ns:
            return
        self._due_ns = now_ns + _REPORT_NS
        os.set_blocking(1, False)
        try:
            # Shorter than PIPE_BUF: it is written whole or not at all.
            os.write(1, frame(b"p", counters(self._progress)))
        except BlockingIOError:
            pass
        finally:
            os.set_blocking(1, True)


def counters(progress: Progress) -> tuple[Any, ...]:
    """Plain values of ``Progress``, in the order of its fields."""
    return tuple(getattr(progress, name) for name in Progress.__slots__)


def main(control: int) -> int:
    """Run one job; the exit status is 0 also where an error was reported to the parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the whole group; the parent decides
    stop, progress, frames = Stop(), Progress(), Frames()
    parent = Parent(control, stop)
    try:
        while (found := frames.next()) is None:
            data = os.read(0, _READ)
            if not data:
                return 1
            frames.feed(data)
        drive = _run(Job(**found[1]), Requests(frames), parent, stop, progress)
        for at in range(0, len(drive.records), _BATCH):
            _write(frame(b"d", [pack_record(record) for record in drive.records[at : at + _BATCH]]))
        _write(frame(b"p", counters(progress)) + frame(b"f", _summary(drive)))
    except InfraError as error:
        _write(frame(b"x", ("InfraError", str(error))))
    except BaseException:
        import traceback

        _write(frame(b"x", ("", traceback.format_exc())))
    return 0


def _run(job: Job, requests: Requests, parent: Parent, stop: Stop, progress: Progress) -> Drive:
    load, limits = Load(**job.load), Limits(**job.limits)
    need_descriptors(load)
    context = None
    if job.tls:
        from pytest_llmperf.load.tls import tls_context

        context = tls_context(job.ca_file)
    source: Iterator[PreparedRequest] = requests
    if load.endless:
        requests.prefill(max(64, 2 * (load.peak_concurrency or 0)))
    else:
        source = iter(list(requests))
    with KernelStamps() as stamps:
        stamped = stamps.available and job.family != UNIX  # stream sockets of that family have none
        transport = Transport(Address(job.family, job.sockaddr), context, job.tls_name, stamps=stamped)
        try:
            run = Run(
                transport, source, load, limits, stop, progress, job.secrets, realtime=_prefer(realtime=True),
                available=requests.available, gate=parent.wait, on_tick=Report(progress).tick,
                on_quiet=lambda: _prefer(realtime=False),
            )  # fmt: skip
            return run.run()
        finally:
            transport.close()


def _prefer(*, realtime: bool) -> bool:
    """Go ahead of ordinary processes while the load runs, or no longer; whether that is so now.

    A client that waits for a core reads two tokens at a time, and its server is busy on all cores where that computes
    on them. The loop sleeps between reads, so it takes from the server what it would take anyway, only at once.
    """
    if not hasattr(os, "SCHED_RR"):
        return False
    policy, priority = (os.SCHED_RR | os.SCHED_RESET_ON_FORK, 1) if realtime else (os.SCHED_OTHER, 0)
    try:
        os.sched_setscheduler(0, policy, os.sched_param(priority))
    except OSError:  # most users may not
        return False
    return realtime


def _summary(drive: Drive) -> dict[str, Any]:
    client = replace(drive.client, cpu_total_seconds=time.process_time())
    return {
        "window": (drive.window.start_ns, drive.window.end_ns),
        "client": {name: getattr(client, name) for name in type(client).__slots__},
        "monotonic_start_ns": drive.monotonic_start_ns,
        "wall_start": drive.wall_start,
        "complete": drive.complete,
        "warnings": drive.warnings,
    }


def _write(data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(1, view) :]


if __name__ == "__main__":
    status = main(int(sys.argv[1]))
    os._exit(status)  # no interpreter to tear down: nothing here outlives the pipes
