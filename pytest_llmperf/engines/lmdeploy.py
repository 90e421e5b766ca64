"""LMDeploy's API server. Flags and series as of 0.18.0."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from pytest_llmperf.engines.engine import Documents, Engine, LiveFacts, LogFact, takes_what_is_free, texts
from pytest_llmperf.engines.models import find_weights
from pytest_llmperf.engines.parameters import Flag, arguments
from pytest_llmperf.plan import ServerSpec
from pytest_llmperf.samples import Quantity

__all__ = ["LMDEPLOY", "read_facts"]

_INFO: Final = re.compile(r"^lmdeploy:backend_config_info\{(.*)\}", re.MULTILINE)
_LABEL: Final = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')

_PARAMETERS: Final[Mapping[str, str | Flag]] = {
    "max_num_seqs": "--max-batch-size",
    "max_model_len": "--session-len",
    "gpu_memory_utilization": "--cache-max-entry-count",
    "block_size": "--cache-block-seq-len",
    "enable_prefix_caching": Flag("--enable-prefix-caching", off=""),
    "max_num_batched_tokens": "--max-prefill-token-num",
    "tensor_parallel_size": "--tp",
    "quantization": Flag("--model-format", dtype="--dtype"),
    "kv_cache_dtype": "--quant-policy",
}
_TOLD: Final = {
    "max_num_seqs": "max_batch_size",
    "max_model_len": "session_len",
    "gpu_memory_utilization": "cache_max_entry_count",
    "enable_prefix_caching": "enable_prefix_caching",
    "max_num_batched_tokens": "max_prefill_token_num",
    "tensor_parallel_size": "tp",
    "kv_cache_dtype": "quant_policy",
}
"""Parameter → the field of the engine's configuration, which both its engines have."""
_SERIES: Final[Mapping[Quantity, tuple[str, ...]]] = {
    "running": ("lmdeploy:num_requests_running",),
    "waiting": ("lmdeploy:num_requests_waiting",),
    "kv_usage": ("lmdeploy:gpu_cache_usage_perc",),
    "prefix_hits": ("lmdeploy:cached_tokens_total",),
    "prefix_queries": ("lmdeploy:prompt_tokens_total",),
    "prompt_tokens": ("lmdeploy:prompt_tokens_total",),
    "requests": ("lmdeploy:request_success_total",),
    "drafts": ("lmdeploy:spec_decode_num_drafts_total",),
    "accepted_tokens": ("lmdeploy:spec_decode_num_accepted_tokens_total",),
    # Its time_per_output_token_seconds is observed for every step, not for every request.
    "ttft": ("lmdeploy:time_to_first_token_seconds",),
    "queue_wait": ("lmdeploy:request_queue_time_seconds",),
    "prefill_time": ("lmdeploy:request_prefill_time_seconds",),
    "decode_time": ("lmdeploy:request_decode_time_seconds",),
    "e2e": ("lmdeploy:e2e_request_latency_seconds",),
}
_LOG: Final[Mapping[LogFact, tuple[str, ...]]] = {"error": (r"(\bERROR\b.*)",)}


def _command(spec: ServerSpec, port: int, model: str) -> list[str]:
    return [
        *("lmdeploy", "serve", "api_server", model, "--server-name", "127.0.0.1", "--server-port", str(port)),
        *arguments(_PARAMETERS, spec),
        *spec.extra_args,
    ]


def _request_extras(_spec: ServerSpec) -> dict[str, Any]:
    return {"ignore_eos": True}


def read_facts(documents: Documents, _model: str) -> LiveFacts:
    """Facts from the labels of ``lmdeploy:backend_config_info`` in ``/metrics``; it tells no version."""
    metrics = documents.get("/metrics")
    found = _INFO.search(metrics) if isinstance(metrics, str) else None
    labels = {name: value for name, value in _LABEL.findall(found[1]) if value != "None"} if found else {}
    told = {name: labels.get(key) for name, key in _TOLD.items()}
    if told["enable_prefix_caching"]:
        told["enable_prefix_caching"] = told["enable_prefix_caching"].lower()
    return LiveFacts(
        quantization=labels.get("model_format"),
        parameters=texts(told),
        consequence=texts({"max_model_len": labels.get("session_len"), "dtype": labels.get("dtype")}),
    )


LMDEPLOY: Final = Engine(
    name="lmdeploy",
    title="LMDeploy",
    parameters=_PARAMETERS,
    default_port=23333,
    cpu=False,
    command=_command,
    distribution="lmdeploy",
    program="lmdeploy",
    find_model=find_weights,
    memory_share=takes_what_is_free,  # pytorch/engine/executor/base.py
    owned_by=frozenset({"lmdeploy"}),
    info_paths=("/metrics",),
    read_facts=read_facts,
    cache_env=("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"),
    request_extras=_request_extras,
    metrics_url="/metrics",
    series=_SERIES,
    log_patterns=_LOG,
)
