"""The steady-state check on simulated servers of known truth and on recordings of a real one.

Seeded and of modest size; ``python tests/simulated.py 100`` prints the rates over more runs.
"""

from __future__ import annotations

import dataclasses
import gzip
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from made import record, trial
from simulated import CHANGES, LOADS, Load, serve

from pytest_llmperf.metrics.steady import steadiness
from pytest_llmperf.metrics.validity import LoadFacts, assess
from pytest_llmperf.records import Phase, Trial

RECORDINGS = Path(__file__).parents[2] / "fixtures" / "recordings"
OVERLOAD = "Poisson, twice the capacity, 600"


def recorded(name: str, warp: Callable[[float], float] = lambda share: share) -> Trial:
    """A recording, two requests per stream as warm-up; ``warp`` moves its times, in shares of the window."""
    with gzip.open(RECORDINGS / f"vllm-0.26.0-llama8b-{name}.jsonl.gz", "rt") as file:
        head, *rows = map(json.loads, file)
    rows.sort(key=lambda row: row["send"])
    warmup = 2 * head["concurrency"]
    start, span = rows[warmup]["send"], rows[-1]["send"] - rows[warmup]["send"]

    def moved(ms: float) -> float:
        return ms if ms < start else start + span * warp((ms - start) / span)

    records = [
        record(
            i,
            sent_ms=moved(row["send"]),
            chunks_ms=[moved(row["send"] + ms) - moved(row["send"]) for ms in row["tokens"]],
            output_tokens=row["usage"][1],
            phase=Phase.WARMUP if i < warmup else Phase.MEASURED,
        )
        for i, row in enumerate(rows)
    ]
    return trial(records, start_ms=moved(start), end_ms=max(r.last_output_ns or 0 for r in records) / 1e6)


@pytest.mark.parametrize("name", [name for name in LOADS if name != OVERLOAD])
def test_a_stationary_load_is_steady(name: str) -> None:
    load = LOADS[name]
    found = [steadiness(serve(load, seed), load.rate is not None) for seed in range(10)]
    assert [one.unsettled for one in found if one.unsettled] == []
    assert all(one.checked for one in found)


@pytest.mark.parametrize("change", [change for change in CHANGES if change != "none"])
@pytest.mark.parametrize(
    "name",
    [
        "closed 16, equal lengths, 200",
        "closed 16, uniform, 600",
        "closed 4, uniform, 200",
        "Poisson, a quarter of capacity, 400",
    ],
)
def test_a_changing_server_is_seen(name: str, change: str) -> None:
    load = LOADS[name]
    found = [steadiness(serve(load, seed, CHANGES[change]), load.rate is not None) for seed in range(5)]
    assert [one.unsettled is not None for one in found] == [True] * 5


def test_the_sentence_names_the_change_its_place_and_the_remedy() -> None:
    load = Load(600)
    late = steadiness(serve(load, 1, CHANGES["step 20 % at 1/2"]), open_loop=False).unsettled or ""
    assert "output rate fell from" in late
    assert any(f"after {share} % of the window" in late for share in range(44, 56))
    assert "look for other load on the machine" in late
    early = steadiness(serve(load, 1, CHANGES["first fifth twice as slow"]), open_loop=False).unsettled or ""
    assert "use a longer warmup=" in early
    leak = steadiness(serve(load, 1, CHANGES["leak 20 %"]), open_loop=False).unsettled or ""
    assert "in the course of the window" in leak


def test_an_open_loop_beyond_capacity_is_a_queue_that_grows() -> None:
    found = steadiness(serve(LOADS[OVERLOAD], 0), open_loop=True)
    assert "TTFT rose" in (found.unsettled or "")
    assert "the queue grows; lower request_rate" in (found.unsettled or "")


def test_a_harmless_drift_is_left_alone_however_certain() -> None:
    quiet = Load(600, noise=0.001)
    found = steadiness(serve(quiet, 0, lambda share: 1 + 0.05 * share), open_loop=False)
    assert (found.checked, found.unsettled) == (True, None)


def test_one_long_stall_is_no_change_of_level() -> None:
    one = serve(Load(600), 0)
    assert steadiness(one, open_loop=False).unsettled is None
    stalled = serve(Load(600), 0, lambda share: 200.0 if 0.5 < share < 0.502 else 1.0)  # about a second
    assert steadiness(stalled, open_loop=False).unsettled is None


def test_the_drain_at_the_end_of_a_counted_load_is_no_change() -> None:
    """The last requests run in an ever emptier batch: that is the plan's doing."""
    one = serve(Load(200, concurrency=16, output=(32, 400), noise=0.0), 3)
    assert steadiness(one, open_loop=False).unsettled is None


@pytest.mark.parametrize("name", ["launch1-c16-0", "launch1-c16-1"])
def test_a_real_engine_slowing_down_is_seen(name: str) -> None:
    for warp in (
        lambda x: x + 0.125 * x * x,  # 20 % slower at the end
        lambda x: x if x < 0.5 else 0.5 + 1.25 * (x - 0.5),
        lambda x: 2 * x if x < 0.2 else 0.4 + (x - 0.2),
    ):
        assert steadiness(recorded(name, warp), open_loop=False).unsettled is not None


def test_a_real_engine_in_convoys_is_steady_until_the_convoy_breaks_up() -> None:
    assert steadiness(recorded("launch1-c16-0"), open_loop=False).unsettled is None
    broken = steadiness(recorded("launch1-c16-1"), open_loop=False).unsettled or ""
    assert broken.startswith("TTFT fell from 147 ms to 115 ms after 70 % of the window")


def test_a_window_of_a_few_generations_is_not_checked() -> None:
    found = steadiness(recorded("launch0-c64-0"), open_loop=False)  # 200 requests, 64 at a time
    assert (found.checked, found.unsettled) == (False, None)
    assert not steadiness(trial([]), open_loop=False).checked
    assert not steadiness(trial([record(chunks_ms=())]), open_loop=False).checked


def test_a_load_that_changes_by_plan_is_not_asked() -> None:
    changing = serve(Load(600), 1, CHANGES["leak 20 %"])
    found = assess(changing, LoadFacts())
    assert found.valid  # unsettled is a flag of its own, not INVALID
    assert found.unsettled is not None
    planned = assess(changing, LoadFacts(stationary=False))
    assert (planned.unsettled, planned.steady_checked) == (None, False)


def test_the_rate_is_asked_in_chunks_where_requests_have_no_token_count() -> None:
    """A server that counts at the end alone has no count for what was cut; its TPOT is then missing too."""
    changing = serve(Load(600), 1, CHANGES["step 20 % at 1/2"])
    uncounted = tuple(dataclasses.replace(r, output_tokens=None) for r in changing.records)
    found = steadiness(dataclasses.replace(changing, records=uncounted), open_loop=False).unsettled or ""
    assert re.search(r"chunk rate fell from 2,\d{3} chunks/s to 1,\d{3} chunks/s after (4|5)\d % of the window", found)
