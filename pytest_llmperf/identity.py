"""What answered: the facts that make two measurements comparable, each with where it was learnt."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, Field

__all__ = ["ENVIRONMENT", "INPUTS", "UNKNOWN", "Fact", "FactClass", "Identity", "fact_class"]

FactClass = Literal["input", "environment", "consequence"]

INPUTS: Final = (
    *("engine", "version", "image", "executable", "start", "model", "model_digest", "model_revision"),
    *("quantization", "kv_cache_dtype", "max_num_seqs", "max_model_len", "gpu_memory_utilization", "block_size"),
    *("swap_space", "kv_offloading_size", "enable_prefix_caching", "enable_chunked_prefill"),
    *("max_num_batched_tokens", "tensor_parallel_size", "threads"),
)
"""Input facts with a name of their own; flags are ``args.--flag``, environment variables ``env.NAME``.

A server that does not tell its flags (variables) has the fact ``args`` (``env``) with the value ``unknown``.
"""
ENVIRONMENT: Final = ("gpu", "gpu_count", "gpu_memory", "mig", "driver", "host", "system", "pool", "workload")


class Fact(BaseModel):
    """One value as text, and its source: read from the live server, configured by us, or not to be learnt."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    value: str
    source: Literal["live", "configured", "declared", "unknown"]


UNKNOWN: Final = Fact(value="unknown", source="unknown")


class Identity(BaseModel):
    """Facts in three classes: what was set, where it ran, and what followed from both."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    input: dict[str, Fact] = Field(default_factory=dict)
    """engine, version, model, quantization, canonical parameters, flags …"""
    environment: dict[str, Fact] = Field(default_factory=dict)
    """GPU kind and count, driver, host class …"""
    consequence: dict[str, Fact] = Field(default_factory=dict)
    """Effective context length, slots, fingerprints …"""

    def digest(self) -> str:
        """Sixteen hex digits over the input facts' values; equal inputs have equal digests."""
        values = {name: fact.value for name, fact in sorted(self.input.items())}
        return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]

    def value(self, name: str) -> str:
        """The value of a fact of any class, ``"unknown"`` where there is none."""
        for facts in (self.input, self.environment, self.consequence):
            if name in facts:
                return facts[name].value
        return "unknown"

    def facts(self, kind: FactClass) -> Mapping[str, Fact]:
        """The facts of one class."""
        return {"input": self.input, "environment": self.environment, "consequence": self.consequence}[kind]


def fact_class(name: str) -> FactClass | None:
    """The class of an input or environment fact called ``name``; None where there is no such fact."""
    outer, dot, inner = name.partition(".")
    if name in INPUTS or (outer in ("args", "env") and (bool(inner) or not dot)):
        return "input"
    return "environment" if name in ENVIRONMENT else None
