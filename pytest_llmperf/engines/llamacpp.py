"""llama.cpp's ``llama-server``."""

from __future__ import annotations

from typing import Any, Final

from pytest_llmperf.engines.engine import Documents, Engine, LiveFacts, listed_model, mapping, texts
from pytest_llmperf.plan import ServerSpec

__all__ = ["LLAMACPP", "read_facts", "request_extras"]


def request_extras(spec: ServerSpec) -> dict[str, Any]:
    """Exact output length, the prompt cache as the specification wants it, and a token count on every event.

    The server honours the cache per request. Text is held back until a character is whole, so that only the count
    tells how many tokens an event stands for.
    """
    return {
        "ignore_eos": True,
        "cache_prompt": spec.enable_prefix_caching is not False,
        "timings_per_token": True,
    }


def read_facts(documents: Documents, model: str) -> LiveFacts:
    """Facts from ``/v1/models`` (``meta``) and ``/props``. ``n_ctx`` there is the context of one slot."""
    meta = mapping(listed_model(documents, model).get("meta"))
    props = mapping(documents.get("/props"))
    ftype = meta.get("ftype") or props.get("model_ftype")
    build = props.get("build_info")
    context = meta.get("n_ctx")
    return LiveFacts(
        # The library build says "b0-unknown": that is no version.
        version=build if isinstance(build, str) and not build.startswith("b0-") else None,
        quantization=ftype.lower() if isinstance(ftype, str) and ftype else None,
        parameters=texts({"max_num_seqs": props.get("total_slots"), "max_model_len": context}),
        consequence=texts(
            {
                "n_ctx": context,
                "n_ctx_train": meta.get("n_ctx_train"),
                "slots": props.get("total_slots"),
                "max_model_len": context,
                "model_parameters": meta.get("n_params"),
                "weight_bytes": meta.get("size"),
                "system_fingerprint": build,
            }
        ),
    )


LLAMACPP: Final = Engine(
    name="llamacpp",
    title="llama.cpp",
    parameters={
        "max_num_seqs": "--parallel",
        "max_model_len": "--ctx-size",
        "enable_prefix_caching": "--cache-prompt",
        "threads": "--threads",
    },
    default_port=8080,
    cpu=False,
    owned_by=frozenset({"llamacpp"}),
    info_paths=("/props",),
    read_facts=read_facts,
    request_extras=request_extras,
    apis=("chat", "completions", "llamacpp"),
)
