"""NVIDIA Triton Inference Server with its generate extension."""

from __future__ import annotations

from typing import Final

from pytest_llmperf.engines.engine import Documents, Engine, LiveFacts, mapping

__all__ = ["TRITON", "read_facts"]


def read_facts(documents: Documents, _model: str) -> LiveFacts:
    """The server's version, from ``/v2``."""
    version = mapping(documents.get("/v2")).get("version")
    return LiveFacts(version=version if isinstance(version, str) else None)


TRITON: Final = Engine(
    name="triton",
    title="Triton",
    parameters={},
    default_port=8000,
    cpu=False,
    ready_path="/v2/health/ready",
    mark=("/v2", "name", "triton"),
    info_paths=("/v2",),
    read_facts=read_facts,
    apis=("triton",),
    lists_models=False,
    # On a port of its own. Durations are sums in microseconds, and its KV blocks are told apart by a label: neither has
    # a place here. An ensemble and each of the models that it is made of have a series of their own: finished requests
    # are those of the model that is asked for, while it is the others that they wait for.
    metrics_url=":8002/metrics",
    series={"requests": ("nv_inference_request_success{model=}",), "waiting": ("nv_inference_pending_request_count",)},
)
