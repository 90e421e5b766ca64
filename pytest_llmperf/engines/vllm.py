"""vLLM. Flags and series as of 0.33, with their history since 0.6; run for real as 0.26 (GPU) and 0.32 (CPU)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from pytest_llmperf.engines.engine import (
    Documents,
    Engine,
    LiveFacts,
    LogFact,
    listed_model,
    mapping,
    texts,
)
from pytest_llmperf.engines.flags import flags_of
from pytest_llmperf.engines.models import find_weights
from pytest_llmperf.engines.parameters import DTYPES, Flag, arguments, before
from pytest_llmperf.plan import ServerSpec
from pytest_llmperf.samples import Gauge, Quantity

__all__ = ["VLLM", "read_facts"]

_LOOPBACK: Final = ("127.0.0.1", "localhost", "::1")
_CACHE_INFO: Final = re.compile(r"^vllm:cache_config_info\{(.*)\}", re.MULTILINE)
_LABEL: Final = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
# Labels of vllm:cache_config_info that are worth keeping; the rest of the set changes from version to version.
_CACHE_LABELS: Final = (
    "block_size",
    "cache_dtype",
    "gpu_memory_utilization",
    "kv_cache_size_tokens",
    "num_gpu_blocks",
)
_SERVER_INFO: Final = "/server_info?config_format=json"
"""Answers in development mode only (VLLM_SERVER_DEV_MODE=1)."""

_PARAMETERS: Final[Mapping[str, str | Flag]] = {
    "max_num_seqs": "--max-num-seqs",
    "max_model_len": "--max-model-len",
    "gpu_memory_utilization": Flag("--gpu-memory-utilization", also="--device-memory-utilization"),
    "block_size": "--block-size",
    "swap_space": Flag(
        "--swap-space", until="0.18", instead="kv_offloading_size (swapping itself had no effect from 0.8 on)"
    ),
    "kv_offloading_size": Flag("--kv-offloading-size", since="0.11.1"),
    "enable_prefix_caching": Flag("--enable-prefix-caching", off="--no-enable-prefix-caching"),
    "enable_chunked_prefill": Flag("--enable-chunked-prefill", off="--no-enable-chunked-prefill"),
    "max_num_batched_tokens": "--max-num-batched-tokens",
    "tensor_parallel_size": Flag("--tensor-parallel-size", also="-tp"),
    "quantization": Flag("--quantization", dtype="--dtype", also="-q"),
    "kv_cache_dtype": "--kv-cache-dtype",
}
_OLD_PARAMETERS: Final[Mapping[str, str | Flag]] = {
    **_PARAMETERS,
    "enable_chunked_prefill": Flag("--enable-chunked-prefill", off="--enable-chunked-prefill=False"),
}
"""Until 0.8.4, whose parser takes a word for this one (``StoreBoolean`` in ``engine/arg_utils.py``)."""
_SERIES: Final[Mapping[Quantity, tuple[str, ...]]] = {
    "running": ("vllm:num_requests_running",),
    "waiting": ("vllm:num_requests_waiting",),
    "kv_usage": ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
    "kv_capacity_tokens": ("vllm:cache_config_info{kv_cache_size_tokens}",),
    "preemptions": ("vllm:num_preemptions_total",),
    "prefix_queries": ("vllm:prefix_cache_queries_total", "vllm:gpu_prefix_cache_queries_total"),
    "prefix_hits": ("vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total"),
    "prompt_tokens": ("vllm:prompt_tokens_total",),
    "requests": ("vllm:request_success_total",),
    "drafts": ("vllm:spec_decode_num_drafts_total",),
    "accepted_tokens": ("vllm:spec_decode_num_accepted_tokens_total",),
    "ttft": ("vllm:time_to_first_token_seconds",),
    "queue_wait": ("vllm:request_queue_time_seconds",),
    "prefill_time": ("vllm:request_prefill_time_seconds",),
    "decode_time": ("vllm:request_decode_time_seconds",),
    "e2e": ("vllm:e2e_request_latency_seconds",),
}
_LOG: Final[Mapping[LogFact, tuple[str, ...]]] = {
    "kv_capacity_tokens": (r"KV cache size: ([\d,]+) tokens",),
    "max_concurrency": (r"Maximum concurrency for [\d,]+ tokens per request: ([\d.,]+)x",),
    "compile_s": (r"\(compilation: ([\d.]+) s\)", r"torch\.compile (?:took|takes) ([\d.]+) s in total"),
    # No line shows that there were none: before 0.12 it has no such part, and 0.12 and later set the number back before
    # they look at it (v1/metrics/loggers.py, log() and _update_stats()). 0.7 and older warn of every fiftieth only.
    "preempted": (r"Preemptions: (\d+)",),
    "error": (r"((?:ERROR|CRITICAL) \d\d-\d\d .*)",),
}


# v1/metrics/loggers.py; 0.6.6 says "Pending" for what waits, and its engine has other states too.
_LOG_SERIES: Final[Mapping[Gauge, tuple[str, ...]]] = {
    "prompt_throughput": (r"Avg prompt throughput: ([\d.]+) tokens/s",),
    "generation_throughput": (r"Avg generation throughput: ([\d.]+) tokens/s",),
    "running": (r"Running: (\d+) reqs",),
    "waiting": (r"Waiting: (\d+) reqs",),
    "kv_usage": (r"KV cache usage: ([\d.]+%)",),
}


def _command(spec: ServerSpec, port: int, model: str) -> list[str]:
    """What a benchmark must hold fast is said outright: sampling as vLLM's own, a seed, the cached tokens told."""
    # Before 0.8 sampling defaults did not come from the model, and the value "vllm" was not known: engine/arg_utils.py
    # of 0.7.3 takes it for a folder, that of 0.8.0 has it.
    sampling = [] if before(spec.version, "0.8") else ["--generation-config", "vllm"]
    # 0 would be an offloading of nothing, with all that it costs.
    spec = spec.model_copy(update={"kv_offloading_size": spec.kv_offloading_size or None})
    parameters = _OLD_PARAMETERS if before(spec.version, "0.8.5") else _PARAMETERS
    return [
        *("vllm", "serve", model, "--host", "127.0.0.1", "--port", str(port), "--seed", "0"),
        *(*sampling, "--enable-prompt-tokens-details"),
        *arguments(parameters, spec),
        *spec.extra_args,
    ]


def _environment(spec: ServerSpec, _port: int) -> dict[str, str]:
    """Development mode, which tells the configuration and empties the cache, only while nobody else can reach it."""
    host = flags_of(spec.extra_args).get("--host", _LOOPBACK[0])
    return {"VLLM_NO_USAGE_STATS": "1", **({"VLLM_SERVER_DEV_MODE": "1"} if host in _LOOPBACK else {})}


def _memory_share(spec: ServerSpec) -> float:
    """Of the whole memory: it refuses to start where less is free (``v1/worker/gpu_worker.py``)."""
    if spec.gpu_memory_utilization is not None:
        return spec.gpu_memory_utilization
    return 0.9 if before(spec.version, "0.20") else 0.92  # config/cache.py of 0.19.1 and of 0.20.0


def _request_extras(_spec: ServerSpec) -> dict[str, Any]:
    return {"ignore_eos": True}


def read_facts(documents: Documents, model: str) -> LiveFacts:
    """Facts from ``/version``, ``/v1/models`` and the labels of ``vllm:cache_config_info`` in ``/metrics``.

    Quantization, the number of sequences and the machine are told in development mode only.
    """
    version = mapping(documents.get("/version")).get("version")
    listed = listed_model(documents, model)
    metrics = documents.get("/metrics")
    found = _CACHE_INFO.search(metrics) if isinstance(metrics, str) else None
    stated = dict(_LABEL.findall(found[1])) if found else {}
    labels = {name: value for name, value in stated.items() if value != "None"}
    info = mapping(documents.get(_SERVER_INFO))
    config, machine = mapping(info.get("vllm_config")), mapping(info.get("system_env"))
    model_config, scheduler = mapping(config.get("model_config")), mapping(config.get("scheduler_config"))
    parallel = mapping(config.get("parallel_config")).get("tensor_parallel_size")
    dtype = str(model_config.get("dtype") or "").removeprefix("torch.")
    quantization = model_config.get("quantization") or DTYPES.get(dtype)
    kinds = set(re.findall(r"^GPU \d+: (.+?)(?: \(UUID.*)?$", str(machine.get("nvidia_gpu_models")), re.MULTILINE))
    length = listed.get("max_model_len")
    prefix_caching = labels.get("enable_prefix_caching")
    drafting = mapping(config.get("speculative_config"))
    return LiveFacts(
        version=version if isinstance(version, str) else None,
        quantization=quantization.lower() if isinstance(quantization, str) else None,
        environment=texts(
            {"gpu": " + ".join(sorted(kinds)), "driver": machine.get("nvidia_driver_version")},
        ),
        parameters=texts(
            {
                "max_num_seqs": scheduler.get("max_num_seqs"),
                "max_model_len": length,
                "gpu_memory_utilization": labels.get("gpu_memory_utilization"),
                "block_size": labels.get("block_size"),
                "kv_offloading_size": "0" if (size := stated.get("kv_offloading_size")) == "None" else size,
                "enable_prefix_caching": prefix_caching.lower() if prefix_caching else None,
                "enable_chunked_prefill": scheduler.get("enable_chunked_prefill"),
                "max_num_batched_tokens": scheduler.get("max_num_batched_tokens"),
                "tensor_parallel_size": parallel,
                "kv_cache_dtype": labels.get("cache_dtype"),
            }
        ),
        consequence=texts(
            {
                "max_model_len": length,
                "model_root": listed.get("root"),
                "dtype": dtype,
                "max_num_batched_tokens": scheduler.get("max_num_batched_tokens"),
                "tensor_parallel_size": parallel,
                "torch": machine.get("torch_version"),
                "cuda": machine.get("cuda_runtime_version"),
                "load_format": mapping(config.get("load_config")).get("load_format"),
                "speculative": drafting.get("method"),
                "synthetic_acceptance": _synthetic(drafting),
                **{name: labels.get(name) for name in _CACHE_LABELS},
            }
        ),
    )


def _synthetic(drafting: Mapping[str, Any]) -> Any:
    """The rates or the length of acceptance that were set instead of found, if any."""
    return drafting.get("synthetic_acceptance_rates") or drafting.get("synthetic_acceptance_length")


VLLM: Final = Engine(
    name="vllm",
    title="vLLM",
    parameters=_PARAMETERS,
    default_port=8000,
    cpu=False,
    command=_command,
    environment=_environment,
    distribution="vllm",
    program="vllm",
    find_model=find_weights,
    memory_share=_memory_share,
    owned_by=frozenset({"vllm"}),
    info_paths=("/version", "/metrics", _SERVER_INFO),
    read_facts=read_facts,
    # The first holds the other two where vLLM compiles (compilation/ of 0.6.6 to 0.20.0); Triton's own kernels do not.
    cache_env=("VLLM_CACHE_ROOT", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"),
    request_extras=_request_extras,
    continuous_usage=True,
    metrics_url="/metrics",
    series=_SERIES,
    log_patterns=_LOG,
    log_series=_LOG_SERIES,
    reset_paths=("/reset_prefix_cache",),
    profile_paths=("/start_profile", "/stop_profile"),
    evidence="run for real",
    launch_evidence="run for real",
)
