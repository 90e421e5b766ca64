"""Trend and change of level: the formulas, their critical values, what they see and what they leave alone."""

from __future__ import annotations

import numpy as np
import pytest

from pytest_llmperf.stats.stationarity import FEWEST, MOST, Memory, level_change, trend


def autoregression(rng: np.random.Generator, n: int, rho: float) -> list[float]:
    """A stationary series around 100 with standard deviation 1 of its innovations."""
    value, series = rng.standard_normal() / np.sqrt(1 - rho**2), []
    for _ in range(n):
        series.append(100 + value)
        value = rho * value + rng.standard_normal()
    return series


def test_the_statistics_are_the_formulas_written_with_numpy() -> None:
    x = np.array(autoregression(np.random.default_rng(3), 20, 0.3))
    n, found = 20, {}
    for k in range(3, 18):
        sides = [np.cumsum(side - side.mean()) for side in (x[:k], x[k:])]
        v = sum((side**2).sum() for side in sides) / n**2
        found[k] = ((x[:k] - x.mean()).sum() / np.sqrt(n)) ** 2 / v
    best = max(found, key=lambda k: found[k])
    level = level_change(list(x))
    assert level.statistic == pytest.approx(found[best])
    assert level.at == pytest.approx(best / n)
    assert (level.before, level.after) == (pytest.approx(x[:best].mean()), pytest.approx(x[best:].mean()))
    t = np.arange(n)
    slope, cut = np.polyfit(t, x, 1)
    s = np.cumsum(x - slope * t - cut)
    line = trend(list(x))
    assert line.statistic == pytest.approx(slope**2 * ((t - t.mean()) ** 2).sum() / (2 * (s**2).sum() / n**2))
    assert (line.before, line.after) == (pytest.approx(cut), pytest.approx(cut + slope * (n - 1)))


@pytest.mark.parametrize(("memory", "rho"), [("short", 0.0), ("short", 0.4), ("long", 0.7)])
@pytest.mark.parametrize("n", [8, 14, 64])
def test_stationary_series_exceed_the_critical_values_no_more_often_than_stated(
    n: int, memory: Memory, rho: float
) -> None:
    rng, runs = np.random.default_rng(n), 400
    series = [autoregression(rng, n, rho) for _ in range(runs)]
    allowed = {0.0: 0.001, 0.4: 0.005, 0.7: 0.002}[rho]
    for statistic in (level_change, trend):
        shown = sum(statistic(one, memory).shown for one in series)
        assert shown <= runs * allowed + 3 * np.sqrt(runs * allowed) + 1  # three standard errors


def test_a_step_and_a_line_are_told_apart_by_what_they_leave_unexplained() -> None:
    rng = np.random.default_rng(5)
    step = [10 + 2 * (i >= 9) + 0.2 * rng.standard_normal() for i in range(30)]
    line = [10 + 2 * i / 29 + 0.2 * rng.standard_normal() for i in range(30)]
    assert level_change(step).shown
    assert level_change(step).at == pytest.approx(0.3)
    assert level_change(step).change == pytest.approx(2 / np.mean(step), rel=0.1)
    assert level_change(step).left < trend(step).left
    assert trend(line).shown
    assert trend(line).change == pytest.approx(2 / 11, rel=0.15)
    assert trend(line).left < level_change(line).left


def test_a_constant_and_a_perfect_step_are_no_division_by_zero() -> None:
    assert not level_change([5.0] * 8).shown
    assert not trend([5.0] * 8).shown
    assert level_change([1.0] * 4 + [2.0] * 4).shown


def test_too_few_or_too_many_points_are_refused() -> None:
    for n in (FEWEST - 1, MOST + 1):
        with pytest.raises(ValueError, match="needs 8 to 64 points"):
            level_change([1.0] * n)
        with pytest.raises(ValueError, match="needs 8 to 64 points"):
            trend([1.0] * n)
