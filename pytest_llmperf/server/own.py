"""The engine as a process of this machine."""

from __future__ import annotations

from pytest_llmperf.server.leases import new_lease
from pytest_llmperf.server.process import ServerProcess
from pytest_llmperf.server.started import Order

__all__ = ["start_process"]


def start_process(order: Order) -> ServerProcess:
    """Start the engine as a process of this machine."""
    spec, command = order.spec, order.engine_command()
    lease = new_lease(command, server=spec.name, report=order.log_path.parent)
    return ServerProcess.start(command, order.environment(), order.log_path, lease=lease, hidden=order.hidden)
