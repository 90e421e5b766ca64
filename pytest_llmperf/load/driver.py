"""Drives a load against a server and returns what happened, request by request."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Callable, Iterator

from pytest_llmperf.load.clock import KernelStamps
from pytest_llmperf.load.connection import resolve, tls_context
from pytest_llmperf.load.limits import need_descriptors
from pytest_llmperf.load.loop import Drive, Progress, Run
from pytest_llmperf.load.polling import Stop
from pytest_llmperf.load.request import PreparedRequest
from pytest_llmperf.load.transport import Transport
from pytest_llmperf.plan import LoadProfile, TimeLimits
from pytest_llmperf.records import Endpoint

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
    """Send ``requests`` as ``load`` says and wait for them; blocks the calling thread (see ``begin``).

    ``tls`` is for https endpoints; default: ``tls_context()``. What goes wrong on the way to the server and in it
    becomes records. Raises TargetError where the host's name is unknown, InfraError where the client itself cannot
    do what is asked, and what ``requests`` raises. The garbage collector of the process is off meanwhile.
    """
    need_descriptors(load)
    address = resolve(endpoint, limits.connect)
    context = (tls or tls_context()) if endpoint.tls else None
    held = stop or Stop()
    secrets = tuple(value for header in endpoint.headers.values() for value in (header, *header.split()[1:]))
    with KernelStamps() as stamps:
        transport = Transport(address, context, endpoint.host.strip("[]"), stamps=stamps.available)
        try:
            return Run(transport, requests, load, limits, held, progress or Progress(), secrets).run()
        finally:
            transport.close()
            if stop is None:
                held.close()


class LoadThread:
    """A load in a thread of its own: the caller's thread stays free for signals and for watching the server."""

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
    tls: ssl.SSLContext | None = None,
) -> LoadThread:
    """``drive`` in a thread of its own. ``stop.set()`` ends it within about a tenth of a second."""
    return LoadThread(lambda: drive(endpoint, requests, load, limits, stop=stop, progress=progress, tls=tls))
