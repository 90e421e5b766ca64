"""What a test waits for, however busy the machine is."""

from __future__ import annotations

import time
from collections.abc import Callable


def within(seconds: float, condition: Callable[[], bool]) -> bool:
    """Whether ``condition`` came true; looked at again and again, for at most ``seconds``."""
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)
    return condition()
