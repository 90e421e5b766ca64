"""Servers that a command of the user's starts: on Kubernetes, through Slurm, over several nodes, behind a router."""

from __future__ import annotations

import json
import sys
from typing import Final

from pytest_llmperf.control.target import base_url
from pytest_llmperf.engines.redact import public_env
from pytest_llmperf.server.leases import new_lease
from pytest_llmperf.server.process import PACKAGES, ServerProcess
from pytest_llmperf.server.started import Order

__all__ = ["start_command"]

_ATTENDANT: Final = (
    "import sys; root = sys.argv.pop(1); sys.path.append(root); "
    "from pytest_llmperf.server.attendant import main; sys.exit(main())"
)


def start_command(order: Order) -> ServerProcess:
    """Run ``start`` as the server, or as what leaves it running elsewhere; ``stop`` runs at its end in any case.

    Where that is another machine, the program and the files that ``{command}`` names must be there at the same paths: a
    model, and for TensorRT-LLM the file of options in our cache folder.
    """
    spec = order.spec
    engine_command = order.engine_command() if spec.uses_engine_command else ()
    start = spec.filled(spec.start, order.port, engine_command)
    job = {"start": start, "logs": spec.filled(spec.logs, order.port), "detached": spec.detached}
    shown = public_env(spec)
    lease = new_lease(
        start,
        server=spec.name,
        launcher="command",
        report=order.log_path.parent,
        ended=spec.filled(spec.stop, order.port),
        env={name: value for name, value in spec.env.items() if shown.get(name) == value},
        ready="" if spec.detached else _ready(order),
    )
    argv = [sys.executable, "-I", "-S", "-c", _ATTENDANT, str(PACKAGES), json.dumps(job)]
    find_pid = _unknown if spec.elsewhere or spec.detached else None
    env, hidden = order.environment(), order.hidden
    return ServerProcess.start(argv, env, order.log_path, lease=lease, hidden=hidden, find_pid=find_pid)


def _ready(order: Order) -> str:
    return base_url(order.spec.ready_at(order.port))[0] + order.engine.ready_path


def _unknown(_pid: int) -> None:
    """The server is elsewhere, or the child of another: what we started is not it."""
