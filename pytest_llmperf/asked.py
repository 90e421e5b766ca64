"""What a test asks for, before any of it is understood: the same from markers and from a suite file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

__all__ = ["LEVELS", "LOAD_FIELDS", "PLAN_FIELDS", "Asked", "merge"]

LEVELS: Final = ("concurrency", "request_rate", "schedule", "trace")
SHAPES: Final = ("arrival", "burstiness", "max_concurrency", "time_scale", "ramp", "stagger")
"""What belongs to one of the levels, and goes with it when a closer layer names another."""
LOAD_FIELDS: Final = (*LEVELS, *SHAPES, "requests", "duration", "warmup")
OTHER_FIELDS: Final = (
    "workload", "api", "server", "slo", "replays", "seed", "sampling", "stream_share", "clients", "expects",
)  # fmt: skip
PLAN_FIELDS: Final = (*OTHER_FIELDS, *LOAD_FIELDS)
"""Arguments of the llmperf marker."""
EXCLUSIVE: Final = (LEVELS, ("requests", "duration"))
"""Of each group, what a closer layer says replaces what a farther one said."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What one test asks for, as written. Layers are the arguments of one marker each, the farthest first."""

    nodeid: str
    folder: Path
    """Of the file that the test stands in: what it names is looked for there first."""
    fields: Mapping[str, Any]
    """Of ``PLAN_FIELDS``: the closest wins, see ``merge``."""
    slas: tuple[Mapping[str, Any], ...] = ()
    regressions: tuple[Mapping[str, Any], ...] = ()


def merge(layers: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """``layers`` of plan fields, the farthest first, as one: what is closer to the test wins."""
    merged: dict[str, Any] = {}
    for layer in layers:
        kept_level = [key for key in LEVELS if key in merged and key in layer]
        for group in EXCLUSIVE:
            if set(group) & set(layer):
                merged = {key: value for key, value in merged.items() if key not in group}
        if set(LEVELS) & set(layer) and not kept_level:
            merged = {key: value for key, value in merged.items() if key not in SHAPES}
        merged.update(layer)
    return merged
