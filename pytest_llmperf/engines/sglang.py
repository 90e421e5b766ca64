"""SGLang. Flags and series as of 0.5.23, with their history since 0.4.6."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, Final

from pytest_llmperf.engines.engine import (
    Documents,
    Engine,
    LiveFacts,
    LogFact,
    listed_model,
    mapping,
    takes_what_is_free,
    texts,
)
from pytest_llmperf.engines.models import find_weights
from pytest_llmperf.engines.parameters import Flag, arguments
from pytest_llmperf.errors import ConfigError
from pytest_llmperf.plan import ServerSpec
from pytest_llmperf.samples import Gauge, Quantity

__all__ = ["SGLANG", "read_facts"]

_CONSEQUENCES: Final = ("max_total_num_tokens", "kv_cache_dtype", "dtype", "tp_size", "page_size")

_GB_IN_GIB: Final = 1e9 / 2**30
_MOST_ROUNDED: Final = 0.1
"""Of ``kv_offloading_size``, which has to become a whole number."""

_PARAMETERS: Final[Mapping[str, str | Flag]] = {
    "max_num_seqs": "--max-running-requests",
    "max_model_len": "--context-length",
    "gpu_memory_utilization": "--mem-fraction-static",
    "block_size": "--page-size",
    "kv_offloading_size": Flag("--enable-hierarchical-cache --hicache-size {}"),
    "enable_prefix_caching": Flag("", off="--disable-radix-cache"),
    "enable_chunked_prefill": Flag("", off="--chunked-prefill-size -1"),
    # --max-prefill-tokens bounds a step too, but by default is the larger of the two.
    "max_num_batched_tokens": "--chunked-prefill-size",
    "tensor_parallel_size": Flag("--tp-size", also="--tensor-parallel-size --tp"),
    "quantization": Flag("--quantization", dtype="--dtype"),
    "kv_cache_dtype": "--kv-cache-dtype",
}
_SERIES: Final[Mapping[Quantity, tuple[str, ...]]] = {
    "running": ("sglang:num_running_reqs",),
    "waiting": ("sglang:num_queue_reqs",),
    "kv_usage": ("sglang:token_usage",),
    "kv_capacity_tokens": ("sglang:max_total_num_tokens",),
    "preemptions": ("sglang:num_retracted_requests_total", "sglang:total_retracted_reqs"),
    "prefix_queries": ("sglang:prompt_tokens_total",),
    "prefix_hits": ("sglang:cached_tokens_total",),
    "prompt_tokens": ("sglang:prompt_tokens_total",),
    "requests": ("sglang:num_requests_total",),
    "drafts": ("sglang:spec_verify_calls_total",),
    "acceptance_length": ("sglang:spec_accept_length",),
    "ttft": ("sglang:time_to_first_token_seconds",),
    "queue_wait": ("sglang:queue_time_seconds", "sglang:queue_time_s"),
    "e2e": ("sglang:e2e_request_latency_seconds",),
}
_LOG: Final[Mapping[LogFact, tuple[str, ...]]] = {
    "kv_capacity_tokens": (r"max_total_num_tokens=(\d+)",),
    # "KV cache pool is full. Retract requests." (0.5), "Decode out of memory happened." (0.4): managers/scheduler.py,
    # in every process of a tensor parallel group, of which the first one counts.
    "preempted": (r"^(?!.* TP[1-9]\d*[\] ]).*#retracted_reqs: (\d+)",),
    "would_tell": (r"((?:Decode|Prefill) batch)[.,] ",),
    "error": (r"(^\[\d{4}-\d\d-\d\d [^\]]*\] .*(?:Error|Exception)\b.*)",),
}


# managers/scheduler_components/metrics_reporter.py (0.5.23); of hybrid models the usage of full attention comes first.
_LOG_SERIES: Final[Mapping[Gauge, tuple[str, ...]]] = {
    "prompt_throughput": (r"input throughput \(token/s\): ([\d.]+)",),
    "generation_throughput": (r"gen throughput \(token/s\): ([\d.]+)",),
    "running": (r"#running-req: (\d+)",),
    "waiting": (r"#queue-req: (\d+)",),
    "kv_usage": (r"token usage: ([\d.]+)",),
}


def _command(spec: ServerSpec, port: int, model: str) -> list[str]:
    spec = spec.model_copy(update={"kv_offloading_size": _gigabytes(spec)})
    return [
        *(sys.executable, "-m", "sglang.launch_server", "--model-path", model),
        *(
            "--host",
            "127.0.0.1",
            "--port",
            str(port),
            "--random-seed",
            "0",
            "--enable-metrics",
            "--enable-cache-report",
        ),
        *arguments(_PARAMETERS, spec),
        *spec.extra_args,
    ]


def _gigabytes(spec: ServerSpec) -> int | None:
    """``kv_offloading_size`` as ``--hicache-size`` has it: whole GB (10⁹ bytes) for each rank. None: none is wanted.

    ``mem_cache/memory_pool.py`` of 0.4.6 to ``mem_cache/pool_host/base.py`` of 0.5.23; 0 means a multiple of the GPU's
    cache there. Raises ConfigError where no whole number is near enough.
    """
    if not spec.kv_offloading_size:
        return None
    ranks = spec.tensor_parallel_size or 1
    wanted = spec.kv_offloading_size / _GB_IN_GIB / ranks
    size = round(wanted)
    if abs(size - wanted) > _MOST_ROUNDED * wanted:
        near = [f"{whole * ranks * _GB_IN_GIB:.2f}" for whole in sorted({int(wanted) or 1, int(wanted) + 1})]
        given = f"{spec.kv_offloading_size:g} GiB are {wanted:.2f}"
        problem = f"SGLang takes whole GB for each rank (of {ranks}), and {given}"
        raise ConfigError(f"servers.{spec.name}", "kv_offloading_size", f"{problem}: write {' or '.join(near)}")
    return size


def _environment(_spec: ServerSpec, _port: int) -> dict[str, str]:
    """``/health`` is asked for readiness; it would generate a token first, and look for it once a second only.

    ``entrypoints/http_server.py`` from 0.5.9 to 0.5.23. It is 503 all the same until the server has warmed up.
    """
    return {"SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION": "0"}


def _offloading(info: Mapping[str, Any]) -> str | None:
    """GiB of host memory over all ranks; None where there is none, or a multiple of the GPU's cache."""
    size, ranks = info.get("hicache_size"), info.get("tp_size") or 1
    if not info.get("enable_hierarchical_cache") or not isinstance(size, int) or not isinstance(ranks, int) or size < 1:
        return None
    return f"{size * ranks * _GB_IN_GIB:.3g}"


def _request_extras(_spec: ServerSpec) -> dict[str, Any]:
    return {"ignore_eos": True}


def read_facts(documents: Documents, model: str) -> LiveFacts:
    """Facts from ``/server_info``, which holds every resolved server argument, ``/model_info`` and ``/v1/models``."""
    info, about = mapping(documents.get("/server_info")), mapping(documents.get("/model_info"))
    version, quantization = info.get("version"), info.get("quantization")
    no_cache, chunk = info.get("disable_radix_cache"), info.get("chunked_prefill_size")
    length = listed_model(documents, model).get("max_model_len") or info.get("context_length")
    chunked = chunk > 0 if isinstance(chunk, int) else None
    return LiveFacts(
        version=version if isinstance(version, str) else None,
        quantization=quantization.lower() if isinstance(quantization, str) and quantization else None,
        parameters=texts(
            {
                "max_num_seqs": info.get("max_running_requests"),
                "max_model_len": length,
                "gpu_memory_utilization": info.get("mem_fraction_static"),
                "block_size": info.get("page_size"),
                "kv_offloading_size": _offloading(info),
                "enable_prefix_caching": not no_cache if isinstance(no_cache, bool) else None,
                "enable_chunked_prefill": chunked,
                "max_num_batched_tokens": chunk if chunked else None,
                "tensor_parallel_size": info.get("tp_size"),
                "kv_cache_dtype": info.get("kv_cache_dtype"),
            }
        ),
        consequence=texts(
            {
                "max_model_len": length,
                "model_root": about.get("model_path") or info.get("model_path"),
                "load_format": about.get("load_format") or info.get("load_format"),
                "speculative": info.get("speculative_algorithm"),
                **{name: info.get(name) for name in _CONSEQUENCES},
            }
        ),
    )


SGLANG: Final = Engine(
    name="sglang",
    title="SGLang",
    parameters=_PARAMETERS,
    default_port=30000,
    cpu=False,
    command=_command,
    environment=_environment,
    distribution="sglang",
    find_model=find_weights,
    # Its share is of what is free before the weights are loaded (model_executor/model_runner.py of 0.4.6, now
    # mem_cache/kv_cache_configurator.py); the default follows from the GPU's size (arg_groups/memory_hook.py).
    memory_share=takes_what_is_free,
    owned_by=frozenset({"sglang"}),
    mark=("/model_info", "model_path"),
    info_paths=("/server_info", "/model_info"),
    read_facts=read_facts,
    cache_env=("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"),
    request_extras=_request_extras,
    continuous_usage=True,
    metrics_url="/metrics",
    series=_SERIES,
    log_patterns=_LOG,
    log_series=_LOG_SERIES,
    reset_paths=("/flush_cache",),
    profile_paths=("/start_profile", "/stop_profile"),
)
