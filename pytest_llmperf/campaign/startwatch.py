"""The memory of a server while it starts, and whether one of its GPUs fails meanwhile."""

from __future__ import annotations

from dataclasses import replace
from typing import Final, final

from pytest_llmperf.engines import computes_on_cpu
from pytest_llmperf.errors import InfraError
from pytest_llmperf.metrics.resources import memory_series
from pytest_llmperf.plan import ServerSpec
from pytest_llmperf.samples import GPU_LOST, StartUp
from pytest_llmperf.telemetry.recorder import Recorder, record

__all__ = ["StartWatch"]

_INTERVAL_S: Final = 0.5
"""Between two looks."""


@final
class StartWatch:
    """Records from the moment that a process is there; a second attempt to start begins anew."""

    def __init__(self) -> None:
        self._recorder: Recorder | None = None

    def record(self, pid: int, spec: ServerSpec) -> Recorder:
        """What records, for a ``with`` block that lasts until the server of ``spec`` is ready."""
        self._recorder = record(pid, None if computes_on_cpu(spec) else spec.gpus, _INTERVAL_S)
        return self._recorder

    def lost(self) -> InfraError | None:
        """The failure of a GPU, where there was one."""
        notes = self._recorder.telemetry.notes if self._recorder is not None else ()
        return next((InfraError(note) for note in notes if note.startswith(GPU_LOST)), None)

    def noted(self, start: StartUp) -> StartUp:
        """``start`` with the most memory that the server had."""
        if self._recorder is None:
            return start
        samples, note = memory_series(self._recorder.telemetry)
        most = max((size for _, size in samples), default=None)
        return replace(start, memory_bytes=most, whole_gpus=bool(samples and note))
