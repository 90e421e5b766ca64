"""Signals that ask for the end: pytest ends the run in order, stops the server and writes the report."""

from __future__ import annotations

import os
import signal
import sys
import threading
from types import FrameType
from typing import Any, Final, final

__all__ = ["InOrder"]

_AT_ONCE: Final = 3
"""So many signals end pytest without ado. CI systems send SIGINT, then SIGTERM, then SIGKILL."""
_ASKING: Final = ("SIGINT", "SIGTERM", "SIGHUP")
"""SIGHUP: the terminal, or the connection to it, has gone."""


@final
class InOrder:
    """Makes the first signal raise KeyboardInterrupt as Ctrl-C does, whichever of the three it is, and the second only
    be noted: it would break off the stopping of the server. The third ends pytest at once; its guard ends the server.

    Signals that are ignored (``nohup``, ``&``) stay so, and SIGINT its own handler, if it has one. Does nothing outside
    the main thread, where Python allows no handlers.
    """

    def __init__(self) -> None:
        self._count, self._ending = 0, False
        self._before: dict[int, Any] = {}

    def begin(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        for name in _ASKING:
            number = getattr(signal, name, None)
            if number is None:
                continue
            there = signal.getsignal(number)
            if there is signal.SIG_IGN or (number == signal.SIGINT and there is not signal.default_int_handler):
                continue
            self._before[number] = signal.signal(number, self._handle)

    def ending(self) -> None:
        """The run ends in any case: from now on the first signal is only noted as well."""
        self._ending = True

    def restore(self) -> None:
        """Put back what was there."""
        for number, before in self._before.items():
            if signal.getsignal(number) == self._handle:
                signal.signal(number, before if before is not None else signal.SIG_DFL)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        del frame
        self._count += 1
        if self._count >= _AT_ONCE:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        elif self._count == 1 and not self._ending:
            raise KeyboardInterrupt(signal.Signals(number).name)
        else:
            _say("llmperf: still stopping the server and writing the report; a third signal ends at once\n")


def _say(text: str) -> None:
    """Unbuffered: the stream may be in the middle of a write."""
    try:
        os.write(sys.__stderr__.fileno() if sys.__stderr__ is not None else 2, text.encode())
    except (OSError, ValueError):  # the terminal has gone
        return
