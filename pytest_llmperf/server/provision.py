"""What a launch needs, fetched and checked before the first judged one: model, engine version, program."""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import final

from pytest_llmperf.engines import Engine, engine_of, launchable
from pytest_llmperf.engines.engine import check_parameters
from pytest_llmperf.engines.folders import expanded
from pytest_llmperf.errors import ConfigError
from pytest_llmperf.plan import ServerSpec
from pytest_llmperf.server.dock import pull
from pytest_llmperf.server.environments import installed_version, made_environment, program_version, python_with

__all__ = ["Provisioned", "provision"]


@final
@dataclass(frozen=True, slots=True)
class Provisioned:
    """What ``launch`` starts a specification with."""

    model: str = ""
    """As the engine's command takes it."""
    program: tuple[str, ...] = ()
    """Stands in place of the first word of the engine's command; empty: the engine's own is right."""
    version: str | None = None
    """Of the engine as it is installed; None where only the running server can tell."""
    image: str = ""
    """Name and digest of the image that a container is made of."""
    image_id: str = ""
    entrypoint: tuple[str, ...] = ()
    """Of the image."""


def provision(spec: ServerSpec) -> Provisioned:
    """Install and check what ``spec`` needs. Nothing to do, and at once done, where it has been done before.

    Raises ConfigError for an engine, parameter, path, program or version that isn't there, InfraError where the weights
    are not on this machine, and where the package index, the disk or the tool that installs fails.
    """
    if spec.targeted:
        return Provisioned()
    engine = engine_of(spec)
    where = f"servers.{spec.name}"
    if spec.launched_by == "command":
        require_program(spec, where)
        if not spec.uses_engine_command:
            return Provisioned(spec.model or "")
    if engine.command is None:
        problem = f"{engine.title} can't be launched by this version (it can launch: {', '.join(launchable())})"
        raise ConfigError(where, "engine", f"{problem}; start it yourself and give its url")
    check_parameters(engine, spec)
    model = engine.find_model(spec)
    if spec.launched_by == "container":
        image = pull(spec.image_name or "", where)
        return Provisioned(_on_host(model), (), None, image.name, image.id, image.entrypoint)
    if spec.program is not None:
        found = _executable(spec, engine, model, expanded(spec.program), where)
    elif spec.version is None:
        found = _installed(engine, model, where)
    else:
        found = _made(spec.version, engine, model, where)
    check_parameters(engine, spec, found.version or "newest")
    return found


def _made(version: str, engine: Engine, model: str, where: str) -> Provisioned:
    if engine.distribution is None:
        raise ConfigError(where, "version", f"{engine.title} is on no package index; give executable = '…{{version}}…'")
    folder = made_environment(engine.distribution, version, where, engine.companions)
    return Provisioned(model, (str(folder / "bin" / engine.program),), version)


def _installed(engine: Engine, model: str, where: str) -> Provisioned:
    """What is installed already: beside this Python, or on the PATH."""
    advice = "give executable, the path of its program" + (", or version, to install it" if engine.distribution else "")
    if engine.program == "python":
        if engine.launch_version is not None or engine.distribution is None:
            return Provisioned(model, (), engine.launch_version() if engine.launch_version else None)
        version = installed_version(Path(sys.executable), engine.distribution)
        if version is None:
            raise ConfigError(where, "engine", f"{engine.distribution} is not installed beside this Python; {advice}")
        return Provisioned(model, (sys.executable,), version)
    beside = Path(sys.executable).parent / engine.program
    path = str(beside) if os.access(beside, os.X_OK) else shutil.which(engine.program)
    if path is None:
        problem = f"{engine.program} is neither beside this Python nor on the PATH"
        raise ConfigError(where, "engine", f"{problem}; {advice}")
    version = program_version(Path(path), engine.distribution) if engine.distribution else None
    return Provisioned(model, (path,), version)


def require_program(spec: ServerSpec, where: str) -> None:
    """Raise ConfigError where the first word of ``start`` is no program that is found here."""
    word = spec.start[0]
    if "{" in word:
        return
    (path,) = spec.filled((word,), 0)
    if shutil.which(path) is None:
        looked = "on the PATH" if path == word and "/" not in word else f"for {path}"
        raise ConfigError(where, "start", f"{word!r} is no program (looked {looked})")


def _executable(spec: ServerSpec, engine: Engine, model: str, path: Path, where: str) -> Provisioned:
    if not path.is_file() or not os.access(path, os.X_OK):
        problem = f"{spec.executable!r} is no program (looked for {path.absolute()})"
        raise ConfigError(where, "executable", problem)
    version = spec.version  # as the path has it; the running server has the last word
    if engine.distribution is not None and engine.program == "python":
        path, version = python_with(path, engine.distribution, where)
        if spec.version is not None and not engine.same_version(spec.version, version):
            problem = f"{spec.version!r} was asked for, but {path} has {engine.distribution} {version}"
            raise ConfigError(where, "version", problem)
    elif engine.distribution is not None and version is None:
        version = program_version(path, engine.distribution)
    return Provisioned(model, (str(path.absolute()),), version)


def _on_host(model: str) -> str:
    """``model`` as an absolute path where it is one of this machine, which the container gets; else as it is."""
    path = expanded(model)
    return str(path.absolute()) if model and path.exists() else model
