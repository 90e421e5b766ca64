"""Whether a server answers where a command is to bring one up, before the start and after the end."""

from __future__ import annotations

import shlex
import time
from typing import Final

from pytest_llmperf.control.client import Client, open_client
from pytest_llmperf.control.probe import absent, unready
from pytest_llmperf.engines import Engine
from pytest_llmperf.engines.redact import redact
from pytest_llmperf.errors import InfraError
from pytest_llmperf.plan import ServerSpec
from pytest_llmperf.records import Endpoint
from pytest_llmperf.server.readiness import Progress
from pytest_llmperf.server.started import StartedServer

__all__ = ["await_vacant", "stop_server"]

_LEAVING_SECONDS: Final = 40.0
"""What ended the last server may return before that has gone: Kubernetes and Slurm give it 30 s."""
_POLL_SECONDS: Final = 0.25


def await_vacant(spec: ServerSpec, client: Client, path: str, on_progress: Progress) -> None:
    """Raise InfraError where ``path`` answers 200 before anything was started, and goes on for some time.

    That is what would count as ready. A connection that is taken says nothing, nor does any other answer: proxies,
    ingresses and forwarded ports are there before the server is.
    """
    begun = time.monotonic()
    url = str(client.base_url.join(path))
    while unready(client, path) is None:
        passed = time.monotonic() - begun
        if passed > _LEAVING_SECONDS:
            end = f" (stop: {shlex.join(redact(spec.filled(spec.stop, spec.port or 0)))})" if spec.stop else ""
            raise InfraError(
                f"something answers at {url} already, before anything was started: left by an earlier run? "
                f"end it{end}, or give url in place of start to measure a running server"
            )
        on_progress(passed, f"something answers at {url} already; waiting for its end")
        time.sleep(_POLL_SECONDS)


def stop_server(
    process: StartedServer, spec: ServerSpec, engine: Engine, endpoint: Endpoint, *, grace: float, answered: bool
) -> tuple[str, ...]:
    """End the server for sure; what could not be ended.

    Where only ``stop`` of the configuration failed there is nothing to end any more if nothing answers: of a command
    that stayed, and has ended by now; and where it is ``detached``, of a server that had answered.
    """
    left = process.stop(grace)
    if not left or spec.launched_by != "command" or process.stop_failed is None:
        return left
    if spec.detached and not answered:
        return left
    with open_client(endpoint, ca_file=spec.ca_file, timeout=10.0) as client:
        if not absent(client, engine.ready_path, answered=answered):
            return left
    process.forgive(f"nothing that was started runs here any more, and nothing serves {endpoint.base_url}")
    return ()
