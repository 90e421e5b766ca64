"""What a server that has just become ready tells of its start: in its log, and on its page of metrics."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

from pytest_llmperf.engines import Engine
from pytest_llmperf.identity import Fact, Identity
from pytest_llmperf.plan import ServerSpec
from pytest_llmperf.records import Endpoint
from pytest_llmperf.samples import StartUp
from pytest_llmperf.telemetry.log import start_facts
from pytest_llmperf.telemetry.scraper import Scraper

__all__ = ["complete_start", "observe_start", "with_start"]

_LOG_LAG_S: Final = 2.0
_LOOK_S: Final = 0.1
_MOST_BYTES: Final = 16 * 1024 * 1024


def observe_start(
    start: StartUp, engine: Engine, endpoint: Endpoint, log_path: Path | None, spec: ServerSpec
) -> StartUp:
    """``start`` and what there is to learn now. Never raises: what cannot be read is not told."""
    sample = None
    page = Scraper.of(engine, endpoint, spec) if "kv_capacity_tokens" in engine.series else None
    if page is not None:
        with page:
            pass
        sample = next(iter(page.samples()), None)
    begun = time.monotonic()
    while True:
        found = start_facts(start, engine, _head(log_path) if engine.log_patterns else "", sample)
        # A command that follows the log may lag behind the server; lines that do not come are no loss.
        behind = spec.logs and engine.log_patterns and (found.compile_s, found.max_concurrency) == (None, None)
        if not behind or time.monotonic() - begun >= _LOG_LAG_S:
            return found
        time.sleep(_LOOK_S)


def complete_start(start: StartUp, engine: Engine, log_path: Path | None, spec: ServerSpec) -> StartUp:
    """``start`` with what its log has come to tell meanwhile, where a command follows the log. Never raises."""
    return start_facts(start, engine, _head(log_path), None) if spec.logs and engine.log_patterns else start


def with_start(identity: Identity, start: StartUp) -> Identity:
    """With what followed from its inputs as its log states it: how many requests of the greatest length fit at once."""
    if start.max_concurrency is None:
        return identity
    told = {"max_concurrency": Fact(value=f"{start.max_concurrency:g}", source="live")}
    return identity.model_copy(update={"consequence": {**identity.consequence, **told}})


def _head(path: Path | None) -> str:
    if path is None:
        return ""
    try:
        with path.open("rb") as file:
            return file.read(_MOST_BYTES).decode(errors="replace")
    except OSError:
        return ""
