"""The configuration file, read and validated whole."""

from __future__ import annotations

from pathlib import Path

from pydantic import ValidationError

from pytest_llmperf.engines import add_installed
from pytest_llmperf.errors import ConfigError
from pytest_llmperf.settings.changes import flat
from pytest_llmperf.settings.faults import describe_validation_error, read_toml
from pytest_llmperf.settings.model import Settings
from pytest_llmperf.settings.servers import read_server

__all__ = ["load_settings"]


def load_settings(root: Path, *, servers: bool = True) -> Settings:
    """The settings of the project at ``root``; defaults where it has none. Raises ConfigError.

    Servers may be of any engine that is known by then: installed packages' are added first. Without ``servers`` they
    are not looked at, as outside pytest those that a ``conftest.py`` adds are not known.
    """
    own, shared = root / "llmperf.toml", root / "pyproject.toml"
    tools = read_toml(shared).get("tool") if shared.is_file() else None
    table = tools.get("llmperf") if isinstance(tools, dict) else None
    if own.is_file():
        if table is not None:
            raise ConfigError(str(own), "", f"settings are also in [tool.llmperf] of {shared}; keep one of the two")
        source, table = own, read_toml(own)
        if set(table) == {"tool"}:
            raise ConfigError(
                str(own), "tool", "in llmperf.toml the keys stand at the top level, without [tool.llmperf]"
            )
    else:
        source = shared
    if table is not None and not isinstance(table, dict):
        raise ConfigError(str(source), "tool.llmperf", f"{table!r} is not a table")
    try:
        settings = Settings.model_validate({**(table or {}), "source": str(source)})
    except ValidationError as error:
        raise ConfigError(str(source), *describe_validation_error(error, Settings)) from None
    if servers:
        add_installed()
    for name, server in settings.servers.items() if servers else ():
        read_server(name, server, settings.source, source.absolute().parent)
    for name, variant in settings.variants.items():
        flat(variant, settings.source, f"variants.{name}")
    return settings
