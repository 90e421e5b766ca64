"""Samples of the server taken in a thread of its own while a ``with`` block runs."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import Final, Self, final

from pytest_llmperf.engines import Engine
from pytest_llmperf.plan import ServerSpec
from pytest_llmperf.records import Endpoint
from pytest_llmperf.samples import GpuSample, HostSample, Telemetry
from pytest_llmperf.telemetry.gpu import GpuSampler
from pytest_llmperf.telemetry.host import ProcessTree
from pytest_llmperf.telemetry.log import LogWatch
from pytest_llmperf.telemetry.nvml import ANSWER_S, leave_behind
from pytest_llmperf.telemetry.scraper import Scraper

__all__ = ["Recorder", "Sources", "record", "sources_of"]

_GAP: Final = 3.0
"""A round that is late by this many intervals leaves a gap that is reported."""
_JOIN_S: Final = 5.0
UNKNOWN_PROCESSES: Final = "which processes are the server's is not known: its memory and CPU are not seen"


@dataclass(frozen=True, slots=True)
class Sources:
    """What the server says of itself, where it does; and how it could be known which processes it is."""

    page: Scraper | None = None
    log: LogWatch | None = None
    remedy: str = ""


def sources_of(engine: Engine, endpoint: Endpoint, spec: ServerSpec, log_path: Path | None) -> Sources:
    """The engine's page of metrics and the log of a server that was started here; for one recording."""
    remedy = "gpus would say that start runs it on this machine" if spec.start and not spec.on_other_machine else ""
    return Sources(Scraper.of(engine, endpoint, spec), LogWatch.of(engine, log_path, spec, endpoint), remedy)


def record(
    pid: int | None,
    gpus: Sequence[int] | None = None,
    interval_s: float = 0.2,
    *,
    sources: Sources | None = None,
) -> Recorder:
    """Sample the process tree of ``pid`` (None: a server that is not ours) and ``gpus`` (None: the server computes on
    the CPU) every ``interval_s``, and its ``sources`` each in its own way.

    ``with record(pid) as recorder: ...`` and then ``recorder.telemetry``.
    """
    return Recorder(pid, gpus, interval_s, sources or Sources())


@final
class Recorder:
    """Made by ``record``. Takes one sample on entry and one on exit, whatever the interval.

    Samples are taken in its thread: a call to the driver, or to a file system, may never return.
    """

    def __init__(self, pid: int | None, gpus: Sequence[int] | None, interval_s: float, sources: Sources) -> None:
        self._remedy = sources.remedy
        self._page, self._log = sources.page, sources.log
        self._tree = ProcessTree(pid) if pid is not None else None
        self._gpus = None if gpus is None else tuple(gpus)
        self._memory = GpuSampler(self._gpus or ())
        self._interval_s = interval_s
        self._host: list[HostSample] = []
        self._gpu: list[GpuSample] = []
        self._rounds: list[int] = []
        self._trouble: str | None = None
        self._asks_driver = True
        self._begun, self._stop = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="llmperf-telemetry", daemon=True)

    def __enter__(self) -> Self:
        if self._log is not None:
            self._log.begin()
        if self._page is not None:
            self._page.__enter__()
        self._thread.start()
        self._begun.wait(ANSWER_S)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        # One that has not come to its first sample hangs: it has had its time on entry.
        waited = _JOIN_S if self._begun.is_set() else 0.0
        self._thread.join(waited)
        if self._thread.is_alive():
            self._trouble = "the sampler hung and was left behind"
            if self._gpus and self._asks_driver:
                leave_behind(self._thread, ANSWER_S - waited if waited else 0.0)
        if self._page is not None:
            self._page.__exit__(kind, error, trace)
        if self._log is not None and (self._asks_driver or not self._thread.is_alive()):
            self._log.end()

    @property
    def telemetry(self) -> Telemetry:
        """What was sampled so far; complete after the block."""
        return Telemetry(
            host=tuple(self._host),
            gpu=tuple(self._gpu),
            gpus=self._gpus,
            notes=tuple(self._notes()),
            engine=(self._page.samples() if self._page is not None else ())
            or (self._log.samples if self._log is not None else ()),
            preemption_warnings=self._log.preempted if self._log is not None else None,
            log_errors=self._log.errors if self._log is not None else (),
        )

    def _run(self) -> None:
        try:
            with self._memory:
                self._round()
                self._begun.set()
                due = time.monotonic()
                while True:
                    # Against the clock, not after each round, else the rounds drift; a missed one is not caught up
                    # with.
                    due = max(due + self._interval_s, time.monotonic())
                    if self._stop.wait(due - time.monotonic()):
                        break
                    self._round()
                self._round(last=True)
        except Exception as error:  # telemetry that fails must not end the load that it watches
            self._trouble = _failed(error)
        finally:
            self._begun.set()

    def _round(self, *, last: bool = False) -> None:
        if self._trouble is not None:
            return
        now = time.monotonic_ns()
        self._asks_driver = False
        try:
            sample = self._tree.sample(now) if self._tree is not None else None
            if sample is not None:
                self._host.append(sample)
            if self._log is not None:
                self._log.look(now)
            pids = self._tree.pids if self._tree is not None else ()
            self._asks_driver = True
            self._gpu += self._memory.sample(now, pids, whole=last)
        except Exception as error:
            self._trouble = _failed(error)
        self._rounds.append(now)

    def _notes(self) -> list[str]:
        notes = [note for note in (self._trouble, self._memory.note) if note is not None]
        if self._tree is None:
            notes.append(f"{UNKNOWN_PROCESSES}{f' ({self._remedy})' if self._remedy else ''}")
        elif self._gpus == ():
            notes.append("GPU memory not measured, and no GPU locked: gpus does not say which GPUs the server has")
        if self._tree is not None and not self._host:
            notes.append("no process of the server was left to sample")
        gaps = [(after - before) / 1e9 for before, after in pairwise(self._rounds)]
        late = [gap for gap in gaps if gap > _GAP * self._interval_s]
        if late:
            notes.append(f"the sampler missed its turn; gaps: {len(late)}, the longest {max(late):.1f} s")
        notes += self._page.notes() if self._page is not None else ()
        notes += self._log.notes if self._log is not None else ()
        return notes


def _failed(error: Exception) -> str:
    return f"the sampler failed: {type(error).__name__}: {error}"
