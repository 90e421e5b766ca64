"""Folders for what engines compile at their first start: of its own for every specification."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from pytest_llmperf.engines import engine_of
from pytest_llmperf.engines.folders import home
from pytest_llmperf.errors import InfraError
from pytest_llmperf.plan import ServerSpec

__all__ = ["cache_folders", "cold", "made_folders", "note_warm"]

_NO_MATTER: Final = frozenset(
    {
        *("name", "port", "api_key_env", "ca_file", "startup_timeout", "limits", "identity"),
        *("ready_url", "metrics_urls", "logs", "stop", "shm_size"),
        *("gpus", "any_gpus", "no_gpus", "gpu_wait", "gpu_shared", "lock_clocks"),
    }
)
"""Fields of which nothing that is compiled depends."""


def cold(spec: ServerSpec) -> bool:
    """Whether no launch of ``spec`` has come up yet, so that the next has to compile what later ones find.

    A launch that failed may have made the folders, and compiled some of it: that is cold still.
    """
    for folder in cache_folders(spec).values():
        with _or_infra(folder):
            if not (Path(folder).is_dir() and _mark(folder).exists()):
                return True
    return False


def note_warm(spec: ServerSpec) -> None:
    """A launch of ``spec`` has come up. It need not have used every folder; one that is missing means cold.

    Raises InfraError where that can't be noted.
    """
    for folder in made_folders(spec).values():
        with _or_infra(folder):
            _mark(folder).touch()


def made_folders(spec: ServerSpec) -> dict[str, str]:
    """``cache_folders``, made. Raises InfraError where one can't be."""
    found = cache_folders(spec)
    for folder in found.values():
        with _or_infra(folder):
            Path(folder).mkdir(parents=True, exist_ok=True)
    return found


@contextmanager
def _or_infra(folder: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InfraError(f"the compile cache {folder} can't be used: {error.strerror or error}") from error


def _mark(folder: str) -> Path:
    """Beside the folder, which is the engine's own."""
    return Path(f"{folder}.warm")


def cache_folders(spec: ServerSpec) -> dict[str, str]:
    """Environment variable of a compile cache → its folder, which the engine makes when it needs it.

    Empty where the server is not known to be of this machine: what it finds there is not ours to say.
    """
    names = engine_of(spec).cache_env
    if not names or spec.elsewhere:
        return {}
    fields = spec.model_dump_json(exclude=set(_NO_MATTER))
    root = Path(os.environ.get("XDG_CACHE_HOME") or home("XDG_CACHE_HOME") / ".cache") / "pytest-llmperf" / "compiled"
    folder = root / hashlib.sha256(fields.encode()).hexdigest()[:16]
    return {name: str(folder / name.lower()) for name in names}
