"""When requests go out: closed loop (so many in flight) and open loop (a timetable, perhaps with a cap).

A pace knows one process's part of the load and nothing of the others.
"""

from __future__ import annotations

import time
from collections import deque
from functools import partial
from typing import Final, Protocol

from pytest_llmperf.load.client import Exchange
from pytest_llmperf.load.job import Load
from pytest_llmperf.load.request import PreparedRequest
from pytest_llmperf.load.transport import Transport
from pytest_llmperf.load.waiting import Timers
from pytest_llmperf.records import Outcome, Phase

__all__ = ["NO_CONNECTION", "ClosedLoop", "OpenLoop", "Pace", "make_pace"]

NO_CONNECTION: Final = frozenset({Outcome.CONNECT_FAILED, Outcome.CONNECT_TIMEOUT, Outcome.TLS_FAILED})

_BACKOFF_NS: Final = 50_000_000
_MIN_LEAD_NS: Final = 100_000_000
_MAX_LEAD_NS: Final = 2_000_000_000


class Paced(Protocol):
    """What a pace uses of its run; ``loop.Run`` is one, and says what each is."""

    transport: Transport
    timers: Timers
    in_flight: dict[Exchange, None]
    window_end_ns: int | None
    drawing: bool
    cut_ns: int | None

    def draw(self) -> tuple[PreparedRequest, ...]: ...
    def launch(self, exchange: Exchange) -> None: ...
    def open_window(self, at_ns: int) -> None: ...


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


def make_pace(run: Paced, load: Load) -> Pace:
    """The pace of a load."""
    return OpenLoop(run, load.max_concurrency) if load.open_loop else ClosedLoop(run, load)


class ClosedLoop:
    """As many slots as the level of the moment; each goes through one conversation after the other.

    The first ones begin evenly within ``stagger_ns``: requests that begin together move together, and each waits for
    the prompts of the others (a convoy). After a connection that did not open, or a status that is no 200, a slot waits
    50 ms: a server that refuses must not be hammered in a tight loop.
    """

    def __init__(self, run: Paced, load: Load) -> None:
        self._run, self._load = run, load
        self._levels = deque(load.levels)
        self._level = self._levels.popleft()[1]
        self._busy = 0  # slots at work: in flight, thinking or waiting
        self._turns: dict[Exchange, tuple[PreparedRequest, ...]] = {}
        self._start_ns: int | None = None
        self._over = False  # no conversation is left to begin

    def open_ahead(self) -> None:
        for _ in range(self._level):
            self._next(held=True)

    def lead_ns(self) -> int:
        return 0

    def start(self, start_ns: int) -> int:
        self._start_ns = start_ns
        run, load = self._run, self._load
        for slot, exchange in enumerate(list(run.in_flight)):
            # Slots are dealt out to the processes in turn, so all of them together begin evenly.
            number = slot * load.parts + load.part
            due_ns = start_ns + load.stagger_ns * number // max(1, self._level * load.parts)
            if due_ns > start_ns:
                run.timers.at(due_ns, partial(self._release, exchange), work=True)
            else:
                run.transport.release(exchange)
        if self._busy < self._level:  # slots whose connection failed, or without a request
            run.timers.at(start_ns + _BACKOFF_NS, self._fill, work=True)
        self._await_level()
        self._stay()
        return start_ns

    def ended(self, exchange: Exchange) -> None:
        turns = self._turns.pop(exchange, ())
        if self._start_ns is None:
            self._busy -= 1  # before the start a conversation whose connection failed is over
            return
        wait_ns = turns[0].arrival.think_ns if turns else 0
        if exchange.outcome in NO_CONNECTION or (exchange.head is not None and exchange.head.status != 200):
            wait_ns = max(wait_ns, _BACKOFF_NS)
        if wait_ns and self._may_begin():
            self._run.timers.at(exchange.ended_ns + wait_ns, lambda now_ns: self._go_on(now_ns, turns), work=True)
        else:
            self._go_on(exchange.ended_ns, turns)

    def _go_on(self, now_ns: int, turns: tuple[PreparedRequest, ...]) -> None:
        """A slot is free for its next turn, or for another conversation."""
        if not (turns and self._may_begin() and self._launch(turns, held=False)):
            self._busy -= 1
            self._fill(now_ns)
            self._stay()

    def _fill(self, _now_ns: int) -> None:
        while self._busy < self._level and self._next(held=False):
            pass

    def _next(self, *, held: bool) -> bool:
        """Begin a conversation; False where there is none or no more may begin."""
        turns = self._run.draw() if self._may_begin() else ()
        if not turns:
            self._over = True
            return False
        self._busy += 1
        return self._launch(turns, held=held)

    def _may_begin(self) -> bool:
        end_ns = self._run.window_end_ns
        return self._run.drawing and (end_ns is None or time.monotonic_ns() < end_ns)

    def _launch(self, turns: tuple[PreparedRequest, ...], *, held: bool) -> bool:
        exchange = Exchange(turns[0], None, held)
        self._turns[exchange] = turns[1:]
        self._run.launch(exchange)
        return True

    def _release(self, exchange: Exchange, _now_ns: int) -> None:
        if exchange in self._run.in_flight:
            self._run.transport.release(exchange)

    def _await_level(self) -> None:
        """One timer for the next change of the level."""
        if self._levels and self._start_ns is not None:
            self._run.timers.at(self._start_ns + self._levels[0][0], self._change, work=False)

    def _change(self, now_ns: int) -> None:
        self._level = self._levels.popleft()[1]
        self._fill(now_ns)
        self._await_level()
        self._stay()

    def _stay(self) -> None:
        """Keep the run going while the level is 0 for a time."""
        if not self._busy and not self._over and self._levels and self._start_ns is not None and self._may_begin():
            self._run.timers.at(self._start_ns + self._levels[0][0], lambda _: None, work=True)


class OpenLoop:
    """An absolute timetable: each request is due at its own time, whatever became of the others.

    Its connection is taken or opened some time ahead: three times as long as the first connection took, at least
    100 ms. With a cap, what is due while so many are in flight waits in line and is sent when one ends. The turns of a
    conversation after its first are due when the answer before has ended and the think time is over.
    """

    def __init__(self, run: Paced, cap: int | None) -> None:
        self._run, self._cap = run, cap
        self._lead_ns = _MIN_LEAD_NS
        self._start_ns = 0
        self._next: tuple[PreparedRequest, ...] = ()
        self._first: Exchange | None = None
        self._turns: dict[Exchange, tuple[PreparedRequest, ...]] = {}
        self._active: set[Exchange] = set()  # sent, or on its way to it
        self._line: deque[tuple[Exchange, bool]] = deque()  # due, and whether the cap holds it back
        self._moving = False

    def open_ahead(self) -> None:
        turns = self._run.draw()
        if turns:
            self._first = Exchange(turns[0], 0, held=True)
            self._turns[self._first] = turns[1:]
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
        offset_ns = first.request.arrival.offset_ns
        assert offset_ns is not None, "an open loop needs arrivals with times"
        self._plan(first, self._start_ns + offset_ns)
        self._follow()
        return self._start_ns

    def ended(self, exchange: Exchange) -> None:
        turns = self._turns.pop(exchange, ())
        self._active.discard(exchange)
        self._move()
        if turns and self._start_ns and self._run.drawing:
            due_ns = exchange.ended_ns + turns[0].arrival.think_ns
            lead_ns = due_ns - self._lead_ns
            if lead_ns > exchange.ended_ns:
                self._run.timers.at(lead_ns, lambda _: self._prepare(turns, due_ns), work=True)
            else:
                self._prepare(turns, due_ns)

    def _plan(self, exchange: Exchange, due_ns: int) -> None:
        exchange.scheduled_ns = due_ns
        arrival = exchange.request.arrival
        if arrival.phase is Phase.MEASURED and arrival.turn == 0:
            self._run.open_window(due_ns)
        if exchange in self._run.in_flight or exchange.connection < 0:
            self._run.timers.at(due_ns, partial(self._due, exchange), work=True)

    def _due(self, exchange: Exchange, _now_ns: int) -> None:
        self._line.append((exchange, bool(self._line) or not self._room()))
        self._move()

    def _room(self) -> bool:
        return self._cap is None or len(self._active) < self._cap

    def _move(self) -> None:
        """Send from the line what the cap allows, in its order."""
        if self._moving or self._run.cut_ns is not None:  # an exchange that fails at once comes back here
            return
        self._moving = True
        while self._line and self._room():
            exchange, held_back = self._line.popleft()
            if held_back and exchange.scheduled_ns is not None:
                exchange.cap_wait_ns = max(0, time.monotonic_ns() - exchange.scheduled_ns)
            self._send(exchange)
        self._moving = False

    def _send(self, exchange: Exchange) -> None:
        run = self._run
        if exchange in run.in_flight:
            self._active.add(exchange)
            run.transport.release(exchange)
        elif exchange.connection < 0 and run.drawing:  # nothing was opened ahead
            self._active.add(exchange)
            exchange.held = False
            run.launch(exchange)

    def _follow(self) -> None:
        """Wait for the moment to prepare the next arrival; one such timer at a time, arrivals being in order."""
        self._next = self._run.draw()
        if self._next and self._next[0].arrival.offset_ns is not None:
            due = self._start_ns + self._next[0].arrival.offset_ns
            self._run.timers.at(due - self._lead_ns, self._arrive, work=True)

    def _arrive(self, _now_ns: int) -> None:
        turns, self._next = self._next, ()
        if turns and turns[0].arrival.offset_ns is not None:
            self._prepare(turns, self._start_ns + turns[0].arrival.offset_ns)
        self._follow()

    def _prepare(self, turns: tuple[PreparedRequest, ...], due_ns: int) -> None:
        """Open a connection for the first of ``turns``, unless others already wait for a place under the cap."""
        end_ns, later_turn = self._run.window_end_ns, turns[0].arrival.turn > 0
        if later_turn and (not self._run.drawing or (end_ns is not None and due_ns >= end_ns)):
            return
        exchange = Exchange(turns[0], due_ns, held=True)
        self._turns[exchange] = turns[1:]
        if not self._line:
            self._run.launch(exchange)
        self._plan(exchange, due_ns)
