"""TensorRT-LLM's ``trtllm-serve``. Flags as of 1.2, series as of its main branch in 2026.

Flags by ``commands/serve.py``, keys of the file by ``KvCacheConfig`` and ``BaseLlmArgs`` in ``llmapi/llm_args.py``,
which refuse keys that they do not know; ``ignore_eos`` by ``CompletionRequest`` in ``serve/openai_protocol.py``.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from pytest_llmperf.engines.engine import Documents, Engine, LiveFacts, mapping, takes_what_is_free
from pytest_llmperf.engines.flags import flags_of
from pytest_llmperf.engines.models import find_weights
from pytest_llmperf.engines.parameters import Flag, arguments, before, written
from pytest_llmperf.engines.tiny_model import cache_dir
from pytest_llmperf.errors import ConfigError, InfraError
from pytest_llmperf.plan import ServerSpec
from pytest_llmperf.samples import Quantity

__all__ = ["TRTLLM", "read_facts"]

_FILE_FLAGS: Final = ("--config", "--extra_llm_api_options")
"""Both name the one file of options; the second is the older name, and still taken."""

_PARAMETERS: Final[Mapping[str, str | Flag]] = {
    "max_num_seqs": "--max_batch_size",
    "max_model_len": "--max_seq_len",
    # The name that 0.18.2 has and newer versions keep, beside --free_gpu_memory_fraction.
    "gpu_memory_utilization": Flag("--kv_cache_free_gpu_memory_fraction", also="--free_gpu_memory_fraction"),
    # The oldest versions that are known to have these keys.
    "block_size": Flag("kv_cache_config.tokens_per_block", since="1.2"),
    "enable_prefix_caching": Flag(
        "kv_cache_config.enable_block_reuse true", off="kv_cache_config.enable_block_reuse false"
    ),
    # A flag too, but only of newer versions.
    "enable_chunked_prefill": Flag("enable_chunked_prefill true", off="enable_chunked_prefill false"),
    "max_num_batched_tokens": "--max_num_tokens",
    "tensor_parallel_size": "--tp_size",
    "kv_cache_dtype": Flag("kv_cache_config.dtype", since="1.0"),
}
# At first, in 1.1, there were five and without a prefix (its pull request 5785).
_SERIES: Final[Mapping[Quantity, tuple[str, ...]]] = {
    "running": ("trtllm_num_requests_running",),
    "waiting": ("trtllm_num_requests_waiting",),
    "kv_usage": ("trtllm_kv_cache_utilization",),
    "prefix_queries": ("trtllm_prompt_tokens_total",),
    "prefix_hits": ("trtllm_prompt_cached_tokens_total",),
    "prompt_tokens": ("trtllm_prompt_tokens_total",),
    "requests": ("trtllm_request_success_total", "request_success_total"),
    "ttft": ("trtllm_time_to_first_token_seconds", "time_to_first_token_seconds"),
    "queue_wait": ("trtllm_request_queue_time_seconds", "request_queue_time_seconds"),
    "prefill_time": ("trtllm_request_prefill_time_seconds",),
    "decode_time": ("trtllm_request_decode_time_seconds",),
    "e2e": ("trtllm_e2e_request_latency_seconds", "e2e_request_latency_seconds"),
}


def _command(spec: ServerSpec, port: int, model: str) -> list[str]:
    return [
        *("trtllm-serve", model, "--host", "127.0.0.1", "--port", str(port)),
        *_options(spec),
        *arguments(_PARAMETERS, spec),
        *spec.extra_args,
    ]


def _options(spec: ServerSpec) -> list[str]:
    """The file of options that are no flags: what makes the server tell its metrics, and parameters.

    Raises ConfigError where a file of the user's would have to hold some of them.
    """
    options: dict[str, Any] = {"enable_iter_perf_stats": True}
    if not before(spec.version, "1.1"):  # came after 1.0, with the metrics (its pull request 5785)
        options["return_perf_metrics"] = True
    given = {name: words for name, words in written(_PARAMETERS, spec).items() if not words[0].startswith("-")}
    own = next((flag for flag in _FILE_FLAGS if flag in flags_of(spec.extra_args)), None)
    if own is not None:
        for name, (key, _) in given.items():
            problem = f"TensorRT-LLM takes it from the file of {own}: write {key} there"
            raise ConfigError(f"servers.{spec.name}", name, problem)
        return []
    for key, value in given.values():
        outer, dot, inner = key.partition(".")
        plain = {"true": True, "false": False}.get(value, int(value) if value.isdecimal() else value)
        if dot:
            options.setdefault(outer, {})[inner] = plain
        else:
            options[key] = plain
    return [_FILE_FLAGS[1], str(_stored(json.dumps(options, indent=1, sort_keys=True)))]


def _stored(text: str) -> Path:
    """A file with ``text`` (JSON, which is YAML too) that has its digest for a name: equal options, equal commands.

    Raises InfraError where it can't be written.
    """
    path = cache_dir().absolute() / "trtllm" / f"{hashlib.sha256(text.encode()).hexdigest()[:16]}.yaml"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise InfraError(f"{path}, the options of TensorRT-LLM, can't be written: {error.strerror or error}") from error
    return path


def _request_extras(_spec: ServerSpec) -> dict[str, Any]:
    return {"ignore_eos": True}


def read_facts(documents: Documents, _model: str) -> LiveFacts:
    """The version, from ``/version``; of its configuration a running server tells nothing there."""
    version = mapping(documents.get("/version")).get("version")
    return LiveFacts(version=version if isinstance(version, str) else None)


TRTLLM: Final = Engine(
    name="trtllm",
    title="TensorRT-LLM",
    parameters=_PARAMETERS,
    default_port=8000,
    cpu=False,
    command=_command,
    program="trtllm-serve",
    find_model=find_weights,
    memory_share=takes_what_is_free,
    owned_by=frozenset({"tensorrt_llm"}),
    info_paths=("/version",),
    read_facts=read_facts,
    cache_env=("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"),
    request_extras=_request_extras,
    continuous_usage=True,
    metrics_url="/prometheus/metrics",
    series=_SERIES,
)
