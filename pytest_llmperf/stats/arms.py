"""Launches as matrices: which metrics of two arms are judged, against what, and their values on the oriented log scale.

``y = +log(value)`` where larger is worse, ``-log(value)`` where larger is better, so a positive difference always means
"candidate worse". +inf: a quantile among failed requests, or a rate of 0. NaN: not measured.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pytest_llmperf.catalog import metric
from pytest_llmperf.stats.family import GateRow, gate_row, why_not_gateable
from pytest_llmperf.stats.launches import GateConfig, LaunchValues
from pytest_llmperf.stats.prior import Prior

__all__ = ["Gated", "Matrix", "faulty", "gate", "in_base_units", "oriented"]

Matrix = NDArray[np.float64]
_ALLOWED_ERROR_RATE: Final = 0.01
_LEAST_GOODPUT: Final = 1e-12
_GOODPUTS: Final = ("goodput", "goodput_share")


@dataclass(frozen=True, slots=True)
class Gated:
    """The metrics that are judged; all vectors are in the order of ``names``."""

    names: tuple[str, ...]
    primary: NDArray[np.bool_]
    varying: NDArray[np.bool_]
    """Tells of the noise of a job (all but memory)."""
    s0_sq: Matrix
    d0: Matrix
    floor_sq: Matrix
    """Smallest variance that is believed."""
    s0_builtin: Matrix
    least: Matrix
    """Smallest estimate that is called a regression."""
    limit: Matrix
    """L."""
    wide: Matrix
    """L': L, wider for metrics that are not primary where this runner's noise asks for it."""
    not_gated: Mapping[str, str]


def gate(launches: Sequence[LaunchValues], prior: Mapping[str, tuple[float, float]] | None, config: GateConfig,
         blocks: int) -> Gated:  # fmt: skip
    """What of ``launches`` (both arms) is judged.

    ``blocks``: N of the widened limit L' = max(L, 4 sqrt(2 s0^2 / N)). Raises ValueError for a metric that does not
    exist or cannot be gated, for a tolerance of a metric outside the family, and for one that is no tolerance.
    """
    known = prior if isinstance(prior, Prior) else Prior(dict(prior or {}))
    names, rows, not_gated = [], [], {}
    for name in _family(launches, config):
        row = _row(name)
        why = _unlike(launches, name) or _too_few(launches, row)
        if why is not None:
            not_gated[name] = why
            continue
        names.append(name)
        rows.append(row)
    noise = [known.noise(name) for name in names]
    tolerances = [config.tolerances.get(name, row.tolerance) for name, row in zip(names, rows, strict=True)]
    for name, each in zip(names, tolerances, strict=True):
        if not (0 <= each.floor <= each.limit < math.inf and each.limit > 0):
            raise ValueError(f"tolerance of {name}: 0 <= floor <= limit and limit > 0, got {each.floor}, {each.limit}")
    primary = np.array([row.primary for row in rows], dtype=bool)
    if not primary.any():
        primary[:] = True
    s0_sq, limit = np.array([s for s, _ in noise]), np.array([each.limit for each in tolerances])
    return Gated(
        names=tuple(names),
        primary=primary,
        varying=np.array([not row.steady for row in rows], dtype=bool),
        s0_sq=s0_sq,
        d0=np.array([d for _, d in noise]),
        floor_sq=np.array([row.sd_floor**2 for row in rows]),
        s0_builtin=np.array([row.s0 for row in rows]),
        least=np.array([each.floor for each in tolerances]),
        limit=limit,
        wide=np.where(primary, limit, np.maximum(limit, 4 * np.sqrt(2 * s0_sq / blocks))),
        not_gated=not_gated,
    )


def oriented(launches: Sequence[LaunchValues], names: Sequence[str]) -> Matrix:
    """Launches by metrics. A latency or size of 0 or less, and an infinite rate, are not measurements: NaN."""
    raw = np.array([[launch.metrics.get(name, math.nan) for name in names] for launch in launches], dtype=np.float64)
    goodput = np.array([name in _GOODPUTS for name in names], dtype=bool)
    raw = np.where(goodput & (raw >= 0), np.maximum(raw, _LEAST_GOODPUT), raw)
    with np.errstate(divide="ignore", invalid="ignore"):
        y = np.log(raw) * [1.0 if metric(name).better == "lower" else -1.0 for name in names]
    y[np.isneginf(y)] = math.nan
    return y


def in_base_units(name: str, y: float) -> float:
    """The value that ``y`` stands for: a mean of ``y`` gives a geometric mean."""
    x = y if metric(name).better == "lower" else -y
    return math.exp(x) if x < 709 else math.inf


def faulty(launches: Sequence[LaunchValues]) -> tuple[int, ...]:
    """Blocks of the launches in which more than 1 % of the requests failed. They are run again once, then INVALID."""
    for launch in launches:
        if not 0 <= launch.n_failed <= launch.n_requests:
            raise ValueError(f"block {launch.block}: {launch.n_failed} of {launch.n_requests} requests cannot fail")
    return tuple(each.block for each in launches if each.n_failed > _ALLOWED_ERROR_RATE * each.n_requests)


def _family(launches: Sequence[LaunchValues], config: GateConfig) -> list[str]:
    if config.metrics is None:
        measured = set[str]().union(*(launch.metrics for launch in launches))
        return sorted({name for name in measured if gate_row(name) is not None} | set(config.tolerances))
    outside = sorted(set(config.tolerances) - set(config.metrics))
    if outside:
        raise ValueError(f"tolerance of {', '.join(outside)}, which is not among the gated metrics")
    return list(dict.fromkeys(config.metrics))


def _row(name: str) -> GateRow:
    try:
        row = gate_row(name)
    except KeyError as error:
        raise ValueError(error.args[0]) from error
    if row is None:
        raise ValueError(f"{name} cannot be gated: {why_not_gateable(name)}")
    return row


def _unlike(launches: Sequence[LaunchValues], name: str) -> str | None:
    sources = sorted({each.sources.get(name, "") for each in launches if name in each.metrics})
    if len(sources) < 2:
        return None
    named = " and ".join(f"{metric(name).definition}{':' if source else ''}{source}" for source in sources)
    return f"is measured differently in different launches ({named}): these are not comparable"


def _too_few(launches: Sequence[LaunchValues], row: GateRow) -> str | None:
    fewest = min(launch.n_ok for launch in launches)
    if fewest < row.min_ok:
        return f"needs {row.min_ok} successful requests in each launch, one has {fewest}"
    if row.min_tokens:
        tokens = [launch.n_tokens for launch in launches if launch.n_tokens is not None]
        if len(tokens) < len(launches):
            return f"needs {row.min_tokens} output tokens in each launch, their number is not known"
        if min(tokens) < row.min_tokens:
            return f"needs {row.min_tokens} output tokens in each launch, one has {min(tokens)}"
    return None
