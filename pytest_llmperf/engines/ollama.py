"""Ollama."""

from __future__ import annotations

from typing import Final

from pytest_llmperf.engines.engine import Documents, Engine, LiveFacts, mapping

__all__ = ["OLLAMA", "read_facts"]


def read_facts(documents: Documents, model: str) -> LiveFacts:
    """Facts from ``/api/version`` and, for the model, ``/api/tags``."""
    version = mapping(documents.get("/api/version")).get("version")
    listed = mapping(documents.get("/api/tags")).get("models")
    entries = [mapping(entry) for entry in listed] if isinstance(listed, list) else []
    found = next((entry for entry in entries if model in (entry.get("name"), entry.get("model"))), mapping(None))
    details = mapping(found.get("details"))
    level, digest = details.get("quantization_level"), found.get("digest")
    return LiveFacts(
        version=version if isinstance(version, str) else None,
        quantization=level.lower() if isinstance(level, str) and level else None,
        consequence={"model_digest": digest} if isinstance(digest, str) else {},
    )


OLLAMA: Final = Engine(
    name="ollama",
    title="Ollama",
    parameters={},
    default_port=11434,
    cpu=False,
    ready_path="/api/version",
    info_paths=("/api/version", "/api/tags"),
    read_facts=read_facts,
    apis=("chat", "completions", "ollama-chat", "ollama-generate"),
)
