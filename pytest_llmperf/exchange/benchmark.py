"""Results in the form of pytest-benchmark's JSON: one row per test and metric, one value per server launch.

Its readers take every value for seconds of which less is better. Durations go in as they are, rates as seconds per
token or request (their ``ops`` is the rate again), and what is neither into ``extra_info``.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from pytest_llmperf.catalog import metric
from pytest_llmperf.result import SCHEMA, TestReport

__all__ = ["Row", "document", "launch_values", "rows_of"]

CORE: Final = ("ttft_p50", "ttft_p95", "tpot_mean", "e2e_p50", "output_throughput")
"""Metrics that always have a row; limited and compared ones join them. A row for every metric would bury them."""
RATES: Final = ("tok/s", "req/s")
CANDIDATE: Final = "candidate"


@dataclass(frozen=True, slots=True)
class Row:
    """One benchmark of pytest-benchmark, with the names its own statistics look for."""

    name: str
    fullname: str
    """Node id and metric: what runs are joined on, so nothing of version or path is in it."""
    group: str
    param: str | None
    values: tuple[float, ...]
    """Seconds (or seconds per token or request) of each launch; finite and above zero."""
    has_error: bool
    """The test did not pass: shown, never stored as something to compare with."""
    extra_info: dict[str, Any] = field(default_factory=dict)
    params: None = None
    cprofile_stats: None = None


def launch_values(test: TestReport) -> dict[str, tuple[float | None, ...]]:
    """Metric → one value per launch of the candidate, the mean over its replays.

    None where a launch has no value that can be trusted: invalid, not measured, not finite.
    """
    launches: dict[int, list[Mapping[str, float | None]]] = {}
    for trial in test.trials:
        if trial.arm == CANDIDATE and trial.discarded is None:
            known = {name: None if found.invalid else found.value for name, found in trial.metrics.items()}
            launches.setdefault(trial.launch, []).append(known if trial.validity.valid else {})
    names = dict.fromkeys(name for replays in launches.values() for known in replays for name in known)
    return {name: tuple(_mean([known.get(name) for known in of]) for of in launches.values()) for name in names}


def rows_of(test: TestReport) -> tuple[Row, ...]:
    """The rows of one test; none where nothing was measured.

    A metric with a launch without a value, or with one of zero, has no row: the statistics of pytest-benchmark break
    on NaN, and its comparisons take a zero for an infinite change. It is in ``extra_info`` of the other rows.
    """
    values = launch_values(test)
    compared = {entry.metric: entry for entry in test.comparisons}
    refused = {check.metric for check in test.slas if check.verdict == "INVALID"}
    wanted = dict.fromkeys((*CORE, *(check.metric for check in test.slas if check.kind == "sla"), *compared))
    durations = {name: _seconds(name, values.get(name)) for name in wanted if name not in refused}
    seconds = {name: found for name, found in durations.items() if found is not None}
    others = {
        name: {"unit": metric(name).unit, "launches": list(found)}
        for name, found in values.items()
        if name not in seconds and name not in refused and any(value is not None for value in found)
        if metric(name).unit not in ("s", *RATES) or name in wanted
    }
    where, opening, bracket = test.nodeid.partition("[")
    short = where.rpartition("::")[2] + opening + bracket
    rows = []
    for name, of_launches in seconds.items():
        known = metric(name)
        info: dict[str, Any] = {
            "schema": SCHEMA,
            "metric": name,
            "unit": known.unit,
            "better": known.better,
            "definition": known.definition,
            "launches": list(values[name]),
            "verdict": test.verdict,
            **_identity(test),
        }
        if name in compared:
            info["comparison"] = compared[name].model_dump(mode="json", exclude={"metric", "unit", "better"})
        if others:
            info["others"] = others
        rows.append(
            Row(
                name=f"{short}/{name}",
                fullname=f"{test.nodeid}/{name}",
                group=name,
                param=bracket.removesuffix("]") or None,
                values=of_launches,
                has_error=test.outcome != "passed" or test.verdict in ("INVALID", "CONFOUNDED", "FAIL"),
                extra_info={"llmperf": info},
            )
        )
    return tuple(rows)


def document(
    rows: Sequence[Row], *, machine_info: Mapping[str, Any], commit_info: Mapping[str, Any], created: str
) -> dict[str, Any]:
    """The file as ``--benchmark-json`` would hold it. Rows of failed tests are left out, as there."""
    return {
        "machine_info": dict(machine_info),
        "commit_info": dict(commit_info),
        "benchmarks": [
            {
                "group": row.group,
                "name": row.name,
                "fullname": row.fullname,
                "params": row.params,
                "param": row.param,
                "extra_info": row.extra_info,
                "options": {},
                "stats": _statistics(row.values),
            }
            for row in rows
            if not row.has_error
        ],
        "datetime": created,
        "version": "5.1.0",  # of pytest-benchmark, whose form this is
    }


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None and math.isfinite(value)]
    return statistics.fmean(known) if len(known) == len(values) and known else None


def _seconds(name: str, values: Sequence[float | None] | None) -> tuple[float, ...] | None:
    unit = metric(name).unit
    if values is None or (unit != "s" and unit not in RATES):
        return None
    known = [value for value in values if value is not None and value > 0]
    if not known or len(known) < len(values):
        return None
    return tuple(1 / value for value in known) if unit in RATES else tuple(known)


def _identity(test: TestReport) -> dict[str, str]:
    if test.identity is None:
        return {}
    names = ("engine", "version", "model", "quantization", "gpu", "gpu_count", "driver")
    known = {name: test.identity.value(name) for name in names}
    found = {name: value for name, value in known.items() if value != "unknown"}
    return found | {"identity": test.identity.digest()}


def _statistics(values: Sequence[float]) -> dict[str, Any]:
    """The fields of pytest-benchmark's ``Stats``.

    Quartiles are the medians of the halves; where the number is odd, by the mean of Tukey's and of Moore and McCabe's
    way (method 3 of en.wikipedia.org/wiki/Quartile), as there.
    """
    data = sorted(values)
    n, mean = len(data), statistics.mean(data)
    stddev = statistics.stdev(data) if n > 1 else 0
    q1, q3 = _quartile(data), -_quartile([-value for value in reversed(data)])
    low, high = q1 - 1.5 * (q3 - q1), q3 + 1.5 * (q3 - q1)
    far = sum(not mean - stddev <= value <= mean + stddev for value in data)
    outside = sum(not low <= value <= high for value in data)
    return {
        "min": data[0],
        "max": data[-1],
        "mean": mean,
        "stddev": stddev,
        "rounds": n,
        "median": statistics.median(data),
        "iqr": q3 - q1,
        "q1": q1,
        "q3": q3,
        "iqr_outliers": outside,
        "stddev_outliers": far,
        "outliers": f"{far};{outside}",
        "ld15iqr": next(value for value in data if value >= low),
        "hd15iqr": next(value for value in reversed(data) if value <= high),
        "ops": n / sum(data),
        "total": sum(data),
        "data": list(values),
        "iterations": 1,
    }


def _quartile(data: Sequence[float]) -> float:
    """The lower quartile of ascending ``data``."""
    n, rest = divmod(len(data), 4)
    if len(data) == 1:
        return data[0]
    if rest == 1:
        return 0.25 * data[n - 1] + 0.75 * data[n]
    if rest == 3:
        return 0.75 * data[n] + 0.25 * data[n + 1]
    return statistics.median(data[: len(data) // 2])
