"""Whether a file is still what it was when the tests were collected."""

from __future__ import annotations

from hashlib import file_digest
from pathlib import Path

from pytest_llmperf.errors import ConfigError

__all__ = ["verify"]


def verify(path: str, digest: str) -> None:
    """Raises ConfigError where the file is gone or its SHA-256 is another."""
    try:
        with Path(path).open("rb") as file:
            found = file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise ConfigError(path, "", f"cannot be read: {error.strerror}") from None
    if found != digest:
        raise ConfigError(path, "", "has changed since the tests were collected")
