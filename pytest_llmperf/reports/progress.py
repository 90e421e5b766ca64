"""Progress bars while a server starts and a load runs; silent where the output is not a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from typing import final

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

from pytest_llmperf.plan import Plan

__all__ = ["ProgressDisplay"]


@final
class ProgressDisplay:
    """One live line at a time. ``surround(fresh_line)`` is entered where capture must be off."""

    def __init__(self, surround: Callable[[bool], AbstractContextManager[None]]) -> None:
        self._surround = surround
        self._terminal: bool | None = None
        self._drawing: ExitStack | None = None
        self._progress: Progress | None = None
        self._task: TaskID | None = None
        self._standing = ""

    def starting(self, server: str, elapsed_s: float, log_line: str) -> None:
        """A server is starting; ``log_line`` is the last line of its log."""
        self._show(f"starting {server}", None, 0, f"{elapsed_s:.0f} s  {log_line[:60]}")

    def loading(self, plan: Plan, replay: int, done: int, total: int | None, in_flight: int, failed: int) -> None:
        """A load is running: ``done`` of ``total`` requests (None: as many as fit the duration)."""
        which = f" replay {replay + 1}/{plan.replays}" if (plan.replays or 1) > 1 else ""
        trouble = f"  {failed} failed" if failed else ""
        self._show(
            plan.nodeid.rpartition("::")[2] + which,
            total,
            done,
            f"{done} done  {in_flight} in flight{trouble}  {self._standing}",
        )

    def standing(self, text: str) -> None:
        """How a comparison stands; shown beside what runs next."""
        self._standing = text

    def idle(self) -> None:
        """Clear the line."""
        drawing, self._drawing, self._progress, self._task = self._drawing, None, None, None
        if drawing is not None:
            try:
                drawing.close()
            except OSError:  # the terminal has gone, which must not end what was shown there
                self._terminal = False

    def _show(self, what: str, total: int | None, done: int, detail: str) -> None:
        try:
            if self._progress is None:
                self._progress = self._start()
            if self._progress is None:
                return
            if self._task is None:
                self._task = self._progress.add_task(what, total=total, detail=detail)
            self._progress.update(self._task, description=what, total=total, completed=done, detail=detail)
        except OSError:
            self._terminal = False
            self.idle()

    def _start(self) -> Progress | None:
        if self._terminal is None:
            # pytest's capture puts a file in place of the terminal: look beneath it.
            with self._surround(False):
                self._terminal = bool(sys.__stderr__ and sys.__stderr__.isatty())
        if not self._terminal:
            return None
        drawing = ExitStack()
        drawing.enter_context(self._surround(True))
        columns = (
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[detail]}", markup=False),
            TimeElapsedColumn(),
        )
        progress = Progress(*columns, console=Console(file=sys.__stderr__), transient=True, refresh_per_second=5)
        drawing.enter_context(progress)
        self._drawing = drawing
        return progress
