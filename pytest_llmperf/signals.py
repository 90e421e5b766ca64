"""SIGTERM as Ctrl-C: pytest then ends the run in order, stops the server and writes the report."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType

__all__ = ["interrupt_on_sigterm"]


def interrupt_on_sigterm() -> Callable[[], None]:
    """Make SIGTERM raise KeyboardInterrupt; gives a function that restores what was there.

    Does nothing outside the main thread, where Python allows no handlers.
    """
    if threading.current_thread() is not threading.main_thread():
        return lambda: None
    before = signal.signal(signal.SIGTERM, _interrupt)

    def restore() -> None:
        if signal.getsignal(signal.SIGTERM) is _interrupt:
            signal.signal(signal.SIGTERM, before if before is not None else signal.SIG_DFL)

    return restore


def _interrupt(signum: int, frame: FrameType | None) -> None:
    del signum, frame
    raise KeyboardInterrupt("SIGTERM")
