"""Hugging Face Text Generation Inference."""

from __future__ import annotations

from typing import Final

from pytest_llmperf.engines.engine import Documents, Engine, LiveFacts, mapping, texts

__all__ = ["TGI", "read_facts"]


def read_facts(documents: Documents, _model: str) -> LiveFacts:
    """Facts from ``/info``; it says nothing of data type and quantization."""
    info = mapping(documents.get("/info"))
    version, total = info.get("version"), info.get("max_total_tokens")
    return LiveFacts(
        version=version if isinstance(version, str) else None,
        parameters=texts({"max_num_seqs": info.get("max_concurrent_requests"), "max_model_len": total}),
        consequence=texts(
            {
                "max_model_len": total,
                "max_input_tokens": info.get("max_input_tokens"),
                "model_root": info.get("model_id"),
                "model_revision": info.get("model_sha"),
            }
        ),
    )


TGI: Final = Engine(
    name="tgi",
    title="TGI",
    parameters={
        "max_num_seqs": "--max-concurrent-requests",
        "max_model_len": "--max-total-tokens",
        "quantization": "--quantize",
        "kv_cache_dtype": "--kv-cache-dtype",
    },
    default_port=3000,
    cpu=False,
    info_paths=("/info",),
    read_facts=read_facts,
    # Neither an exact nor a least output length can be asked for.
    apis=("chat", "completions", "tgi"),
)
