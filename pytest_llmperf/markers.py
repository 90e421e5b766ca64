"""From markers and parameters of a test to its ``Plan``; whatever is not understood is an error."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

import pytest

from pytest_llmperf.errors import MarkerError, nearest

if TYPE_CHECKING:
    from pydantic import BaseModel

    from pytest_llmperf.options import RunOptions
    from pytest_llmperf.plan import LoadProfile, Plan, Sla, Slo, Workload

__all__ = ["read_plan"]

M = TypeVar("M", bound="BaseModel")

LEVELS: Final = ("concurrency", "request_rate", "schedule", "trace")
SHAPES: Final = ("arrival", "burstiness", "max_concurrency", "time_scale", "ramp", "stagger")
"""What belongs to one of the levels, and goes with it when a closer marker names another."""
LOAD_FIELDS: Final = (*LEVELS, *SHAPES, "requests", "duration", "warmup")
OTHER_FIELDS: Final = ("workload", "api", "server", "slo", "replays", "seed", "sampling", "stream_share", "clients")
PLAN_FIELDS: Final = (*OTHER_FIELDS, *LOAD_FIELDS)
SHARES: Final = ("error_rate", "goodput_share", "prefix_hit_rate", "kv_usage_p95")
POOLED: Final = ("icl", "itl")
"""Gaps within one request are not independent, so there is no exact confidence for their percentiles."""
EXCLUSIVE: Final = (LEVELS, ("requests", "duration"))
"""Of each group, what a closer marker says replaces what a farther one said."""


def read_plan(item: pytest.Item, options: RunOptions) -> Plan | None:
    """The plan of a test, None for a test that has nothing to do with us.

    Raises UsageError with the marker, the argument, the value and what would be right.
    """
    uses = "llmperf" in getattr(item, "fixturenames", ())
    marker = item.get_closest_marker("llmperf")
    if marker is None:
        if item.get_closest_marker("sla") is not None:
            raise MarkerError("sla", "", "needs @pytest.mark.llmperf(workload=..., ...) beside it")
        if uses:
            raise MarkerError("llmperf", "", "is missing: the llmperf fixture needs a workload and a load")
        return None
    if not uses:
        if all(mark.name != "llmperf" for mark in item.own_markers):
            return None  # the marker is its module's or class's: an ordinary test among performance tests
        raise MarkerError("llmperf", "", "the test must take the llmperf fixture and call llmperf.run() once")
    return _plan(item, _arguments(item), options)


def _plan(item: pytest.Item, arguments: Mapping[str, Any], options: RunOptions) -> Plan:
    from pytest_llmperf.plan import Plan
    from pytest_llmperf.planning import complete
    from pytest_llmperf.settings import check_speaks, server_named

    server_name = arguments.get("server")
    if server_name is not None and not isinstance(server_name, str):
        raise MarkerError("llmperf", "server", f"{server_name!r} is not the name of a configured server")
    server = server_named(server_name, options.settings, options.overrides)
    if options.gpus:
        server = server.model_copy(update={"gpus": options.gpus})
    slas = _slas(item)
    folders = (item.path.parent, Path(options.settings.source).parent)
    arguments = {**arguments, **_trace(arguments, folders)}
    workload = _workload(item, arguments, options, folders)
    check_speaks(server, workload)
    load, notes = complete(workload, _load(arguments, workload, folders))
    return Plan(
        nodeid=item.nodeid,
        server=server,
        workload=workload,
        load=load,
        notes=notes,
        slas=slas,
        slo=_slo(arguments.get("slo"), slas),
        replays=options.replays or _count(arguments, "replays", 1, 100) or options.settings.replays or 1,
        seed=_count(arguments, "seed", 0, 2**63 - 1) or 0,
        clients=options.clients or _clients(arguments.get("clients")) or options.settings.clients,
    )


def _arguments(item: pytest.Item) -> dict[str, Any]:
    """Keyword arguments of all markers, and parameters on top: what is closer to the test wins."""
    layers: list[Mapping[str, Any]] = []
    for marker in reversed(list(item.iter_markers("llmperf"))):
        if marker.args:
            raise MarkerError("llmperf", "", f"takes keyword arguments only, not {marker.args[0]!r}")
        for key in marker.kwargs:
            if key not in PLAN_FIELDS:
                raise MarkerError("llmperf", key, f"unknown argument{nearest(key, PLAN_FIELDS)}")
        layers.append(marker.kwargs)
    merged: dict[str, Any] = {}
    for layer in (*layers, _parameters(item)):
        kept_level = [key for key in LEVELS if key in merged and key in layer]
        for pair in EXCLUSIVE:
            if set(pair) & set(layer):
                merged = {key: value for key, value in merged.items() if key not in pair}
        if set(LEVELS) & set(layer) and not kept_level:
            merged = {key: value for key, value in merged.items() if key not in SHAPES}
        merged.update(layer)
    return merged


def _parameters(item: pytest.Item) -> dict[str, Any]:
    """Parameters of ``parametrize`` whose names are plan fields."""
    callspec = getattr(item, "callspec", None)
    parameters: Mapping[str, Any] = callspec.params if callspec is not None else {}
    return {key: value for key, value in parameters.items() if key in PLAN_FIELDS}


def _trace(arguments: Mapping[str, Any], folders: Sequence[Path]) -> dict[str, Any]:
    """The trace as a file that both workload and load take."""
    from pydantic import ValidationError

    from pytest_llmperf.plan import TRACE_FILE
    from pytest_llmperf.settings import describe_validation_error

    if arguments.get("trace") is None:
        return {}
    try:
        return {"trace": TRACE_FILE.validate_python(arguments["trace"], context={"folders": folders}).model_dump()}
    except ValidationError as error:
        raise MarkerError("llmperf", "trace", describe_validation_error(error)[1]) from None


def _workload(
    item: pytest.Item, arguments: Mapping[str, Any], options: RunOptions, folders: Sequence[Path]
) -> Workload:
    from pytest_llmperf.plan import Workload
    from pytest_llmperf.settings import load_workload

    given = arguments.get("workload")
    changes = {key: arguments[key] for key in ("api", "stream_share", "trace") if arguments.get(key) is not None}
    if given is None and "trace" in changes:
        given = {"name": Path(changes["trace"]["path"]).stem}
    if given is None:
        raise MarkerError("llmperf", "workload", "is required: a name, a path to a TOML file, or a dict")
    if isinstance(given, str):
        trace = {key: value for key, value in changes.items() if key == "trace"}
        workload = load_workload(given, options.settings, item.path.parent, trace)
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
    from pytest_llmperf.plan import LoadProfile

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
    from pydantic import ValidationError

    from pytest_llmperf.settings import describe_validation_error

    try:
        return model.model_validate(given, context={"folders": folders})
    except ValidationError as error:
        key, problem = describe_validation_error(error, model)
        raise MarkerError("llmperf", argument or key, f"{key}: {problem}" if argument and key else problem) from None


def _slas(item: pytest.Item) -> tuple[Sla, ...]:
    from pytest_llmperf.catalog import metric
    from pytest_llmperf.plan import Sla

    limits: dict[str, tuple[Any, Any]] = {}
    for marker in reversed(list(item.iter_markers("sla"))):
        if marker.args:
            raise MarkerError("sla", "", f"takes keyword arguments only, not {marker.args[0]!r}")
        confidence = marker.kwargs.get("confidence")
        names = [name for name in marker.kwargs if name != "confidence"]
        if not names:
            raise MarkerError("sla", "", "names no metric; write e.g. @pytest.mark.sla(ttft_p95='500 ms')")
        limits.update({name: (marker.kwargs[name], confidence) for name in names})
    slas = []
    for name, (written, confidence) in limits.items():
        try:
            known = metric(name)
        except KeyError as error:
            raise MarkerError("sla", name, str(error.args[0])) from None
        limit = _quantity("sla", name, written, known.unit)
        if name in SHARES and limit > 1:
            raise MarkerError("sla", name, f"{written!r} is more than all of them; write a share, e.g. 0.05 or '5 %'")
        if confidence is not None:
            _check_confidence(confidence)
            if known.family.name in POOLED:
                problem = f"does not apply to {name}: gaps within one request are not independent; limit it in a marker"
                raise MarkerError("sla", "confidence", f"{problem} of its own")
        slas.append(
            Sla(
                metric=name,
                limit=limit,
                written=written if isinstance(written, str) else repr(written),
                confidence=confidence if known.quantile is not None else None,
            )
        )
    strict = limits and all(confidence is not None for _, confidence in limits.values())
    if strict and not any(sla.confidence for sla in slas):
        raise MarkerError("sla", "confidence", "applies to percentiles (ttft_p95 ...), and none is limited here")
    return tuple(slas)


def _check_confidence(given: object) -> None:
    if isinstance(given, bool) or not isinstance(given, float) or not 0.5 < given < 1:
        raise MarkerError("sla", "confidence", f"{given!r} is not a number between 0.5 and 1, e.g. 0.95")


def _slo(given: object, slas: tuple[Sla, ...]) -> Slo | None:
    """The per-request limits: as given, else the limit of the highest percentile of each latency in ``slas``."""
    from pytest_llmperf.catalog import FAMILIES, metric
    from pytest_llmperf.plan import Slo

    per_request = tuple(name for name in FAMILIES if name in ("ttft", "ttfot", "tpot", "e2e"))
    if given is None:
        highest: dict[str, tuple[float, float]] = {}
        for sla in slas:
            known = metric(sla.metric)
            if known.quantile is not None and known.family.name in per_request:
                best = highest.get(known.family.name, (0.0, 0.0))
                highest[known.family.name] = max(best, (known.quantile, sla.limit))
        return Slo(limits={name: limit for name, (_, limit) in highest.items()}) if highest else None
    if not isinstance(given, Mapping) or not given:
        raise MarkerError("llmperf", "slo", f"{given!r} is not a dict such as {{'ttft': '500 ms', 'tpot': '30 ms'}}")
    limits = {}
    for name, written in given.items():
        if name not in per_request:
            raise MarkerError("llmperf", "slo", f"unknown per-request metric {name!r}{nearest(str(name), per_request)}")
        try:
            limits[name] = _quantity("llmperf", "slo", written, "s")
        except MarkerError as error:
            raise MarkerError("llmperf", "slo", f"{name}: {error.problem}") from None
    return Slo(limits=limits)


def _quantity(marker: str, argument: str, written: Any, unit: str) -> float:
    from pytest_llmperf.units import parse_quantity

    try:
        quantity = parse_quantity(written, unit)
    except ValueError as error:
        raise MarkerError(marker, argument, str(error)) from None
    if quantity.value < 0:
        raise MarkerError(marker, argument, f"{written!r} is negative")
    return quantity.value


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
