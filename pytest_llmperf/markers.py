"""From markers and parameters of a test to its ``Plan``; whatever is not understood is an error."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

import pytest

from pytest_llmperf.errors import MarkerError, nearest

if TYPE_CHECKING:
    from pydantic import BaseModel

    from pytest_llmperf.options import RunOptions
    from pytest_llmperf.plan import LoadProfile, Plan, Sla, Slo, Workload

__all__ = ["MARKERS", "read_plan"]

M = TypeVar("M", bound="BaseModel")

MARKERS: Final = (
    "llmperf(workload, concurrency | request_rate, requests | duration, ...): drive a load and measure the server",
    "sla(ttft_p95='500 ms', output_throughput='3000 tok/s', ..., confidence=None): absolute limits on metrics",
)
LOAD_FIELDS: Final = ("concurrency", "request_rate", "arrival", "requests", "duration", "warmup")
OTHER_FIELDS: Final = ("workload", "api", "server", "slo", "replays", "seed", "sampling", "clients")
PLAN_FIELDS: Final = (*OTHER_FIELDS, *LOAD_FIELDS)
POOLED: Final = ("icl", "itl")
"""Gaps within one request are not independent, so there is no exact confidence for their percentiles."""
EXCLUSIVE: Final = (("concurrency", "request_rate"), ("requests", "duration"))
"""Of each pair, what a closer marker says replaces what a farther one said."""


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
        raise MarkerError("llmperf", "", "the test must take the llmperf fixture and call llmperf.run() once")
    arguments = {**_arguments(item, "llmperf", PLAN_FIELDS), **_parameters(item)}
    return _plan(item, arguments, options)


def _plan(item: pytest.Item, arguments: Mapping[str, Any], options: RunOptions) -> Plan:
    from pytest_llmperf.plan import Plan
    from pytest_llmperf.settings import server_named

    server_name = arguments.get("server")
    if server_name is not None and not isinstance(server_name, str):
        raise MarkerError("llmperf", "server", f"{server_name!r} is not the name of a configured server")
    server = server_named(server_name, options.settings, options.overrides)
    if options.gpus:
        server = server.model_copy(update={"gpus": options.gpus})
    slas = _slas(item)
    load = _load(arguments)
    return Plan(
        nodeid=item.nodeid,
        server=server,
        workload=_workload(item, arguments, options),
        load=load,
        slas=slas,
        slo=_slo(arguments.get("slo"), slas),
        replays=options.replays or _count(arguments, "replays", 1, 100) or options.settings.replays or 1,
        seed=_count(arguments, "seed", 0, 2**63 - 1) or 0,
        clients=options.clients or _clients(arguments.get("clients")) or options.settings.clients,
    )


def _arguments(item: pytest.Item, name: str, known: tuple[str, ...] | None) -> dict[str, Any]:
    """Keyword arguments of all markers of that name, the closest winning."""
    merged: dict[str, Any] = {}
    for marker in reversed(list(item.iter_markers(name))):
        if marker.args:
            raise MarkerError(name, "", f"takes keyword arguments only, not {marker.args[0]!r}")
        for key in marker.kwargs:
            if known is not None and key not in known:
                raise MarkerError(name, key, f"unknown argument{nearest(key, known)}")
        for pair in EXCLUSIVE:
            if set(pair) & set(marker.kwargs):
                merged = {key: value for key, value in merged.items() if key not in pair}
        if "concurrency" in marker.kwargs:
            merged.pop("arrival", None)
        merged.update(marker.kwargs)
    return merged


def _parameters(item: pytest.Item) -> dict[str, Any]:
    """Parameters of ``parametrize`` whose names are plan fields."""
    callspec = getattr(item, "callspec", None)
    parameters: Mapping[str, Any] = callspec.params if callspec is not None else {}
    return {key: value for key, value in parameters.items() if key in PLAN_FIELDS}


def _workload(item: pytest.Item, arguments: Mapping[str, Any], options: RunOptions) -> Workload:
    from pytest_llmperf.plan import Workload
    from pytest_llmperf.settings import load_workload

    given = arguments.get("workload")
    if given is None:
        raise MarkerError("llmperf", "workload", "is required: a name, a path to a TOML file, or a dict")
    if isinstance(given, str):
        workload = load_workload(given, options.settings, item.path.parent)
    elif isinstance(given, Mapping):
        workload = _validated(Workload, {"name": "inline", **given}, "workload")
    else:
        raise MarkerError("llmperf", "workload", f"{given!r} is neither a name, a path nor a dict")
    changes: dict[str, Any] = {}
    if "api" in arguments:
        changes["api"] = arguments["api"]
    if "sampling" in arguments:
        sampling = arguments["sampling"]
        if not isinstance(sampling, Mapping):
            raise MarkerError("llmperf", "sampling", f"{sampling!r} is not a dict of request fields")
        changes["sampling"] = {**workload.sampling, **sampling}
    return _validated(Workload, {**workload.model_dump(), **changes}, "") if changes else workload


def _load(arguments: Mapping[str, Any]) -> LoadProfile:
    from pytest_llmperf.plan import LoadProfile

    given = {key: arguments[key] for key in LOAD_FIELDS if arguments.get(key) is not None}
    if isinstance(given.get("request_rate"), str):
        given["request_rate"] = _quantity("llmperf", "request_rate", given["request_rate"], "req/s")
    if isinstance(given.get("duration"), int | float) and not isinstance(given["duration"], bool):
        raise MarkerError("llmperf", "duration", f"{given['duration']!r} has no unit; write e.g. '60 s'")
    return _validated(LoadProfile, given, "")


def _validated(model: type[M], given: Mapping[str, Any], argument: str) -> M:
    """``model`` from ``given``; a fault is reported under ``argument``, or under the field itself."""
    from pydantic import ValidationError

    from pytest_llmperf.settings import describe_validation_error

    try:
        return model.model_validate(given)
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
        if confidence is not None:
            _check_confidence(confidence)
        slas.append(
            Sla(
                metric=name,
                limit=limit,
                written=written if isinstance(written, str) else repr(written),
                confidence=confidence if known.quantile is not None and known.family.name not in POOLED else None,
            )
        )
    strict = limits and all(confidence is not None for _, confidence in limits.values())
    if strict and not any(sla.confidence for sla in slas):
        raise MarkerError(
            "sla",
            "confidence",
            "applies to percentiles over requests (ttft_p95, not icl_p95), and none is limited here",
        )
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
        limits[name] = _quantity("llmperf", f"slo={name}", written, "s")
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
