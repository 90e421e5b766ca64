"""The stored form of a baseline. Frozen; a reader of another schema version refuses the file.

One file holds one test on one engine version, quantization, GPU set and model; its entries, keyed by the digest of
the input identity, hold parameter sets side by side. Values are in base units, one per launch: what a gate compares.
"""

from __future__ import annotations

from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from pytest_llmperf.identity import Fact, Identity

__all__ = ["SCHEMA", "BaselineFile", "Entry", "Session", "StoredLaunch"]

SCHEMA: Final = "pytest-llmperf/baseline/1"


class _Stored(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True, protected_namespaces=())


class StoredLaunch(_Stored):
    """One server launch: one value per metric over all its replays."""

    order: int
    block: int
    n_requests: int
    """Measured requests sent, failed ones included."""
    n_failed: int
    n_tokens: int | None = None
    replays: int = 1
    metrics: dict[str, float | None]
    """Name → value in base units; None where a quantile lies among failed requests (no finite value)."""
    sources: dict[str, str] = Field(default_factory=dict)
    """Metric → how it was measured, where that was not the usual way: not comparable with those of another one."""
    time_to_ready_s: float | None = None


class Session(_Stored):
    """Launches on one host on one occasion, and who took them for what reason."""

    id: str
    """Unlike that of any other session; begins with its time, so that ids sort by age."""
    created: str
    """ISO 8601, UTC."""
    by: str
    reason: str
    commit: str | None
    """Of the suite's repository, with ``-dirty`` where files had changed; None outside of one."""
    node: str
    pool: str | None
    plugin_version: str
    environment: dict[str, Fact] = Field(default_factory=dict)
    consequence: dict[str, Fact] = Field(default_factory=dict)
    launches: tuple[StoredLaunch, ...]


class Entry(_Stored):
    """One input identity, with its sessions, oldest first."""

    input: dict[str, Fact]
    definitions: dict[str, str] = Field(default_factory=dict)
    """Metric → definition id; a value of another definition is not comparable."""
    sessions: tuple[Session, ...]

    def identity(self) -> Identity:
        """As the newest session found it."""
        newest = self.sessions[-1]
        return Identity(input=self.input, environment=newest.environment, consequence=newest.consequence)


class BaselineFile(_Stored):
    """One test on one engine version, quantization, GPU set and model."""

    schema_: Literal["pytest-llmperf/baseline/1"] = Field(default=SCHEMA, alias="schema")
    test: str
    """Node id."""
    entries: dict[str, Entry]
    """By ``Identity.digest()`` of the input."""
