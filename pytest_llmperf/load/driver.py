"""Drives a load against a server and returns what happened, request by request."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_llmperf.load.clock import KernelStamps
from pytest_llmperf.load.connection import UNIX, resolve
from pytest_llmperf.load.drive import Drive, Progress
from pytest_llmperf.load.job import Job, Limits, Load
from pytest_llmperf.load.limits import need_descriptors
from pytest_llmperf.load.loop import Run
from pytest_llmperf.load.polling import Stop
from pytest_llmperf.load.request import PreparedRequest
from pytest_llmperf.load.transport import Transport
from pytest_llmperf.records import Endpoint

if TYPE_CHECKING:
    import ssl

    from pytest_llmperf.plan import LoadProfile, TimeLimits

__all__ = ["Drive", "LoadThread", "Progress", "Stop", "begin", "drive"]


def drive(
    endpoint: Endpoint,
    requests: Iterator[PreparedRequest],
    load: LoadProfile,
    limits: TimeLimits,
    *,
    stop: Stop | None = None,
    progress: Progress | None = None,
    tls: ssl.SSLContext | None = None,
) -> Drive:
    """Send ``requests`` as ``load`` says and wait for them, in the calling thread (``begin`` has a process for it).

    ``tls`` is for https endpoints; default: ``tls_context()``. What goes wrong on the way to the server and in it
    becomes records. Raises TargetError where the host's name is unknown, InfraError where the client itself cannot
    do what is asked, and what ``requests`` raises. The garbage collector of the process is off meanwhile.
    """
    plain, bounds = Load.of(load), Limits.of(limits)
    need_descriptors(plain)
    address = resolve(endpoint, bounds.connect)
    held = stop or Stop()
    if endpoint.tls and tls is None:
        from pytest_llmperf.load.tls import tls_context

        tls = tls_context()
    with KernelStamps() as stamps:
        stamped = stamps.available and address.family != UNIX  # stream sockets of that family have none
        transport = Transport(address, tls if endpoint.tls else None, _tls_name(endpoint), stamps=stamped)
        try:
            run = Run(transport, requests, plain, bounds, held, progress or Progress(), _secrets(endpoint))
            return run.run()
        finally:
            transport.close()
            if stop is None:
                held.close()


class LoadThread:
    """A load that a thread waits for: the caller's thread stays free for signals and for watching the server."""

    def __init__(self, work: Callable[[], Drive]) -> None:
        self._work = work
        self._drive: Drive | None = None
        self._error: BaseException | None = None
        # Not Thread.join: CPython 3.11 and 3.12 take a thread for dead when Ctrl-C interrupts a join.
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="llmperf-load", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._drive = self._work()
        except BaseException as error:  # raised again in the thread that asks for the result
            self._error = error
        finally:
            self._over.set()

    def join(self, timeout_s: float | None = None) -> bool:
        """Wait; True once the load is over."""
        return self._over.wait(timeout_s)

    def result(self) -> Drive:
        """What ``drive`` returned, or raises what it raised; waits for it."""
        self._over.wait()
        if self._error is not None:
            raise self._error
        assert self._drive is not None
        return self._drive


def begin(
    endpoint: Endpoint,
    requests: Iterator[PreparedRequest],
    load: LoadProfile,
    limits: TimeLimits,
    *,
    stop: Stop,
    progress: Progress | None = None,
    ca_file: Path | None = None,
    clients: int = 1,
) -> LoadThread:
    """Send ``requests`` as ``load`` says from ``clients`` processes of their own.

    ``stop.set()`` ends it within about a tenth of a second. What ``drive`` raises is raised by ``result``.
    """
    from pytest_llmperf.load.processes import drive_in_processes

    plain = Load.of(load)
    clients = min(clients, plain.most_parts or clients)

    def work() -> Drive:
        address = resolve(endpoint, limits.connect)
        jobs = [
            Job(
                family=address.family,
                sockaddr=address.sockaddr,
                tls=endpoint.tls,
                tls_name=_tls_name(endpoint),
                ca_file=None if ca_file is None else str(ca_file),
                load=plain.share(part, clients),
                limits=Limits.of(limits).plain(),
                secrets=_secrets(endpoint),
            )
            for part in range(clients)
        ]
        return drive_in_processes(jobs, requests, plain, stop, progress or Progress())

    return LoadThread(work)


def _tls_name(endpoint: Endpoint) -> str:
    return endpoint.host.strip("[]")


def _secrets(endpoint: Endpoint) -> tuple[str, ...]:
    """Header values, and what follows their scheme (``Bearer KEY``): servers quote keys that they refuse."""
    return tuple(value for header in endpoint.headers.values() for value in (header, *header.split()[1:]))
