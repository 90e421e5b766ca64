"""How often the gate errs, and what it finds, on the noise model: the table of the specification, measured again.

``python tests/simulation/characteristics.py --reps 1000`` prints Markdown: every cell as FAIL / PASS / mean blocks
beside the figures to reach, and whether it is accepted. Exit status 1 if a cell is not. Takes a quarter of an hour.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from noise import EFFECTS, NAMES, REGIMES, Array, as_launches, job, stored

from pytest_llmperf.stats.family import gate_row
from pytest_llmperf.stats.interleaved import judge_interleaved
from pytest_llmperf.stats.launches import GateConfig, Judgement
from pytest_llmperf.stats.prior import Prior
from pytest_llmperf.stats.stored import judge_stored

PRIMARY = ("ttft_p50", "tpot_mean", "output_throughput")


@dataclass(frozen=True)
class Cell:
    """One situation, and what must come out of it. Rates are shares of jobs; None: not asked for."""

    regime: str
    effect: str = "none"
    size: float = 0.0
    metrics: tuple[str, ...] = NAMES
    blocks: int = 8
    groups: int = 6
    """Groups of earlier jobs in the prior; 0: the built-in one."""
    sessions: tuple[int, int] | None = None
    """Stored mode: baseline sessions and launches in each."""
    then_interleaved: bool = False
    """Stored first; where that does not decide, fresh blocks. Blocks then are launches."""
    only: str | None = None
    """The metric alone is worse, by exactly its limit."""
    fail_most: float | None = None
    fail_least: float | None = None
    pass_most: float | None = None
    pass_least: float | None = None
    blocks_most: float | None = None
    expected: str = ""
    """The specification's figures, as printed there."""

    @property
    def name(self) -> str:
        if self.only is not None:
            change = f"{self.only} worse by its limit"
        else:
            change = "same arms" if self.effect == "none" else f"{self.effect} +{100 * self.size:g} %"
        parts = [self.regime, change]
        if self.metrics != NAMES:
            parts.append(" ".join(self.metrics) + " only")
        if self.blocks != 8:
            parts.append(f"N = {self.blocks}")
        if not self.groups:
            parts.append("no history")
        if self.sessions is not None:
            mode = "stored, then A/B" if self.then_interleaved else "stored"
            parts.append(f"{mode}, {self.sessions[0]} x {self.sessions[1]}")
        return ", ".join(parts)


@dataclass(frozen=True)
class Measured:
    """What ``reps`` jobs ended in."""

    reps: int
    fail: float
    passed: float
    blocks: float
    """Mean; stored, then A/B: launches of both arms."""

    def misses(self, cell: Cell, slack: float = 0.0) -> list[str]:
        """Acceptances that are not met. ``slack``: standard errors of a rate or a mean that are forgiven."""

        def error(rate: float) -> float:
            return slack * math.sqrt(max(rate * (1 - rate), 1 / self.reps) / self.reps)

        found = []
        if cell.fail_most is not None and self.fail > cell.fail_most + error(cell.fail_most):
            found.append(f"FAIL {self.fail:.3f} > {cell.fail_most}")
        if cell.fail_least is not None and self.fail < cell.fail_least - error(cell.fail_least):
            found.append(f"FAIL {self.fail:.3f} < {cell.fail_least:.2f}")
        if cell.pass_most is not None and self.passed > cell.pass_most + error(cell.pass_most):
            found.append(f"PASS {self.passed:.3f} > {cell.pass_most:.2f}")
        if cell.pass_least is not None and self.passed < cell.pass_least - error(cell.pass_least):
            found.append(f"PASS {self.passed:.3f} < {cell.pass_least:.2f}")
        if cell.blocks_most is not None and self.blocks > cell.blocks_most + slack * 2 / math.sqrt(self.reps):
            found.append(f"blocks {self.blocks:.1f} > {cell.blocks_most:.1f}")
        return found


def table() -> Iterator[Cell]:
    """The regimes by effects: same arms FAIL <= 1 %, power >= printed - .03, blocks <= printed + .3."""
    effects = (("ttft", 0.05), ("tpot", 0.05), ("ttft", 0.10), ("tail", 0.10), ("tail", 0.20))
    rows: dict[str, tuple[tuple[float, float, float], ...]] = {
        "quiet": ((0, 1, 2.1), (1, 0, 3.0), (1, 0, 2.6), (1, 0, 2.2), (1, 0, 2.5), (1, 0, 2.1)),
        "typical": ((0, 1, 3.0), (0.98, 0.01, 4.6), (0.99, 0, 4.0), (1, 0, 3.1), (1, 0, 3.6), (1, 0, 2.5)),
        "noisy": ((0.002, 0.92, 5.2), (0.58, 0.03, 7.0), (0.79, 0.02, 6.5),
           (1, 0, 4.6), (0.98, 0.01, 5.2), (1, 0, 3.4)),
        "very noisy": ((0.003, 0.10, 4.4),),
        "thermal drift": ((0, 1, 3.2), (0.99, 0.01, 4.9), (0.99, 0, 4.2), (1, 0, 3.2), (1, 0, 3.6), (1, 0, 2.5)),
        "outliers": ((0.001, 0.95, 3.5), (0.89, 0.01, 5.2), (0.93, 0, 4.5),
           (0.98, 0, 3.6), (0.97, 0, 4.0), (0.99, 0, 2.9)),
        "heavy tails": ((0.001, 0.98, 4.2), (0.91, 0.01, 5.7), (0.97, 0.01, 4.8),
           (1, 0, 3.6), (0.99, 0, 4.6), (1, 0, 3.1)),
        "bimodal": ((0.004, 0.96, 4.8), (0.52, 0.03, 7.2), (0.78, 0.03, 6.7),
           (1, 0, 4.7), (0.99, 0.01, 4.8), (1, 0, 3.2)),
    }  # fmt: skip
    for regime, (same, *powers) in rows.items():
        yield _same(regime, *same)
        for (effect, size), figures in zip(effects, powers, strict=False):
            yield _power(Cell(regime, effect, size), *figures)
    yield _power(Cell("very noisy", "all", 0.10), 0.87, 0.0, 6.0)


def extras() -> Iterator[Cell]:
    """What is said beside the table: small effects, memory, budgets, violations, fewer metrics, no history."""
    for regime in ("quiet", "typical", "noisy", "thermal drift", "outliers", "heavy tails", "bimodal"):
        for effect in ("ttft", "tpot", "tail"):
            yield Cell(regime, effect, 0.02, fail_most=0.12, expected="<= .12")
    yield _power(Cell("typical", "ttft", 0.03), 0.39)
    yield _power(Cell("typical", "tpot", 0.03), 0.52)
    yield Cell("typical", "memory", 0.02, fail_least=0.97, blocks_most=2.3, expected="1.00 / - / 2")
    budgets = {"noisy": (0.35, 0.58, 0.87, 0.94), "typical": (0.96, 0.99, 0.99, 0.99)}
    for regime, powers in budgets.items():
        for blocks, power in zip((6, 8, 12, 16), powers, strict=True):
            yield _power(Cell(regime, "ttft", 0.05, blocks=blocks), power)
    yield Cell("candidate noisier", fail_most=0.01, expected=".006")
    yield Cell("prior 2.5x too small", fail_most=0.01, expected=".004")
    yield Cell("prior 4x too small", fail_most=0.01, expected=".009")
    yield Cell("very noisy", groups=0, fail_most=0.01, expected=".007, <= 1 %")
    yield Cell(
        "typical", groups=0, fail_most=0.001, pass_least=0.98, blocks_most=4.5, expected="<= .001 / >= .98 / <= 4.5"
    )
    yield Cell(
        "noisy", groups=0, fail_most=0.005, pass_least=0.90, blocks_most=5.5, expected="<= .005 / >= .90 / <= 5.5"
    )
    yield Cell("typical", metrics=PRIMARY, fail_most=0.01, blocks_most=2.9, expected="<= .01 / - / 2.6")
    yield _power(Cell("noisy", "tpot", 0.05, metrics=PRIMARY), 0.84)
    yield Cell("noisy", metrics=PRIMARY, fail_most=0.01, expected="<= .01")
    yield Cell("typical", metrics=("tpot_mean",), fail_most=0.01, blocks_most=2.8, expected="<= .01 / - / 2.5")
    yield _power(Cell("noisy", "tpot", 0.05, metrics=("tpot_mean",)), 0.90)
    yield Cell("noisy", metrics=("tpot_mean",), fail_most=0.01, expected="<= .01")
    for regime in ("typical", "noisy"):
        for name in ("ttft_p50", "ttft_p95", "ttft_p99", "tpot_mean", "icl_p99", "goodput"):
            yield Cell(regime, only=name, pass_most=0.05, expected="PASS <= .05")


def stored_cells() -> Iterator[Cell]:
    """Stored baselines, and stored baselines followed by blocks."""
    same = {"typical": 0.001, "noisy": 0.001, "bimodal": 0.001, "outliers": 0.001, "candidate noisier": 0.002,
            "very noisy": 0.004, "days differ": 0.008}  # fmt: skip
    shapes = ((1, 3), (1, 5), (3, 3), (6, 3))
    for regime, most in same.items():
        for shape in shapes:
            yield Cell(regime, sessions=shape, fail_most=0.01, expected=f"<= {most}")
    powers: dict[tuple[str, str, float], tuple[float, ...]] = {
        ("typical", "ttft", 0.10): (0.11, 0.05, 0.98, 1.00),
        ("typical", "tpot", 0.10): (0.11, 0.05, 0.98, 1.00),
        ("noisy", "all", 0.10): (0.45, 0.59, 0.90, 0.98),
        ("days differ", "all", 0.15): (0.94, 0.92, 0.91, 0.97),
        ("typical", "all", 0.20): (1.0, 1.0, 1.0, 1.0),
    }
    printed = {0.11: ".11-.20", 0.05: ".05-.12", 0.98: ".98-1.00"}
    for (regime, effect, size), row in powers.items():
        for shape, power in zip(shapes, row, strict=True):
            text = printed.get(power, f"{power:.2f}") if regime == "typical" else f"{power:.2f}"
            yield Cell(regime, effect, size, sessions=shape, fail_least=power - 0.03, expected=text)
    for regime, launches in {"quiet": 2.0, "typical": 2.5, "noisy": 8.0}.items():
        yield Cell(regime, sessions=(6, 3), then_interleaved=True, fail_most=0.01, blocks_most=launches + 0.6,
                   expected=f"{launches} launches")  # fmt: skip
    yield _power(Cell("typical", "ttft", 0.05, sessions=(6, 3), then_interleaved=True), 0.98)


def measure(cell: Cell, reps: int, seed: int = 1) -> Measured:
    """Judge ``reps`` jobs. The same seed gives the same jobs."""
    regime = REGIMES[cell.regime]
    if cell.sessions is not None:
        # Days differ by 0.4 % there whatever the noise of launches.
        regime = replace(regime, session_sd=0.004) if cell.then_interleaved else regime
    rng = np.random.default_rng([seed, *cell.name.encode()])
    fail = passed = 0
    spent = 0.0
    for _ in range(reps):
        made = job(rng, regime, np.zeros(len(NAMES)), blocks=cell.blocks, groups=max(cell.groups, 1))
        prior = Prior.from_history([as_launches(group) for group in made.history]) if cell.groups else Prior({})
        effect = _shift(cell, prior)
        ended, cost = None, 0.0
        if cell.sessions is not None:
            base, cand = stored(rng, regime, effect, sessions=cell.sessions[0], per=cell.sessions[1])
            ended, cost = _stored(base, cand, prior, cell)
        if ended is None or (cell.then_interleaved and ended.result not in ("PASS", "FAIL")):
            ended, blocks = _interleaved(made.baseline, made.candidate + effect, made.baseline_first, prior, cell)
            cost = cost + 2 * blocks if cell.then_interleaved else blocks
        fail += ended.result == "FAIL"
        passed += ended.result == "PASS"
        spent += cost
    return Measured(reps, fail / reps, passed / reps, spent / reps)


def _interleaved(base: Array, cand: Array, first: Array, prior: Prior, cell: Cell) -> tuple[Judgement, float]:
    config = GateConfig(metrics=cell.metrics, max_blocks=cell.blocks)
    places = [(2 * b, 2 * b + 1) if leads else (2 * b + 1, 2 * b) for b, leads in enumerate(first)]
    arm_b = as_launches(base, orders=[place for place, _ in places])
    arm_c = as_launches(cand, orders=[place for _, place in places])
    for n in range(2, cell.blocks + 1):
        ended = judge_interleaved(arm_b[:n], arm_c[:n], prior=prior, config=config)
        if ended.result != "CONTINUE":
            break
    return ended, n


def _stored(base: Array, cand: Array, prior: Prior, cell: Cell) -> tuple[Judgement, float]:
    config = GateConfig(metrics=cell.metrics)
    arm_b = [launch for s, each in enumerate(base) for launch in as_launches(each, session=str(s))]
    arm_c = as_launches(cand)
    for n in (2, 3):
        ended = judge_stored(arm_b, arm_c[:n], prior=prior, config=config)
        if ended.result != "CONTINUE":
            break
    return ended, n


def _shift(cell: Cell, prior: Prior) -> Array:
    if cell.only is None:
        return np.log1p(cell.size) * EFFECTS[cell.effect]
    row = gate_row(cell.only)
    assert row is not None
    widened = 4 * math.sqrt(2 * prior.noise(cell.only)[0] / cell.blocks)
    limit = row.tolerance.limit if row.primary else max(row.tolerance.limit, widened)
    return np.array([limit if name == cell.only else 0.0 for name in NAMES])


def _same(regime: str, fail: float, passed: float, blocks: float) -> Cell:
    return Cell(regime, fail_most=0.01, pass_least=passed - 0.03, blocks_most=blocks + 0.3,
                expected=f"{fail:.3f} / {passed:.2f} / {blocks}")  # fmt: skip


def _power(cell: Cell, fail: float, passed: float | None = None, blocks: float | None = None) -> Cell:
    tail = "" if passed is None else f" / {passed:.2f} / {blocks}"
    return replace(cell, fail_least=fail - 0.03, blocks_most=None if blocks is None else blocks + 0.3,
                   expected=f"{fail:.2f}{tail}")  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--reps", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--part", choices=("table", "extras", "stored"), action="append")
    arguments = parser.parse_args()
    parts = {"table": table, "extras": extras, "stored": stored_cells}
    bad = 0
    for part in arguments.part or parts:
        print(f"\n### {part}: {arguments.reps} jobs a cell, seed {arguments.seed}\n")
        print("| situation | to reach | measured: FAIL / PASS / blocks | accepted |\n|---|---|---|---|", flush=True)
        for cell in parts[part]():
            found = measure(cell, arguments.reps, arguments.seed)
            misses = found.misses(cell)
            bad += bool(misses)
            numbers = f"{found.fail:.3f} / {found.passed:.3f} / {found.blocks:.2f}"
            print(f"| {cell.name} | {cell.expected} | {numbers} | {'; '.join(misses) or 'yes'} |", flush=True)
    print(f"\n{bad} cells not accepted")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
