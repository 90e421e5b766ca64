"""llama.cpp's ``llama-server``. Flags and series as of build 11434; run for real as a library (the embedded engine)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from pytest_llmperf.engines.engine import Documents, Engine, LiveFacts, LogFact, listed_model, mapping, texts
from pytest_llmperf.engines.models import find_file
from pytest_llmperf.engines.parameters import Flag, arguments
from pytest_llmperf.plan import ServerSpec
from pytest_llmperf.samples import Quantity

__all__ = ["LLAMACPP", "LOG_PATTERNS", "SERIES", "read_facts", "request_extras"]

_BUILD: Final = re.compile(r"b?(\d+)(?:-([0-9a-f]+))?\Z")
"""``b11434``, or with the commit as ``build_info`` has it: ``b11434-4f3c2a1d``."""
_PARAMETERS: Final[Mapping[str, str | Flag]] = {
    "max_num_seqs": Flag("--parallel", also="-np"),
    "max_model_len": Flag("--ctx-size", also="-c"),
    "enable_prefix_caching": Flag("--cache-prompt", off="--no-cache-prompt"),
    "max_num_batched_tokens": Flag("--batch-size", also="-b"),
    "threads": Flag("--threads", also="-t"),
    "kv_cache_dtype": Flag("--cache-type-k {} --cache-type-v {}", also="-ctk -ctv"),
}
SERIES: Final[Mapping[Quantity, tuple[str, ...]]] = {
    "running": ("llamacpp:requests_processing",),
    "waiting": ("llamacpp:requests_deferred",),
    "prefix_hits": ("llamacpp:prompt_tokens_cached_total",),
    "prompt_tokens": ("llamacpp:prompt_tokens_total",),
    "drafts": ("llamacpp:spec_decode_num_drafts_total",),
    "accepted_tokens": ("llamacpp:spec_decode_num_accepted_tokens_total",),
}
LOG_PATTERNS: Final[Mapping[LogFact, tuple[str, ...]]] = {"error": (r"^(?:[\d.]+ )?(E .*)",)}


def _command(spec: ServerSpec, port: int, model: str) -> list[str]:
    # With a given number of slots the context is divided among them, and the parameter is that of one sequence.
    if spec.max_model_len is not None and spec.max_num_seqs is not None:
        spec = spec.model_copy(update={"max_model_len": spec.max_model_len * spec.max_num_seqs})
    return [
        *("llama-server", "--model", model, "--alias", Path(model).stem),
        *("--host", "127.0.0.1", "--port", str(port), "--metrics"),
        *arguments(_PARAMETERS, spec),
        *spec.extra_args,
    ]


def same_version(wanted: str, found: str) -> bool:
    """By the number of the build; by the commit too where ``wanted`` has one."""
    asked, told = _BUILD.match(wanted), _BUILD.match(found)
    if asked is None or told is None:
        return wanted == found
    return asked[1] == told[1] and (asked[2] is None or asked[2] == told[2])


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
    parameters=_PARAMETERS,
    default_port=8080,
    spellings={"-m": "model"},
    cpu=False,
    command=_command,
    program="llama-server",
    find_model=find_file,
    same_version=same_version,
    owned_by=frozenset({"llamacpp"}),
    mark=("/props", "total_slots"),
    info_paths=("/props",),
    read_facts=read_facts,
    request_extras=request_extras,
    apis=("chat", "completions", "llamacpp"),
    metrics_url="/metrics",
    series=SERIES,
    log_patterns=LOG_PATTERNS,
    # The same server as the embedded one; as a program of its own it was not launched.
    evidence="run for real",
)
