"""What waits in a loop: actions for their time, requests for their turn."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterator
from itertools import count
from typing import Final

from pytest_llmperf.load.request import PreparedRequest

__all__ = ["RequestQueue", "Timers"]

_QUEUE: Final = 64


class Timers:
    """Actions by absolute time. ``work`` counts those that may still begin a request."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, bool, Callable[[int], None]]] = []
        self._order = count()
        self.work = 0

    def at(self, due_ns: int, action: Callable[[int], None], *, work: bool) -> None:
        """Call ``action(now_ns)`` once ``due_ns`` has come."""
        self.work += work
        heapq.heappush(self._heap, (due_ns, next(self._order), work, action))

    def run(self, now_ns: int) -> int:
        """Run what is due; the time of the next one."""
        while self._heap[0][0] <= now_ns:
            _, _, work, action = heapq.heappop(self._heap)
            self.work -= work
            action(now_ns)
        return self._heap[0][0]

    def clear_work(self) -> None:
        self._heap = [entry for entry in self._heap if not entry[2]]
        heapq.heapify(self._heap)
        self.work = 0


class RequestQueue:
    """Requests made a little ahead, since writing a long prompt takes longer than the loop may be away."""

    def __init__(self, source: Iterator[PreparedRequest], available: Callable[[], bool] = lambda: True) -> None:
        """``available``: whether the next request of ``source`` comes at once."""
        self._source, self._available = source, available
        self._ready: deque[PreparedRequest] = deque()
        self._ended = False

    @property
    def wants_more(self) -> bool:
        """Whether ``draw_ahead`` has something to do."""
        return not self._ended and len(self._ready) < _QUEUE and self._available()

    def draw_ahead(self, depth: int = _QUEUE) -> bool:
        """Make one more; False where ``depth`` are ready, the plan has ended or the next one is not there yet."""
        return len(self._ready) < depth and not self._ended and self._available() and self._draw()

    def _draw(self) -> bool:
        if self._ended:
            return False
        request = next(self._source, None)
        if request is None:
            self._ended = True
            return False
        self._ready.append(request)
        return True

    def take(self) -> tuple[PreparedRequest, ...]:
        """The next conversation; empty after the last."""
        if not self._ready and not self._draw():
            return ()
        turns = 1 + self._ready[0].arrival.follows
        while len(self._ready) < turns and self._draw():
            pass
        return tuple(self._ready.popleft() for _ in range(min(turns, len(self._ready))))
