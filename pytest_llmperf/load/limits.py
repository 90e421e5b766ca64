"""Limits of a run: time-outs of its requests, file descriptors of this process."""

from __future__ import annotations

import resource
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pytest_llmperf.errors import InfraError
from pytest_llmperf.load.client import MAX_RESPONSE, Exchange
from pytest_llmperf.records import Outcome

if TYPE_CHECKING:
    from pytest_llmperf.load.job import Limits, Load

__all__ = ["need_descriptors", "overdue", "tick_ns"]

_NS: Final = 1_000_000_000
_TICK_NS: Final = 100_000_000
_SPARE: Final = 64


def tick_ns(limits: Limits) -> int:
    """How often limits are looked at: a tenth of the shortest, between 5 and 100 ms."""
    shortest = min(limits.connect, limits.first_token, limits.no_progress, limits.request, limits.run)
    return max(5_000_000, min(_TICK_NS, round(shortest * _NS / 10)))


def overdue(exchange: Exchange, limits: Limits, now_ns: int) -> tuple[Outcome, str] | None:
    """The limit that an exchange in flight has passed, if any.

    Cheap unless a limit of output looks passed by what is known: only then is the response parsed as far as it came,
    since comments and role chunks are no output.
    """
    sent_ns = exchange.sent_ns
    if sent_ns is None:
        start_ns = exchange.connect_start_ns
        if exchange.connected_ns is None and start_ns is not None and now_ns - start_ns > limits.connect * _NS:
            return Outcome.CONNECT_TIMEOUT, f"no connection within {limits.connect:g} s"
        return None
    if now_ns - sent_ns > limits.request * _NS:
        return Outcome.DEADLINE, f"the response was not complete within {limits.request:g} s"
    if exchange.size > MAX_RESPONSE:
        return Outcome.PROTOCOL_ERROR, f"the response exceeds {MAX_RESPONSE} bytes"
    waited_ns = now_ns - exchange.progress_ns
    if waited_ns <= min(limits.first_token, limits.no_progress) * _NS:
        return None
    if not exchange.request.stream:
        return None  # a whole reply shows no progress before it is there
    exchange.digest()
    if exchange.outcome is not None:
        return exchange.outcome, exchange.detail or ""
    if not exchange.has_output:
        if waited_ns > limits.first_token * _NS:
            return Outcome.FIRST_TOKEN_TIMEOUT, f"no output within {limits.first_token:g} s"
    elif now_ns - exchange.progress_ns > limits.no_progress * _NS:
        return Outcome.NO_PROGRESS, f"no new output for {limits.no_progress:g} s"
    return None


def need_descriptors(load: Load) -> None:
    """Raise this process's limit of open files as far as the load needs it.

    Open loop has no cap on what is in flight, so there the limit goes as high as it may. Raises InfraError where the
    system does not allow enough.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = resource.RLIM_INFINITY
    needed = (load.peak_concurrency or 0) + _open_descriptors() + _SPARE
    if hard != unlimited and needed > hard:
        raise InfraError(
            f"concurrency {load.peak_concurrency} needs {needed} open files, but this process may have {hard}; "
            "raise the hard limit (ulimit -Hn) or lower the concurrency"
        )
    wanted = hard if load.open_loop else needed
    if soft != unlimited and (wanted == unlimited or soft < wanted):
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(65_536, wanted) if wanted == unlimited else wanted, hard))


def _open_descriptors() -> int:
    for folder in ("/proc/self/fd", "/dev/fd"):
        try:
            return sum(1 for _ in Path(folder).iterdir())
        except OSError:
            continue
    return _SPARE
