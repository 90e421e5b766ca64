"""vLLM."""

from __future__ import annotations

import re
from typing import Any, Final

from pytest_llmperf.engines.engine import Documents, Engine, LiveFacts, listed_model, mapping, texts
from pytest_llmperf.plan import ServerSpec

__all__ = ["VLLM", "read_facts"]

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
_DTYPES: Final = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}


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
    labels = {name: value for name, value in _LABEL.findall(found[1]) if value != "None"} if found else {}
    info = mapping(documents.get(_SERVER_INFO))
    config, machine = mapping(info.get("vllm_config")), mapping(info.get("system_env"))
    model_config, scheduler = mapping(config.get("model_config")), mapping(config.get("scheduler_config"))
    dtype = str(model_config.get("dtype") or "").removeprefix("torch.")
    quantization = model_config.get("quantization") or _DTYPES.get(dtype)
    kinds = set(re.findall(r"^GPU \d+: (.+?)(?: \(UUID.*)?$", str(machine.get("nvidia_gpu_models")), re.MULTILINE))
    length = listed.get("max_model_len")
    prefix_caching = labels.get("enable_prefix_caching")
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
                "enable_prefix_caching": prefix_caching.lower() if prefix_caching else None,
                "kv_cache_dtype": labels.get("cache_dtype"),
            }
        ),
        consequence=texts(
            {
                "max_model_len": length,
                "model_root": listed.get("root"),
                "dtype": dtype,
                "max_num_batched_tokens": scheduler.get("max_num_batched_tokens"),
                "tensor_parallel_size": mapping(config.get("parallel_config")).get("tensor_parallel_size"),
                "torch": machine.get("torch_version"),
                "cuda": machine.get("cuda_runtime_version"),
                **{name: labels.get(name) for name in _CACHE_LABELS},
            }
        ),
    )


VLLM: Final = Engine(
    name="vllm",
    title="vLLM",
    parameters={
        "max_num_seqs": "--max-num-seqs",
        "max_model_len": "--max-model-len",
        "enable_prefix_caching": "--enable-prefix-caching",
        "quantization": "--quantization",
        "kv_cache_dtype": "--kv-cache-dtype",
    },
    default_port=8000,
    cpu=False,
    owned_by=frozenset({"vllm"}),
    info_paths=("/version", "/metrics", _SERVER_INFO),
    read_facts=read_facts,
    request_extras=_request_extras,
    continuous_usage=True,
)
