"""The model that a launch is given: a folder or file that is there, or a name that is in the hub's cache."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Final

from pytest_llmperf.engines.flags import flags_of
from pytest_llmperf.engines.folders import expanded
from pytest_llmperf.errors import ConfigError, InfraError
from pytest_llmperf.plan import ServerSpec

__all__ = ["find_file", "find_weights", "hub_folder", "require_named"]

_NAME: Final = re.compile(r"[\w][\w.-]*(/[\w.-]+)?\Z")
"""``model`` or ``organisation/model``, as the hub has them."""
_CONFIGS: Final = ("config.json", "params.json")
"""The second is Mistral's own."""
_INDICES: Final = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
_PLAIN: Final = ("auto", "hf", "safetensors")
"""Values of ``--load-format`` with which the weights are those that the index names."""
_WEIGHTS: Final = frozenset({".safetensors", ".bin", ".pt", ".pth", ".gguf"})


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
    path = expanded(written)
    if path.exists():
        return str(path.absolute())
    where = f"servers.{spec.name}"
    if not _NAME.match(written) or written.startswith("."):
        raise ConfigError(where, "model", f"{written!r} does not exist (looked for {path.absolute()})")
    folder, flags = hub_folder(written, spec), flags_of(spec.extra_args)
    revision = flags.get("--revision", "main")
    fetch = f"servers start offline, so fetch it first: hf download {written}"
    fetch += "" if revision == "main" else f" --revision {revision}"
    if not folder.is_dir():
        problem = f"{written!r} is no path (looked for {path.absolute()}) and not in the hub's cache, {folder.parent}"
        raise InfraError(f"{where}: model: {problem}: {fetch}")
    weights = flags.get("--load-format", "auto") in _PLAIN and "--empty-init" not in flags
    lacks = _lacks(folder, revision, weights=weights)
    if lacks is not None:
        problem = f"{written!r} is not whole in the hub's cache, {folder}: {lacks}"
        raise InfraError(f"{where}: model: {problem}; {fetch}")
    return written


def find_file(spec: ServerSpec) -> str:
    """The file of ``spec.model`` as an absolute path; as it is written inside an image. Raises ConfigError."""
    written = require_named(spec)
    if spec.image or spec.image_template:
        return written
    path = expanded(written)
    if not path.is_file():
        problem = f"{written!r} is no file (looked for {path.absolute()}); give the path of a GGUF file"
        raise ConfigError(f"servers.{spec.name}", "model", problem)
    return str(path.absolute())


def hub_folder(model: str, spec: ServerSpec) -> Path:
    """Where the hub's client keeps ``model``, as the server will see it; an absolute path."""
    env = {**os.environ, **spec.env}
    home = env.get("HF_HOME") or str(Path(env.get("XDG_CACHE_HOME") or "~/.cache") / "huggingface")
    cache = expanded(env.get("HF_HUB_CACHE") or env.get("HUGGINGFACE_HUB_CACHE") or str(Path(home) / "hub"))
    return cache.absolute() / f"models--{model.replace('/', '--')}"


def _lacks(folder: Path, revision: str, *, weights: bool) -> str | None:
    """What a server that is offline would miss of a model in the hub's cache; None where all is there.

    ``refs/NAME`` holds the commit that a branch is at, ``snapshots/COMMIT`` links to the files that were fetched.
    """
    reference = folder / "refs" / revision
    try:
        commit = reference.read_text(encoding="utf-8").strip()
    except OSError:
        commit = revision  # which may be a commit itself
    snapshot = folder / "snapshots" / commit
    if not commit or not snapshot.is_dir():
        return f"there is no snapshot of {revision!r}"
    if not any((snapshot / name).exists() for name in _CONFIGS):
        return f"there is no {_CONFIGS[0]}"
    if not weights:
        return None
    kinds = {file.suffix for file in snapshot.iterdir() if file.exists()}
    index = next((snapshot / name for name in _INDICES if (snapshot / name).exists()), None)
    # Who fetched the one format may have the other's index too.
    if index is not None and (index.name == _INDICES[0] or ".safetensors" not in kinds):
        absent = sorted(name for name in _indexed(index) if not (snapshot / name).exists())
        if absent:
            return f"{index.name} names files of weights that are absent ({len(absent)}, e.g. {absent[0]})"
    return None if kinds & _WEIGHTS else "there is no file of weights"


def _indexed(index: Path) -> set[str]:
    """The files of weights that ``index`` names; none where it cannot be read."""
    try:
        named = json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return set()
    return {name for name in named if isinstance(name, str)}
