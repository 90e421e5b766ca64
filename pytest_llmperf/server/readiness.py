"""From a started process to a server that has answered: HTTP readiness, then one tiny generation."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final

from pytest_llmperf.control.client import Client
from pytest_llmperf.control.probe import Answer, ask_any, unready
from pytest_llmperf.errors import InfraError, ServerStartError, TargetError
from pytest_llmperf.records import Api, Endpoint
from pytest_llmperf.server.started import StartedServer

__all__ = ["Progress", "await_answer", "await_ready", "require_own", "start_error"]

Progress = Callable[[float, str], None]
"""Called about once a second while a server starts: seconds since its start, last line of its log."""

_FIRST_POLL: Final = 0.005
_LAST_POLL: Final = 0.25
_PROGRESS_SECONDS: Final = 1.0
_STRANGER_SECONDS: Final = 5.0


def await_ready(
    process: StartedServer,
    client: Client,
    path: str,
    *,
    begun: float,
    timeout: float,
    on_progress: Progress,
    returned: str = "",
) -> None:
    """Return when ``path`` answers 200. ``begun`` is ``time.monotonic()`` of the start, ``timeout`` counts from it.

    Raises ServerStartError as soon as the process has ended, or at the time-out; ``returned`` is said of an end without
    fault. InfraError where it was the machine's.
    """
    pause, told, asked = _FIRST_POLL, 0.0, 0
    while True:
        running = process.poll()  # before the request: a foreign server may answer on the port of ours that died
        asked += running
        answer = unready(client, path) if running else ""
        if answer is None:
            return
        if not running:
            raise start_error(process, f"the server ended before it was ready{'' if process.exit_code else returned}")
        elapsed = time.monotonic() - begun
        if elapsed > timeout:
            url = client.base_url.join(path)
            last = f"{url} was asked {asked} times, at last: {answer}"
            raise start_error(process, f"the server was not ready after {timeout:g} s (startup_timeout); {last}")
        if elapsed - told >= _PROGRESS_SECONDS:
            told = elapsed
            process.remember()
            on_progress(elapsed, next(iter(process.log_tail(1)), ""))
        time.sleep(pause)
        # Time to ready is a metric: look often at first, and later in proportion to what has passed.
        pause = min(max(_FIRST_POLL, elapsed / 50), _LAST_POLL)


def await_answer(process: StartedServer, client: Client, endpoint: Endpoint, apis: Sequence[Api] | None) -> Answer:
    """Have the server generate one token by any of ``apis``, None: of all. Raises ServerStartError where it can't."""
    try:
        return ask_any(client, endpoint, apis)
    except TargetError as error:
        if not process.poll():
            raise start_error(process, "the server ended during its first answer") from error
        raise start_error(process, f"the server is up but does not answer: {error}") from error


def require_own(process: StartedServer, port: int) -> None:
    """Raise where not our process but a stranger answers on ``port``, taken between choosing it and listening on it.

    ServerStartError once our process has ended over it, InfraError if it carries on nevertheless.
    """
    deadline = time.monotonic() + _STRANGER_SECONDS
    while process.poll():
        if process.listens(port) is not False:
            return
        if time.monotonic() > deadline:
            raise InfraError(
                f"on port {port} another process answers than the server that was started, or one of its children; "
                "where a command has a daemon run the server (docker run, systemd-run), write detached = true"
            )
        time.sleep(_FIRST_POLL)
    raise start_error(process, "the server ended before it was ready")


def start_error(process: StartedServer, what: str) -> ServerStartError | InfraError:
    """A ServerStartError with the evidence of ``process``; InfraError where the machine is what failed."""
    if (trouble := process.trouble()) is not None:
        return InfraError(f"{what}: {trouble} (log: {process.log_path})")
    return ServerStartError(
        what,
        command=process.command,
        exit_code=process.exit_code,
        log_tail=process.log_tail(),
        log_path=str(process.log_path),
    )
