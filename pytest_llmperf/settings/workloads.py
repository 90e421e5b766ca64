"""Workloads by name: TOML files beside the test, in the project, or shipped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from pytest_llmperf.errors import ConfigError, MarkerError, nearest
from pytest_llmperf.plan import Workload
from pytest_llmperf.settings.faults import describe_validation_error, read_toml
from pytest_llmperf.settings.model import Settings

__all__ = ["load_workload"]

BUILT_IN_WORKLOADS: Final = Path(__file__).parent.parent / "workloads"


def load_workload(
    name: str, settings: Settings, beside: Path | None, changes: Mapping[str, Any] | None = None
) -> Workload:
    """The workload called ``name`` (a TOML path works too), with ``changes``. Looked up beside the test, in the
    settings' folders, then among those shipped; files it names lie beside it. Raises ConfigError that names where it
    was looked for."""
    base = Path(settings.source).parent
    if name.endswith(".toml"):
        candidates = [*([beside / name] if beside else []), base / name]
    else:
        folders = [
            *([beside / "workloads"] if beside else []),
            *(base / folder for folder in settings.workloads),
        ]
        candidates = [folder / f"{name}.toml" for folder in (*folders, BUILT_IN_WORKLOADS)]
    path = next((candidate for candidate in candidates if _is_file(candidate)), None)
    if path is None:
        known = sorted({found.stem for candidate in candidates for found in candidate.parent.glob("*.toml")})
        hint = nearest(name, known) if known and not name.endswith(".toml") else ""
        looked = _listed(list(dict.fromkeys(candidates)))
        raise MarkerError("llmperf", "workload", f"no workload {name[:80]!r}{hint}; looked for {looked}")
    table = read_toml(path)
    try:
        return Workload.model_validate(
            {"name": path.stem, **table, **(changes or {})}, context={"folders": (path.parent,)}
        )
    except ValidationError as error:
        raise ConfigError(str(path), *describe_validation_error(error, Workload)) from None


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # a name that no file can have
        return False


def _listed(paths: Sequence[Path]) -> str:
    return ", ".join(str(path) for path in paths)
