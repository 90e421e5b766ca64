"""Launches as the gate judges them, and as a baseline stores them."""

from __future__ import annotations

import math

from pytest_llmperf.baseline.schema import StoredLaunch
from pytest_llmperf.stats.launches import LaunchValues

__all__ = ["from_stored", "stored_launch"]


def stored_launch(launch: LaunchValues, replays: int) -> StoredLaunch:
    """Infinite values become None: no finite value."""
    return StoredLaunch(
        order=launch.order,
        block=launch.block,
        n_requests=launch.n_requests,
        n_failed=launch.n_failed,
        n_tokens=launch.n_tokens,
        replays=replays,
        metrics={name: value if math.isfinite(value) else None for name, value in sorted(launch.metrics.items())},
        sources=dict(launch.sources),
        time_to_ready_s=launch.metrics.get("time_to_ready"),
    )


def from_stored(launch: StoredLaunch, session: str) -> LaunchValues:
    return LaunchValues(
        metrics={name: math.inf if value is None else value for name, value in launch.metrics.items()},
        order=launch.order,
        block=launch.block,
        session=session,
        n_requests=launch.n_requests,
        n_failed=launch.n_failed,
        n_tokens=launch.n_tokens,
        sources=launch.sources,
    )
