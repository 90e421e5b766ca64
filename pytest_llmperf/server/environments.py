"""Environments that hold one version of an engine each, made by uv in the user's cache folder."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from pytest_llmperf.engines.tiny_model import cache_dir
from pytest_llmperf.errors import ConfigError, InfraError

__all__ = ["installed_version", "made_environment", "program_version", "python_with"]

_PYTHON: Final = re.compile(r"""(?:^#!\s*|exec'? ["'])(/[^"'\n]*?python[\d.]*)["' \n]""")
_TIMEOUT_S: Final = 1800.0
_SHOWN_LINES: Final = 4
_TAG: Final = f"{sys.implementation.cache_tag}-{sys.platform}"
_NO_SPACE: Final = ("No space left on device", "os error 28", "Disk quota exceeded", "os error 122")
_NO_NETWORK: Final = ("error sending request", "Failed to fetch", "Request failed", "network was disabled", "timed out")


def made_environment(distribution: str, version: str, where: str, companions: tuple[str, ...] = ()) -> Path:
    """The folder of an environment with ``distribution==version`` (wheels only) and nothing else but its needs.

    ``companions`` are requirements that count among them.

    It is made once and kept; two processes that want it at once make it once. Raises ConfigError (``where`` names the
    server) where uv is missing or there is no such version, InfraError where the index, the disk or uv fails.
    """
    folder = cache_dir().absolute() / "environments" / _TAG / f"{distribution}-{version}"
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _locked(folder.with_name(f"{folder.name}.lock")):
            if not _complete(folder, distribution, version):
                shutil.rmtree(folder, ignore_errors=True)
                _make(folder, distribution, version, where, companions)
    except OSError as error:
        problem = f"{distribution}=={version} cannot be installed in {folder}: {error.strerror or error}"
        raise InfraError(problem) from error
    return folder


def installed_version(python: Path, distribution: str) -> str | None:
    """The version of ``distribution`` that ``python`` would import; None where it has none.

    Raises InfraError where it is no Python that runs.
    """
    code = (
        "import importlib.metadata as m, sys\ntry: print(m.version(sys.argv[1]))\nexcept m.PackageNotFoundError: pass\n"
    )
    try:
        done = subprocess.run(
            [python, "-P", "-c", code, distribution], capture_output=True, text=True, timeout=60, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InfraError(f"{python} does not run: {error}") from error
    if done.returncode:
        raise InfraError(f"{python} does not run: {_last_lines(done.stderr)}")
    return done.stdout.strip() or None


def python_with(path: Path, distribution: str, where: str) -> tuple[Path, str]:
    """The Python that has ``distribution``, with the version: ``path``, or that of the script that ``path`` is.

    Raises ConfigError where there is none.
    """
    tried = _pythons(path) if path.name == distribution else (path,)
    trouble = f"{path} is no Python that runs"
    for python in tried:
        try:
            version = installed_version(python, distribution)
        except InfraError:
            continue
        if version is not None:
            return python, version
        trouble = f"{python} is a Python without {distribution}"
    needed = (
        f"{distribution} is launched by the Python that has it; give the path of that, e.g. /path/to/venv/bin/python"
    )
    raise ConfigError(where, "executable", f"{trouble}; {needed}")


def program_version(program: Path, distribution: str) -> str | None:
    """The version of ``distribution`` that ``program`` comes from; None where that can't be told without running it.

    Asked of the Python that the script names in its first lines, else of the one beside it.
    """
    for python in _pythons(program):
        if python.is_file() and os.access(python, os.X_OK):
            try:
                found = installed_version(python, distribution)
            except InfraError:
                continue
            if found is not None:
                return found
    return None


def _pythons(program: Path) -> Iterator[Path]:
    try:
        with program.open("rb") as file:
            head = file.read(512).decode(errors="replace")
    except OSError:
        head = ""
    # Where the path is long or has blanks, a shell stands in between, which executes the quoted path.
    named = _PYTHON.search(head) if head.startswith("#!") else None
    if named:
        yield Path(named[1])
    for folder in dict.fromkeys((program.parent, program.resolve().parent)):
        yield folder / "python"


def _complete(folder: Path, distribution: str, version: str) -> bool:
    """Whether the environment was made to the end and still runs: the Python under it may have gone."""
    if not (folder / ".complete").is_file():
        return False
    try:
        return installed_version(folder / "bin" / "python", distribution) == version
    except InfraError:
        return False


def _make(folder: Path, distribution: str, version: str, where: str, companions: tuple[str, ...]) -> None:
    uv = _uv(where)
    wanted = f"{distribution}=={version}"
    made = _run([uv, "venv", "--quiet", "--python", sys.executable, str(folder)])
    if made.returncode:
        raise _trouble(wanted, made.stderr)
    python = str(folder / "bin" / "python")
    # Compiled now, so that the first start does not pay for it.
    command = [uv, "pip", "install", "--quiet", "--compile-bytecode", "--python", python]
    done = _run([*command, "--only-binary", distribution, wanted, *companions])
    if done.returncode:
        text = " ".join(done.stderr.split())
        offline = any(sign in text for sign in _NO_NETWORK)
        if not offline and re.search(r"no version of|no wheels? with a matching|no usable wheels", text):
            near = _versions_near(uv, python, distribution, version)
            exist = f"; there are e.g. {', '.join(near)}" if near else ""
            problem = f"{version!r}: no wheel of {distribution} for this Python and platform has that version{exist}"
            raise ConfigError(where, "version", problem)
        raise _trouble(wanted, done.stderr)
    found = installed_version(Path(python), distribution)
    if found != version:
        shutil.rmtree(folder, ignore_errors=True)
        raise ConfigError(where, "version", f"{version!r}: the index calls this version {found!r}; write it so")
    (folder / ".complete").touch()


def _versions_near(uv: str, python: str, distribution: str, version: str) -> tuple[str, ...]:
    """The next version below and above, and the newest, in that order; empty where the index does not say."""
    found = []
    for wanted, which in ((f"<{version}", "highest"), (f">{version}", "lowest"), ("", "highest")):
        command = [uv, "pip", "compile", "--quiet", "--no-deps", "--no-header", "--no-annotate"]
        command += ["--python", python, "--only-binary", distribution, "--resolution", which, "-"]
        done = _run(command, f"{distribution}{wanted}\n")
        if done.returncode == 0:
            found += re.findall(r"==(\S+)", done.stdout)[:1]
    return tuple(dict.fromkeys(found))


def _trouble(wanted: str, stderr: str) -> InfraError:
    said = _last_lines(stderr)
    if any(sign in stderr for sign in _NO_SPACE):
        return InfraError(f"{wanted} cannot be installed: the disk is full ({said})")
    if any(sign in stderr for sign in _NO_NETWORK):
        return InfraError(f"{wanted} cannot be installed: the package index does not answer ({said})")
    return InfraError(f"{wanted} cannot be installed: {said}")


def _run(command: list[str], given: str | None = None) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(command, input=given, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        raise InfraError(f"{' '.join(command[:3])} … took longer than {_TIMEOUT_S / 60:.0f} min") from None


def _uv(where: str) -> str:
    found = shutil.which("uv")
    if found is not None:
        return found
    try:
        from uv import find_uv_bin

        return str(find_uv_bin())
    except (ImportError, FileNotFoundError):
        problem = 'installing a version needs uv, which is not on the PATH; pip install "pytest-llmperf[versions]"'
        raise ConfigError(where, "version", problem) from None


def _last_lines(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return "; ".join(lines[-_SHOWN_LINES:]) or "it says nothing"


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Alone among the processes of this machine that hold ``path``. The file stays: removing it would race."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
