"""Hugging Face Text Generation Inference. Flags and series as of 3.3.7."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pytest_llmperf.engines.engine import Documents, Engine, LiveFacts, LogFact, mapping, texts
from pytest_llmperf.engines.models import find_weights
from pytest_llmperf.engines.parameters import Flag, arguments, written
from pytest_llmperf.plan import ServerSpec
from pytest_llmperf.samples import Quantity

__all__ = ["TGI", "read_facts"]

_PARAMETERS: Final[Mapping[str, str | Flag]] = {
    # Not --max-concurrent-requests: above that requests are refused, not queued.
    "max_num_seqs": "--max-batch-size",
    "max_model_len": "--max-total-tokens",
    "gpu_memory_utilization": "--cuda-memory-fraction",
    "enable_prefix_caching": Flag("PREFIX_CACHING 1", off="PREFIX_CACHING 0"),
    "max_num_batched_tokens": "--max-batch-prefill-tokens",
    "tensor_parallel_size": "--num-shard",
    "quantization": Flag("--quantize", dtype="--dtype"),
    "kv_cache_dtype": "--kv-cache-dtype",
}
_SERIES: Final[Mapping[Quantity, tuple[str, ...]]] = {
    "running": ("tgi_batch_current_size",),
    "waiting": ("tgi_queue_size",),
    "prompt_tokens": ("tgi_request_input_length_sum",),
    "requests": ("tgi_request_success",),
    "queue_wait": ("tgi_request_queue_duration",),
    "e2e": ("tgi_request_duration",),
}
_LOG: Final[Mapping[LogFact, tuple[str, ...]]] = {"error": (r"(\bERROR\b.*)",)}


def _command(spec: ServerSpec, port: int, model: str) -> list[str]:
    return [
        *("text-generation-launcher", "--model-id", model, "--hostname", "127.0.0.1", "--port", str(port)),
        *arguments(_PARAMETERS, spec),
        *spec.extra_args,
    ]


def _environment(spec: ServerSpec, _port: int) -> dict[str, str]:
    return {words[0]: words[1] for words in written(_PARAMETERS, spec).values() if not words[0].startswith("-")}


def read_facts(documents: Documents, _model: str) -> LiveFacts:
    """Facts from ``/info``; it says nothing of data type and quantization."""
    info = mapping(documents.get("/info"))
    version, total = info.get("version"), info.get("max_total_tokens")
    return LiveFacts(
        version=version if isinstance(version, str) else None,
        parameters=texts({"max_model_len": total}),
        consequence=texts(
            {
                "max_model_len": total,
                "max_input_tokens": info.get("max_input_tokens"),
                "max_concurrent_requests": info.get("max_concurrent_requests"),
                "model_root": info.get("model_id"),
                "model_revision": info.get("model_sha"),
            }
        ),
    )


TGI: Final = Engine(
    name="tgi",
    title="TGI",
    parameters=_PARAMETERS,
    default_port=3000,
    spellings={"-p": "port"},
    cpu=False,
    command=_command,
    environment=_environment,
    program="text-generation-launcher",
    find_model=find_weights,
    mark=("/info", "router"),
    info_paths=("/info",),
    read_facts=read_facts,
    # Neither an exact nor a least output length can be asked for.
    apis=("chat", "completions", "tgi"),
    metrics_url="/metrics",
    series=_SERIES,
    log_patterns=_LOG,
)
