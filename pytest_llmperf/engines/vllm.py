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


def _request_extras(_spec: ServerSpec) -> dict[str, Any]:
    return {"ignore_eos": True}


def read_facts(documents: Documents, model: str) -> LiveFacts:
    """Facts from ``/version``, ``/v1/models`` and the labels of ``vllm:cache_config_info`` in ``/metrics``."""
    version = mapping(documents.get("/version")).get("version")
    listed = listed_model(documents, model)
    metrics = documents.get("/metrics")
    found = _CACHE_INFO.search(metrics) if isinstance(metrics, str) else None
    labels = {name: value for name, value in _LABEL.findall(found[1]) if value != "None"} if found else {}
    length = listed.get("max_model_len")
    prefix_caching = labels.get("enable_prefix_caching")
    return LiveFacts(
        version=version if isinstance(version, str) else None,
        parameters=texts(
            {
                "max_model_len": length,
                "enable_prefix_caching": prefix_caching.lower() if prefix_caching else None,
                "kv_cache_dtype": labels.get("cache_dtype"),
            }
        ),
        consequence=texts(
            {
                "max_model_len": length,
                "model_root": listed.get("root"),
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
    info_paths=("/version", "/metrics"),
    read_facts=read_facts,
    request_extras=_request_extras,
    continuous_usage=True,
)
