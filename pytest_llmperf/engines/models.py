"""The model that a launch is given: a folder or file that is there, or a name that is in the hub's cache."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

from pytest_llmperf.errors import ConfigError, InfraError
from pytest_llmperf.plan import ServerSpec

__all__ = ["find_file", "find_weights", "hub_cache", "require_named"]

_NAME: Final = re.compile(r"[\w][\w.-]*(/[\w.-]+)?\Z")
"""``model`` or ``organisation/model``, as the hub has them."""


def require_named(spec: ServerSpec) -> str:
    """``spec.model`` as it is written. Raises ConfigError where there is none."""
    if not spec.model:
        raise ConfigError(f"servers.{spec.name}", "model", f"{spec.engine} is launched with a model; name it")
    return spec.model


def find_weights(spec: ServerSpec) -> str:
    """The folder of ``spec.model`` as an absolute path, or its name where the hub's cache has it.

    Servers are started offline: what is not there now would not be found then. Inside an image paths are the image's
    own, and nothing is checked. Raises ConfigError for what can be no model, InfraError for a name whose weights this
    machine lacks: another has them, and the test file is right.
    """
    written = require_named(spec)
    if spec.image or spec.image_template:
        return written
    path = Path(written).expanduser()
    if path.exists():
        return str(path.absolute())
    where = f"servers.{spec.name}"
    if not _NAME.match(written) or written.startswith("."):
        raise ConfigError(where, "model", f"{written!r} does not exist (looked for {path.absolute()})")
    cache = hub_cache(spec)
    if not (cache / f"models--{written.replace('/', '--')}").is_dir():
        problem = f"{written!r} is no path (looked for {path.absolute()}) and not in the hub's cache, {cache}"
        fetch = f"servers start offline, so fetch it first: hf download {written}"
        raise InfraError(f"{where}: model: {problem}: {fetch}")
    return written


def find_file(spec: ServerSpec) -> str:
    """The file of ``spec.model`` as an absolute path; as it is written inside an image. Raises ConfigError."""
    written = require_named(spec)
    if spec.image or spec.image_template:
        return written
    path = Path(written).expanduser()
    if not path.is_file():
        problem = f"{written!r} is no file (looked for {path.absolute()}); give the path of a GGUF file"
        raise ConfigError(f"servers.{spec.name}", "model", problem)
    return str(path.absolute())


def hub_cache(spec: ServerSpec) -> Path:
    """Where the hub's client keeps models, as the server will see it."""
    env = {**os.environ, **spec.env}
    home = env.get("HF_HOME") or str(Path(env.get("XDG_CACHE_HOME") or "~/.cache") / "huggingface")
    return Path(env.get("HF_HUB_CACHE") or env.get("HUGGINGFACE_HUB_CACHE") or Path(home) / "hub").expanduser()
