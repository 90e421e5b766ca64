"""Folders of the user, where there is one that has any."""

from __future__ import annotations

from pathlib import Path

from pytest_llmperf.errors import InfraError

__all__ = ["expanded", "home"]


def home(variable: str) -> Path:
    """The home folder, which ``variable`` would spare us. Raises InfraError where this user has none."""
    try:
        return Path.home()
    except RuntimeError:
        problem = "this user has no home folder (HOME is not set, and the system does not know the user)"
        raise InfraError(f"{problem}; set HOME, or {variable} to a folder that can be written to") from None


def expanded(written: str) -> Path:
    """``written`` with its ``~``; as it is where that stands for nobody's folder."""
    try:
        return Path(written).expanduser()
    except RuntimeError:
        return Path(written)
