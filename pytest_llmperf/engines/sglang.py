"""SGLang."""

from __future__ import annotations

from typing import Any, Final

from pytest_llmperf.engines.engine import Documents, Engine, LiveFacts, listed_model, mapping, texts
from pytest_llmperf.plan import ServerSpec

__all__ = ["SGLANG", "read_facts"]

_CONSEQUENCES: Final = ("max_total_num_tokens", "kv_cache_dtype", "dtype", "tp_size", "page_size")


def _request_extras(_spec: ServerSpec) -> dict[str, Any]:
    return {"ignore_eos": True}


def read_facts(documents: Documents, model: str) -> LiveFacts:
    """Facts from ``/server_info``, which holds every resolved server argument, and ``/v1/models``."""
    info = mapping(documents.get("/server_info"))
    version, quantization = info.get("version"), info.get("quantization")
    no_cache = info.get("disable_radix_cache")
    length = listed_model(documents, model).get("max_model_len") or info.get("context_length")
    return LiveFacts(
        version=version if isinstance(version, str) else None,
        quantization=quantization.lower() if isinstance(quantization, str) and quantization else None,
        parameters=texts(
            {
                "max_num_seqs": info.get("max_running_requests"),
                "max_model_len": length,
                "enable_prefix_caching": not no_cache if isinstance(no_cache, bool) else None,
                "kv_cache_dtype": info.get("kv_cache_dtype"),
            }
        ),
        consequence=texts({"max_model_len": length, **{name: info.get(name) for name in _CONSEQUENCES}}),
    )


SGLANG: Final = Engine(
    name="sglang",
    title="SGLang",
    parameters={
        "max_num_seqs": "--max-running-requests",
        "max_model_len": "--context-length",
        "enable_prefix_caching": "--disable-radix-cache",
        "quantization": "--quantization",
        "kv_cache_dtype": "--kv-cache-dtype",
    },
    default_port=30000,
    cpu=False,
    owned_by=frozenset({"sglang"}),
    info_paths=("/server_info",),
    read_facts=read_facts,
    request_extras=_request_extras,
)
