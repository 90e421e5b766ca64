"""The short version of the simulation: enough jobs that a gate that errs too often, or finds too little, is seen.

Power and PASS of a cell may miss what is asked by 3.3 standard errors of its 50 jobs (0.07 at 0.98, 0.23 at 0.5). False
positives are rare in single cells, so those of all cells together have to be compatible with a rate of 0.3 %.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from characteristics import Cell, extras, measure, stored_cells, table
from scipy.stats import binom

REPS = 50
SLACK = 3.3
"""Standard errors; one cell in a thousand is beyond by chance, and the seed is fixed."""
TABLE = [cell for cell in table() if cell.effect != "none"]
SAME = [cell for cell in (*table(), *extras()) if cell.effect == "none" and cell.only is None]
STORED = [cell for cell in stored_cells() if cell.regime in ("typical", "noisy") and not cell.then_interleaved]


@pytest.mark.parametrize("cell", TABLE, ids=lambda cell: cell.name)
def test_regressions_are_found_in_as_few_blocks_as_specified(cell: Cell) -> None:
    assert measure(cell, REPS).misses(cell, SLACK) == []


def test_the_same_arms_fail_at_most_one_test_in_a_hundred() -> None:
    """Regimes, violations of the assumptions, small families and no history; together, and each by the table."""
    measured = {cell.name: measure(cell, REPS) for cell in SAME}
    assert {cell.name: found for cell in SAME if (found := measured[cell.name].misses(cell, SLACK))} == {}
    jobs = REPS * len(SAME)
    failed = round(sum(each.fail * REPS for each in measured.values()))
    assert binom.sf(failed - 1, jobs, 0.003) > 0.001, f"{failed} of {jobs} jobs failed with the same arms"


@pytest.mark.parametrize("cell", STORED, ids=lambda cell: cell.name)
def test_a_stored_baseline_convicts_the_gross_and_only_that(cell: Cell) -> None:
    assert measure(cell, REPS // 2).misses(cell, SLACK) == []


def test_a_gate_that_cannot_fail_or_cannot_pass_would_be_seen() -> None:
    """The bounds refuse the two gates that never decide anything, and one that errs in 5 % of jobs."""
    from characteristics import Measured

    blind, trigger_happy = Measured(REPS, 0.0, 1.0, 2.0), Measured(REPS, 1.0, 0.0, 2.0)
    powers = [cell for cell in TABLE if cell.fail_least is not None]
    assert all(blind.misses(cell, SLACK) for cell in powers)
    assert all(trigger_happy.misses(cell, SLACK) for cell in SAME)
    assert binom.sf(round(0.05 * REPS * len(SAME)) - 1, REPS * len(SAME), 0.003) < 0.001


def test_the_long_version_is_on_record() -> None:
    text = (Path(__file__).parent / "RESULTS.md").read_text(encoding="utf-8")
    assert {cell.name for cell in (*table(), *extras(), *stored_cells()) if f"| {cell.name} |" not in text} == set()
