"""From what a test asks for to its ``Plan``; whatever is not understood is an error."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ValidationError

from pytest_llmperf.asked import LEVELS, LOAD_FIELDS, Asked
from pytest_llmperf.catalog import UNMEASURED
from pytest_llmperf.errors import MarkerError
from pytest_llmperf.expectations import read_expects
from pytest_llmperf.limits import read_slas, read_slo
from pytest_llmperf.options import RunOptions
from pytest_llmperf.plan import TRACE_FILE, LoadProfile, Plan, Workload
from pytest_llmperf.planning import complete
from pytest_llmperf.settings import Settings, check_speaks, describe_validation_error, load_workload, server_named
from pytest_llmperf.tolerances import read_regression, require_enough

__all__ = ["plan_of"]

M = TypeVar("M", bound=BaseModel)


def plan_of(asked: Asked, options: RunOptions) -> Plan:
    """The plan of what was asked, with what the command line and the configuration add.

    Raises UsageError with the argument, the value and what would be right.
    """
    arguments = asked.fields
    server_name = arguments.get("server")
    if server_name is not None and not isinstance(server_name, str):
        raise MarkerError("llmperf", "server", f"{server_name!r} is not the name of a configured server")
    server = server_named(server_name, options.settings, options.overrides)
    if options.gpus:
        server = server.model_copy(update={"gpus": options.gpus, "any_gpus": 0, "no_gpus": False})
    slas = read_slas(asked.slas)
    expects = read_expects(arguments.get("expects"))
    _require_measured({sla.metric: ("sla", sla.metric) for sla in slas})
    _require_measured({each.metric: ("llmperf", "expects") for each in expects})
    folders = (asked.folder, Path(options.settings.source).parent)
    arguments = {**arguments, **_trace(arguments, folders)}
    workload = _workload(arguments, options.settings, folders)
    check_speaks(server, workload)
    load, notes = complete(workload, _load(arguments, workload, folders))
    replays = options.replays or _count(arguments, "replays", 1, 100) or options.settings.replays
    regression = read_regression(asked.regressions)
    require_enough(regression, load.requests, replays)
    return Plan(
        nodeid=asked.nodeid,
        server=server,
        workload=workload,
        load=load,
        notes=notes,
        slas=slas,
        slo=read_slo(arguments.get("slo"), slas),
        regression=regression,
        expects=expects,
        replays=replays,
        seed=_count(arguments, "seed", 0, 2**63 - 1) or 0,
        clients=options.clients or _clients(arguments.get("clients")) or options.settings.clients,
    )


def _require_measured(named: Mapping[str, tuple[str, str]]) -> None:
    """Refuse limits and expectations that could only end INVALID. ``named``: metric → marker and argument."""
    for name, where in named.items():
        if name in UNMEASURED:
            raise MarkerError(*where, f"{name} is not measured by this version: leave it out")


def _trace(arguments: Mapping[str, Any], folders: Sequence[Path]) -> dict[str, Any]:
    """The trace as a file that both workload and load take."""
    if arguments.get("trace") is None:
        return {}
    try:
        return {"trace": TRACE_FILE.validate_python(arguments["trace"], context={"folders": folders}).model_dump()}
    except ValidationError as error:
        raise MarkerError("llmperf", "trace", describe_validation_error(error)[1]) from None


def _workload(arguments: Mapping[str, Any], settings: Settings, folders: Sequence[Path]) -> Workload:
    given = arguments.get("workload")
    changes = {key: arguments[key] for key in ("api", "stream_share", "trace") if arguments.get(key) is not None}
    if given is None and "trace" in changes:
        given = {"name": Path(changes["trace"]["path"]).stem}
    if given is None:
        raise MarkerError("llmperf", "workload", "is required: a name, a path to a TOML file, or a dict")
    if isinstance(given, str):
        trace = {key: value for key, value in changes.items() if key == "trace"}
        workload = load_workload(given, settings, folders[0], trace)
        table = workload.model_dump()
    elif isinstance(given, Mapping):
        table = {"name": "inline", **given}
    else:
        raise MarkerError("llmperf", "workload", f"{given!r} is neither a name, a path nor a dict")
    if not isinstance(given, str) or changes or "sampling" in arguments:
        where = "" if isinstance(given, str) else "workload"
        sampling = arguments.get("sampling", {})
        if not isinstance(sampling, Mapping):
            raise MarkerError("llmperf", "sampling", f"{sampling!r} is not a dict of request fields")
        if sampling:
            changes["sampling"] = {**table.get("sampling", {}), **sampling}
        workload = _validated(Workload, {**table, **changes}, where, folders)
    return workload


def _load(arguments: Mapping[str, Any], workload: Workload, folders: Sequence[Path]) -> LoadProfile:
    given = {key: arguments[key] for key in LOAD_FIELDS if arguments.get(key) is not None}
    if workload.trace is not None and not set(given) & set(LEVELS):
        given["trace"] = workload.trace.model_dump()
        given.setdefault("time_scale", workload.time_scale)
    elif workload.time_scale is not None and "trace" not in given:
        level = next(key for key in LEVELS if key in given)
        raise MarkerError("llmperf", level, f"makes the times, so time_scale of workload {workload.name!r} has no use")
    for name in ("duration", "stagger"):
        if isinstance(given.get(name), int | float) and not isinstance(given[name], bool):
            raise MarkerError("llmperf", name, f"{given[name]!r} has no unit; write e.g. '60 s'")
    return _validated(LoadProfile, given, "", folders)


def _validated(model: type[M], given: Mapping[str, Any], argument: str, folders: Sequence[Path]) -> M:
    """``model`` from ``given``; a fault is reported under ``argument``, or under the field itself."""
    try:
        return model.model_validate(given, context={"folders": folders})
    except ValidationError as error:
        key, problem = describe_validation_error(error, model)
        raise MarkerError("llmperf", argument or key, f"{key}: {problem}" if argument and key else problem) from None


def _clients(given: Any) -> int | Literal["auto"] | None:
    """``clients=`` of a marker: a number of client processes, or ``"auto"``."""
    if given is None or given == "auto":
        return "auto" if given else None
    if isinstance(given, bool) or not isinstance(given, int) or not 1 <= given <= 256:
        raise MarkerError("llmperf", "clients", f"{given!r} is not a whole number from 1 to 256, nor 'auto'")
    return given


def _count(arguments: Mapping[str, Any], name: str, low: int, high: int) -> int | None:
    value = arguments.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise MarkerError("llmperf", name, f"{value!r} is not a whole number from {low} to {high}")
    return value
