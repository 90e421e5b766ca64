"""Ollama. Variables as of 0.33."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pytest_llmperf.engines.engine import Documents, Engine, LiveFacts, mapping, texts
from pytest_llmperf.engines.models import require_named
from pytest_llmperf.engines.parameters import Flag, written
from pytest_llmperf.plan import ServerSpec

__all__ = ["OLLAMA", "read_facts"]

_PARAMETERS: Final[Mapping[str, str | Flag]] = {
    "max_num_seqs": "OLLAMA_NUM_PARALLEL",
    "max_model_len": "OLLAMA_CONTEXT_LENGTH",
    "kv_cache_dtype": "OLLAMA_KV_CACHE_TYPE",
}


def _command(spec: ServerSpec, _port: int, _model: str) -> list[str]:
    return ["ollama", "serve", *spec.extra_args]


def _environment(spec: ServerSpec, port: int) -> dict[str, str]:
    """All that is set is set by variables. A model that is unloaded between two loads would be loaded in the second."""
    given = {words[0]: words[1] for words in written(_PARAMETERS, spec).values()}
    return {"OLLAMA_HOST": f"127.0.0.1:{port}", "OLLAMA_KEEP_ALIVE": "-1", **given}


def read_facts(documents: Documents, model: str) -> LiveFacts:
    """Facts from ``/api/version`` and, for the model, ``/api/tags`` and ``/api/ps`` (once it is loaded)."""
    version = mapping(documents.get("/api/version")).get("version")
    tagged, loaded = _entry(documents, "/api/tags", model), _entry(documents, "/api/ps", model)
    level = mapping(tagged.get("details")).get("quantization_level")
    length = loaded.get("context_length")
    return LiveFacts(
        version=version if isinstance(version, str) else None,
        quantization=level.lower() if isinstance(level, str) and level else None,
        parameters=texts({"max_model_len": length}),
        consequence=texts(
            {
                "model_digest": digest if isinstance(digest := tagged.get("digest"), str) else None,
                "max_model_len": length,
                "size_vram": loaded.get("size_vram"),
            }
        ),
    )


def _entry(documents: Documents, path: str, model: str) -> Mapping[str, object]:
    """The entry of ``model`` in a list of models, empty where there is none."""
    listed = mapping(documents.get(path)).get("models")
    entries = [mapping(entry) for entry in listed] if isinstance(listed, list) else []
    return next((entry for entry in entries if model in (entry.get("name"), entry.get("model"))), {})


OLLAMA: Final = Engine(
    name="ollama",
    title="Ollama",
    parameters=_PARAMETERS,
    default_port=11434,
    cpu=False,
    command=_command,
    environment=_environment,
    program="ollama",
    find_model=require_named,
    ready_path="/api/version",
    mark=("/api/version", "version"),
    info_paths=("/api/version", "/api/tags", "/api/ps"),
    read_facts=read_facts,
    apis=("chat", "completions", "ollama-chat", "ollama-generate"),
)
