"""Client processes: started, fed and stopped from here, their records merged into one ``Drive``.

The loop that reads sockets must not share an interpreter with pytest, telemetry and reports: whoever holds the lock
makes it late. With several processes each takes its share of the streams (closed loop) or every n-th arrival (open
loop); all start at one time of the clock that they share.
"""

from __future__ import annotations

import os
import selectors
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from pytest_llmperf.errors import InfraError
from pytest_llmperf.load.drive import Drive, Progress
from pytest_llmperf.load.job import Frames, Job, Load, frame, pack_request, unpack_record
from pytest_llmperf.load.merge import merge
from pytest_llmperf.load.polling import Stop
from pytest_llmperf.load.request import PreparedRequest
from pytest_llmperf.records import ClientStats, RequestRecord, Window

__all__ = ["drive_in_processes"]

_CHILD: Final = Path(__file__).with_name("child.py")
_READ: Final = 1 << 20
_AHEAD: Final = 256 * 1024
_SHOWN: Final = 4000
_LEAVE_S: Final = 5.0
_APART_NS: Final = 20_000_000


class Client:
    """One client process and the pipes to it."""

    def __init__(self, job: Job) -> None:
        self.pending = bytearray(frame(b"j", job.plain()))
        """Not written yet."""
        hear, self._control = os.pipe()
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-I", "-S", str(_CHILD), str(hear)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, pass_fds=(hear,), bufsize=0,
                start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            os.close(self._control)
            raise InfraError(f"cannot start a client process: {error}") from None
        finally:
            os.close(hear)
        self.lead_ns: int | None = None
        """Its pace's lead; None until it is ready to start."""
        self.progress: Sequence[Any] = ()
        self.records: list[RequestRecord] = []
        self.drive: Drive | None = None
        self._frames = Frames()
        self._errors = bytearray()
        pipes = (self.process.stdin, self.process.stdout, self.process.stderr)
        self.input, self.output, self.errors = (pipe.fileno() for pipe in pipes if pipe is not None)
        os.set_blocking(self.input, False)

    def write(self) -> bool:
        """Write what the pipe takes; True once nothing is pending. A client that has ended takes everything."""
        try:
            while self.pending:
                del self.pending[: os.write(self.input, memoryview(self.pending)[:_AHEAD])]
        except BlockingIOError:
            return False
        except BrokenPipeError:
            self.pending.clear()
        return True

    def tell(self, kind: bytes, start_ns: int = 0) -> None:
        with suppress(BrokenPipeError):
            os.write(self._control, frame(kind, start_ns))

    def read(self) -> bool:
        """React to what it wrote; False once it has closed its output. Raises what it failed with."""
        data = os.read(self.output, _READ)
        self._frames.feed(data)
        while (found := self._frames.next()) is not None:
            self._take(*found)
        return bool(data)

    def listen(self) -> bool:
        """Keep the end of what it printed on standard error; False once that is closed."""
        data = os.read(self.errors, _READ)
        self._errors = (self._errors + data)[-_SHOWN:]
        return bool(data)

    def _take(self, kind: bytes, content: Any) -> None:
        if kind == b"p":
            self.progress = content
        elif kind == b"r":
            self.lead_ns = content
        elif kind == b"d":
            self.records += map(unpack_record, content)
        elif kind == b"f":
            window, client = Window(*content.pop("window")), ClientStats(**content.pop("client"))
            self.drive = Drive(records=tuple(self.records), window=window, client=client, **content)
        elif kind == b"x":
            name, text = content
            raise InfraError(text) if name == "InfraError" else RuntimeError(f"a client process failed:\n{text}")

    def lost(self) -> InfraError:
        """The error of a client that ended without a result."""
        code = self.process.wait()
        said = self._errors.decode("utf-8", "replace").strip()
        end = f"killed by signal {-code}" if code < 0 else f"exit status {code}"
        return InfraError(f"a client process ended before its load did ({end})" + (f":\n{said}" if said else ""))

    def close(self) -> None:
        """End it, whatever it is at, and free its pipes."""
        os.close(self._control)  # it leaves by itself, unless it is over already
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            if pipe is not None:
                pipe.close()
        try:
            self.process.wait(_LEAVE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def drive_in_processes(
    jobs: Sequence[Job], requests: Iterator[PreparedRequest], load: Load, stop: Stop, progress: Progress
) -> Drive:
    """Run one process for each job and wait for all. Raises InfraError, and what ``requests`` raises."""
    clients: list[Client] = []
    try:
        for job in jobs:
            clients.append(Client(job))
        _attend(clients, requests, load, stop, progress)
        return merge([client.drive for client in clients if client.drive is not None], load.duration)
    finally:
        for client in clients:
            client.close()


def _attend(
    clients: Sequence[Client], requests: Iterator[PreparedRequest], load: Load, stop: Stop, progress: Progress
) -> None:
    """Everything between start and end: feed, start, stop and read the clients."""
    feed = Feed(clients, requests, load)
    going = stopped = False
    with selectors.DefaultSelector() as selector:
        selector.register(stop.fileno(), selectors.EVENT_READ)
        for client in clients:
            selector.register(client.output, selectors.EVENT_READ, client.read)
            selector.register(client.errors, selectors.EVENT_READ, client.listen)
        while any(client.drive is None for client in clients):
            hungry = feed.go_on(selector)
            if stop.is_set() and not stopped:
                stopped = True
                selector.unregister(stop.fileno())
                for client in clients:
                    client.tell(b"s")
            for key, _ in selector.select(0 if hungry else None):
                if key.data is not None and key.fd != stop.fileno() and not key.data():
                    selector.unregister(key.fd)
            for client in clients:
                if client.drive is None and client.output not in selector.get_map():
                    raise client.lost()
            if not going and not stopped and all(client.lead_ns is not None for client in clients):
                going = True
                _start(clients)
            _sum_up(clients, progress)


class Feed:
    """Hands the requests to the clients as fast as they take them.

    A finite plan is dealt out beforehand, in the proportion of the clients' slots. It is not a common pool, so one
    client may be done before the others: with ``n`` conversations each, of lengths with a coefficient of variation
    ``cv``, about ``cv / sqrt(n)`` of the run before. A load that needs several clients has hundreds of slots in each;
    then this is little beside the last round of any closed loop, in which slots fall idle one by one.
    """

    def __init__(self, clients: Sequence[Client], requests: Iterator[PreparedRequest], load: Load) -> None:
        self._clients, self._requests, self._endless = clients, requests, load.endless
        self._slots = load.peak_concurrency or load.max_concurrency or len(clients)
        self._turn = 0
        self._taker = clients[0]
        self._waiting: set[int] = set()
        self._over = False

    def go_on(self, selector: selectors.BaseSelector) -> bool:
        """Make and write some more; True where there is more to do at once."""
        for client in self._clients:
            blocked = client.input in self._waiting
            if client.pending and not blocked and not client.write():
                self._waiting.add(client.input)
                selector.register(client.input, selectors.EVENT_WRITE, self._writable(client))
        if self._over:
            return False
        taker = self._next()
        if taker is None:
            return False
        request = next(self._requests, None)
        if request is None:
            self._over = True
            for each in self._clients:
                each.pending += frame(b"e", None)
            return True
        if request.arrival.turn == 0:
            self._turn += 1
            self._taker = taker
        # A conversation stays where it began, for its turns follow each other's answers.
        self._taker.pending += frame(b"q", pack_request(request))
        return True

    def _writable(self, client: Client) -> Any:
        def react() -> bool:
            self._waiting.discard(client.input)
            return False

        return react

    def _next(self) -> Client | None:
        """Who gets the next request: slot by slot, or where only the clock ends the load whoever has room."""
        if self._endless:
            return next((each for each in self._clients if each.input not in self._waiting), None)
        # As ``Load.share`` deals out the slots.
        turn = self._clients[self._turn % self._slots % len(self._clients)]
        return turn if len(turn.pending) < _AHEAD else None


def _start(clients: Sequence[Client]) -> None:
    """All at one time: each is told its own, earlier by its lead, so that the timetables begin together."""
    lead_ns = max(client.lead_ns or 0 for client in clients)
    start_ns = time.monotonic_ns() + (_APART_NS if len(clients) > 1 else 0)
    for client in clients:
        client.tell(b"g", start_ns + lead_ns - (client.lead_ns or 0))


def _sum_up(clients: Sequence[Client], progress: Progress) -> None:
    """The clients' counters as those of one load."""
    known = [Progress(*client.progress) for client in clients if client.progress]
    if not known:
        return
    progress.sent = sum(each.sent for each in known)
    progress.in_flight = sum(each.in_flight for each in known)
    progress.finished = sum(each.finished for each in known)
    progress.failed = sum(each.failed for each in known)
