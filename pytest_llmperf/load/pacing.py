"""When requests go out: closed loop (a fixed number in flight) and open loop (a timetable)."""

from __future__ import annotations

import heapq
import time
from collections import deque
from collections.abc import Callable, Iterator
from itertools import count
from typing import TYPE_CHECKING, Final, Protocol

from pytest_llmperf.load.client import Exchange
from pytest_llmperf.load.request import PreparedRequest
from pytest_llmperf.records import Outcome, Phase

if TYPE_CHECKING:
    from pytest_llmperf.load.loop import Run

__all__ = ["NO_CONNECTION", "ClosedLoop", "OpenLoop", "Pace", "RequestQueue", "Timers"]

NO_CONNECTION: Final = frozenset({Outcome.CONNECT_FAILED, Outcome.CONNECT_TIMEOUT, Outcome.TLS_FAILED})

_BACKOFF_NS: Final = 50_000_000
_MIN_LEAD_NS: Final = 100_000_000
_MAX_LEAD_NS: Final = 2_000_000_000
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

    def take(self) -> PreparedRequest | None:
        """The next request; None after the last."""
        if not self._ready:
            self._draw()
        return self._ready.popleft() if self._ready else None


class Pace(Protocol):
    """Decides when the next request begins."""

    def open_ahead(self) -> None:
        """Open what the first requests need, before the clock starts."""

    def lead_ns(self) -> int:
        """How long after ``start_ns`` the timetable begins; known once the first connections are open."""

    def start(self, start_ns: int) -> int:
        """Begin; returns the start of the run's timetable."""

    def ended(self, exchange: Exchange) -> None:
        """An exchange is over."""


class ClosedLoop:
    """``concurrency`` slots; each sends its next request as soon as it is free.

    After a connection that did not open, or a status that is no 200, a slot waits 50 ms: a server that refuses must not
    be hammered in a tight loop.
    """

    def __init__(self, run: Run, concurrency: int) -> None:
        self._run, self._concurrency = run, concurrency
        self._started = False

    def open_ahead(self) -> None:
        for _ in range(self._concurrency):
            self._begin(held=True)

    def lead_ns(self) -> int:
        return 0

    def start(self, start_ns: int) -> int:
        self._started = True
        run = self._run
        first_wave = list(run.in_flight)
        for exchange in first_wave:
            run.transport.release(exchange)
        for _ in range(self._concurrency - len(first_wave)):  # slots whose connection failed, or without a request
            run.timers.at(start_ns + _BACKOFF_NS, self._next, work=True)
        return start_ns

    def ended(self, exchange: Exchange) -> None:
        if not self._started:
            return
        if exchange.outcome in NO_CONNECTION or (exchange.head is not None and exchange.head.status != 200):
            self._run.timers.at(exchange.ended_ns + _BACKOFF_NS, self._next, work=True)
        else:
            self._begin(held=False)

    def _next(self, _now_ns: int) -> None:
        self._begin(held=False)

    def _begin(self, *, held: bool) -> None:
        run = self._run
        if run.window_end_ns is not None and time.monotonic_ns() >= run.window_end_ns:
            return
        request = run.draw()
        if request is not None:
            run.launch(Exchange(request, None, held))


class OpenLoop:
    """An absolute timetable: each request is due at its own time, whatever became of the others.

    Its connection is taken or opened some time ahead: three times as long as the first connection took, at least
    100 ms.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._lead_ns = _MIN_LEAD_NS
        self._start_ns = 0
        self._next: PreparedRequest | None = None
        self._first: Exchange | None = None

    def open_ahead(self) -> None:
        request = self._run.draw()
        if request is not None:
            self._first = Exchange(request, 0, held=True)
            self._run.launch(self._first)

    def lead_ns(self) -> int:
        first = self._first
        if first is not None and first.connected_ns is not None and first.connect_start_ns is not None:
            lead = 3 * (first.connected_ns - first.connect_start_ns)
            self._lead_ns = min(_MAX_LEAD_NS, max(_MIN_LEAD_NS, lead))
        return self._lead_ns

    def start(self, start_ns: int) -> int:
        first = self._first
        if first is None:
            return start_ns
        self.lead_ns()
        # The timetable begins a lead from now, so that its first requests are opened ahead as well.
        self._start_ns = start_ns + self._lead_ns
        self._plan(first)
        self._follow()
        return self._start_ns

    def ended(self, exchange: Exchange) -> None:
        pass

    def _plan(self, exchange: Exchange) -> None:
        offset_ns = exchange.request.arrival.offset_ns
        assert offset_ns is not None, "an open loop needs arrivals with times"
        exchange.scheduled_ns = due = self._start_ns + offset_ns
        if exchange.request.arrival.phase is Phase.MEASURED:
            self._run.open_window(due)
        if exchange in self._run.in_flight:
            self._run.timers.at(due, lambda _: self._release(exchange), work=True)

    def _release(self, exchange: Exchange) -> None:
        if exchange in self._run.in_flight:
            self._run.transport.release(exchange)

    def _follow(self) -> None:
        """Wait for the moment to prepare the next arrival; one such timer at a time, arrivals being in order."""
        self._next = self._run.draw()
        if self._next is not None and self._next.arrival.offset_ns is not None:
            due = self._start_ns + self._next.arrival.offset_ns
            self._run.timers.at(due - self._lead_ns, self._prepare, work=True)

    def _prepare(self, _now_ns: int) -> None:
        if self._next is not None:
            exchange = Exchange(self._next, 0, held=True)
            self._run.launch(exchange)
            self._plan(exchange)
        self._follow()
