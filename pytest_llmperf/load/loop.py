"""The loop of one run: sockets, timers, limits, and parsing in the time that is left."""

from __future__ import annotations

import gc
import math
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Final

from pytest_llmperf.load.client import Exchange
from pytest_llmperf.load.drive import Drive, Progress
from pytest_llmperf.load.job import Limits, Load
from pytest_llmperf.load.limits import overdue, tick_ns
from pytest_llmperf.load.pacing import NO_CONNECTION, Pace, make_pace
from pytest_llmperf.load.polling import Stop
from pytest_llmperf.load.request import PreparedRequest
from pytest_llmperf.load.transport import Transport
from pytest_llmperf.load.waiting import RequestQueue, Timers
from pytest_llmperf.records import ClientStats, Outcome, Phase, RequestRecord, Window

__all__ = ["Run"]

_NS: Final = 1_000_000_000
_SLICE_READS: Final = 64  # parsed between two looks at the sockets: less than a tenth of a millisecond
_BACKLOG: Final = 32_768  # stored reads from which on responses are parsed while they come; a few at a time cost most
_TOO_MUCH: Final = 65_536  # stored reads, at some 250 bytes each
_CHORE_ROOM_NS: Final = 2_000_000
_CROWD: Final = 40_000  # reads a second from which on they are taken in batches
_NAP_S: Final = 0.000_2  # at most; the system adds its slack of some 50 us
_NAP_SHARE: Final = 0.01  # of the gap between two reads of a stream: longer naps join gaps that happen to be short
_GIVE_UP: Final = 20


class Run:
    """One run. ``in_flight`` holds the exchanges that have begun (to connect, at least) and not ended."""

    def __init__(
        self,
        transport: Transport,
        requests: Iterator[PreparedRequest],
        load: Load,
        limits: Limits,
        stop: Stop,
        progress: Progress,
        secrets: tuple[str, ...],
        *,
        available: Callable[[], bool] = lambda: True,
        gate: Callable[[int], int] = lambda _lead_ns: time.monotonic_ns(),
        on_tick: Callable[[], None] = lambda: None,
        on_quiet: Callable[[], object] = lambda: None,
        realtime: bool = False,
    ) -> None:
        """``available``: whether the next request can be had at once. ``gate`` is told the pace's lead when all is
        ready, and gives the time to start at. ``on_tick`` is called as often as the limits are looked at, ``on_quiet``
        once nothing is in flight any more. ``realtime``: how this process is scheduled, for the record."""
        self.transport = transport
        self.timers = Timers()
        self.in_flight: dict[Exchange, None] = {}
        self.window_end_ns: int | None = None
        self._window_start_ns: int | None = None
        self._queue = RequestQueue(requests, available)
        self._load, self._limits, self._stop, self._progress = load, limits, stop, progress
        self._gate, self._on_tick, self._on_quiet, self._realtime = gate, on_tick, on_quiet, realtime
        self._secrets = tuple(secret for secret in secrets if len(secret) >= 4)
        self._pace: Pace = make_pace(self, load)
        self._give_up = max(_GIVE_UP, 3 * (load.peak_concurrency or 0))
        self._unconnected = 0  # requests in a row without a connection
        self._gave_up = False  # the server went away
        self.drawing = True  # more requests may begin
        self._run_start_ns = 0
        self.cut_ns: int | None = None  # when it was ended before its time
        self._warnings: list[str] = []
        self._ended: deque[Exchange] = deque()
        self._growing: deque[Exchange] = deque()  # whose turn it is to be parsed while it still comes
        self._parsed_reads = 0
        self._ticked = (0, 0)  # time and reads at the last look at the limits
        self._crowded = False
        self._nap_s = _NAP_S
        self._records: list[RequestRecord] = []
        self._last_measured_ns = 0
        self._shared_reads = 0

    def run(self) -> Drive:
        """Everything from the first connection to the last record."""
        while self._queue.draw_ahead(max(64, 2 * (self._load.peak_concurrency or 0))):
            pass
        collecting, thawed = gc.isenabled(), gc.get_freeze_count() == 0
        gc.collect()
        gc.freeze()
        gc.disable()
        cpu = time.thread_time()
        self.transport.begin(self._stop.fileno(), self._on_sent, self._on_end)
        begun_ns = self._run_start_ns = time.monotonic_ns()
        try:
            self._tick(begun_ns)
            self._pace.open_ahead()
            while not self._stop.is_set() and any(map(self._opening, self.in_flight)):
                self._step()
            start_ns = self._gate(self._pace.lead_ns())
            start_ns = start_ns if self._stop.is_set() else self._pace.start(start_ns)
            wall_start = time.time() + (start_ns - time.monotonic_ns()) / _NS
            while self.in_flight or self.timers.work:
                self._step()
            wall_ns = time.monotonic_ns() - begun_ns
            cpu = time.thread_time() - cpu
            self._on_quiet()
            while self._ended:
                self._parse(None)
        finally:
            if collecting:
                gc.enable()
            if thawed:
                gc.unfreeze()
        self._records.sort(key=lambda record: record.index)
        return Drive(
            records=tuple(self._records),
            window=self._window(start_ns),
            client=self._client(cpu, wall_ns / _NS),
            monotonic_start_ns=start_ns,
            wall_start=wall_start,
            complete=self.cut_ns is None and not self._gave_up,
            warnings=tuple(self._warnings),
        )

    # --- what a pace uses

    def draw(self) -> tuple[PreparedRequest, ...]:
        """The next conversation; empty after the last, and once no more may begin."""
        return self._queue.take() if self.drawing else ()

    def launch(self, exchange: Exchange) -> None:
        """Begin an exchange: it gets a connection and, unless held, is sent once that is open."""
        self.in_flight[exchange] = None
        self._progress.in_flight = len(self.in_flight)
        self.transport.attach(exchange)

    def open_window(self, at_ns: int) -> None:
        """The window begins with the first measured request; later calls change nothing."""
        if self._window_start_ns is None:
            self._window_start_ns = at_ns
            if self._load.duration is not None:
                self.window_end_ns = at_ns + round(self._load.duration * _NS)

    # --- the loop

    def _opening(self, exchange: Exchange) -> bool:
        return not self.transport.ready(exchange)

    def _step(self) -> None:
        """Wait for sockets or timers and react; parse a little where neither has anything."""
        if self._stop.is_set() and self.cut_ns is None:
            self._cut("the run was stopped")
            return
        now_ns = time.monotonic_ns()
        room_ns = self.timers.run(now_ns) - now_ns
        chores = room_ns > _CHORE_ROOM_NS and self._has_chores()
        if self._crowded and room_ns > _CHORE_ROOM_NS:
            # The kernel has the times; reads that wait for each other cost less, and a stream is far from its next.
            if chores:
                self._chore()
            else:
                time.sleep(self._nap_s)
        busy = self.transport.wait(0 if chores else max(0, room_ns) / _NS)
        if (chores and not busy) or self._backlog > _TOO_MUCH:
            self._chore()

    @property
    def _backlog(self) -> int:
        """Reads that are stored and not parsed."""
        return self.transport.meter.reads - self._parsed_reads

    def _has_chores(self) -> bool:
        if self.drawing and self._queue.wants_more:
            return True
        # Without kernel stamps a read waits for whatever we are at, so parsing waits until it must be.
        if not self.transport.stamps:
            return self._backlog > _TOO_MUCH // 2
        return bool(self._ended) or self.transport.meter.reads - self._parsed_reads > _BACKLOG

    def _chore(self) -> None:
        """Something that can wait, in a slice that nobody notices."""
        if self.drawing and self._queue.draw_ahead():
            return
        if self._ended:
            self._parse(_SLICE_READS)
        elif self._backlog > _BACKLOG:
            if not self._growing:
                self._growing = deque(self.in_flight)
            if self._growing:
                exchange = self._growing.popleft()
                exchange.digest(_SLICE_READS)
                self._settle(exchange)

    def _tick(self, now_ns: int) -> None:
        """Look at the limits; a coarse timer, so that reads need not."""
        self.transport.clock.refresh(now_ns)
        reads = self.transport.meter.reads
        rate = (reads - self._ticked[1]) / max(1e-3, (now_ns - self._ticked[0]) / _NS)
        self._crowded, self._ticked = self.transport.stamps and rate > _CROWD, (now_ns, reads)
        self._nap_s = min(_NAP_S, _NAP_SHARE * len(self.in_flight) / max(1.0, rate))
        self._on_tick()
        self.timers.at(now_ns + tick_ns(self._limits), self._tick, work=False)
        if now_ns - self._run_start_ns > self._limits.run * _NS and self.cut_ns is None:
            self._cut(f"the run's limit of {self._limits.run:g} s was reached")
            return
        for exchange in list(self.in_flight):
            late = overdue(exchange, self._limits, now_ns)
            if late is not None:
                self.transport.abort(exchange, *late)

    def _cut(self, why: str) -> None:
        """End the run now. Requests in flight are cut; those that were not sent leave no record."""
        self.cut_ns = time.monotonic_ns()
        self.drawing = False
        self._warnings.append(why)
        self.timers.clear_work()
        for exchange in list(self.in_flight):
            self.transport.abort(exchange, Outcome.CUT, why)

    def _on_sent(self, exchange: Exchange) -> None:
        self._unconnected = 0
        self._progress.sent += 1
        if exchange.request.arrival.phase is Phase.MEASURED and exchange.sent_ns is not None:
            self.open_window(exchange.sent_ns)

    def _on_end(self, exchange: Exchange) -> None:
        self.in_flight.pop(exchange, None)
        measured = exchange.request.arrival.phase is Phase.MEASURED
        if exchange.outcome in NO_CONNECTION:
            self._unconnected += 1
            if measured and not self._load.open_loop:
                self.open_window(exchange.ended_ns)
            if self._unconnected == self._give_up and self.drawing:
                self.drawing, self._gave_up = False, True
                self._warnings.append(f"gave up after {self._unconnected} requests in a row without a connection")
        if exchange.outcome is not Outcome.CUT or exchange.sent_ns is not None:
            self._ended.append(exchange)
        progress = self._progress
        progress.in_flight = len(self.in_flight)
        progress.finished += 1
        self._pace.ended(exchange)

    # --- from raw reads to records

    def _parse(self, reads: int | None) -> None:
        """Parse a part of the oldest ended exchange; with its last part it becomes a record."""
        exchange = self._ended[0]
        exchange.digest(reads)
        self._settle(exchange)
        if exchange.stored:
            return
        self._ended.popleft()
        shared = exchange.shared_reads
        record = exchange.record(self._secrets)
        self._records.append(record)
        self._shared_reads += shared
        self._progress.failed += record.failed
        if record.phase is Phase.MEASURED:
            end_ns = record.last_output_ns if record.outcome is Outcome.OK else exchange.ended_ns
            self._last_measured_ns = max(self._last_measured_ns, end_ns or 0)

    def _settle(self, exchange: Exchange) -> None:
        self._parsed_reads += exchange.parsed - exchange.settled
        exchange.settled = exchange.parsed

    def _window(self, start_ns: int) -> Window:
        begin_ns = self._window_start_ns
        if begin_ns is None:
            return Window(start_ns, start_ns)
        end_ns = self._last_measured_ns if self.window_end_ns is None else self.window_end_ns
        if self.cut_ns is not None:
            end_ns = min(end_ns, self.cut_ns)
        return Window(begin_ns, max(begin_ns, end_ns))

    def _client(self, cpu_seconds: float, wall_seconds: float) -> ClientStats:
        meter, stamps = self.transport.meter, self.transport.stamps
        slips = sorted(
            record.sent_ns - record.scheduled_ns - record.cap_wait_ns
            for record in self._records
            if record.phase is Phase.MEASURED and record.sent_ns is not None and record.scheduled_ns is not None
        )
        return ClientStats(
            stamps="kernel" if stamps else "user",
            reads=meter.reads,
            unstamped_reads=meter.unstamped,
            shared_reads=self._shared_reads,
            output_chunks=sum(len(record.chunk_ns) for record in self._records),
            cpu_seconds=cpu_seconds,
            wall_seconds=wall_seconds,
            slip_p99_ns=slips[math.ceil(0.99 * len(slips)) - 1] if slips else None,
            slip_max_ns=slips[-1] if slips else None,
            wake_lag_p99_ns=meter.lag_quantile_ns(0.99) if stamps else None,
            realtime=self._realtime,
            retried=self.transport.retried,
        )
