"""``report.json``: written whole or not at all, read with an error that names the file and what is wrong."""

from __future__ import annotations

import json
from pathlib import Path

from pydantic import ValidationError

from pytest_llmperf.errors import UsageError
from pytest_llmperf.reports.wholefile import write_whole
from pytest_llmperf.result import SCHEMA, RunReport

__all__ = ["REPORT_NAME", "is_report", "json_schema", "read_report", "write_report"]

REPORT_NAME = "report.json"
SCHEMA_FAMILY = "pytest-llmperf/report/"


def write_report(path: Path, report: RunReport) -> None:
    """Replace ``path`` by ``report`` in one step: a reader, or a crash, sees the old file or the new one.

    The folder is made where it is absent. Raises OSError (disk full, no permission); the old file is then
    untouched.
    """
    write_whole(path, report.model_dump_json(by_alias=True, indent=1) + "\n")


def read_report(path: Path) -> RunReport:
    """The report at ``path``, which may be its folder.

    Raises UsageError for anything but a report of our schema.
    """
    file = path / REPORT_NAME if path.is_dir() else path
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise UsageError(f"{file}: cannot be read: {reason}") from error
    try:
        content = json.loads(text)
    except ValueError as error:
        raise UsageError(f"{file}: not JSON: {error}") from error
    schema = content.get("schema") if isinstance(content, dict) else None
    if schema != SCHEMA:
        found = f"schema {schema!r}" if schema is not None else "no schema"
        raise UsageError(f"{file}: {found}, this version reads {SCHEMA!r}")
    try:
        return RunReport.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise UsageError(f"{file}: {where}: {first['msg']} ({error.error_count()} problems)") from error


def is_report(path: Path) -> bool:
    """Whether ``path`` is a report of any version of ours, readable by this one or not."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return False
    schema = content.get("schema") if isinstance(content, dict) else None
    return isinstance(schema, str) and schema.startswith(SCHEMA_FAMILY)


def json_schema() -> str:
    """The JSON Schema of ``report.json``."""
    return json.dumps(RunReport.model_json_schema(by_alias=True, mode="serialization"), indent=2)
