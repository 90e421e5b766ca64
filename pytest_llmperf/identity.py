"""What answered: the facts that make two measurements comparable, each with where it was learnt."""

from __future__ import annotations

import hashlib
import json
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

__all__ = ["Fact", "Identity"]


class Fact(BaseModel):
    """One value as text, and its source: read from the live server, configured by us, or not to be learnt."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    value: str
    source: Literal["live", "configured", "declared", "unknown"]


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
