"""What is known of this machine as the place that a server runs on, besides its CPU and memory."""

from __future__ import annotations

from pytest_llmperf.engines import engine_of
from pytest_llmperf.identity import Fact
from pytest_llmperf.plan import ServerSpec
from pytest_llmperf.telemetry.cards import gpu_facts

__all__ = ["machine_facts"]


def machine_facts(spec: ServerSpec, pool: str | None) -> dict[str, Fact]:
    """Environment facts for ``launch``: the GPUs that the server is given, and the pool of this runner.

    Empty for a server that runs already, wherever that may be. Never raises for a driver's sake.
    """
    if spec.targeted:
        return {}
    found = {} if engine_of(spec).cpu else gpu_facts(spec.gpus)
    return {**found, "pool": Fact(value=pool, source="configured")} if pool else found
