"""Three sessions of real vLLM 0.26.0 on an H200, as refreshes by URL stored them."""

from __future__ import annotations

import math
from pathlib import Path

import numpy
import pytest

from pytest_llmperf.baseline.launches import from_stored
from pytest_llmperf.baseline.store import Store
from pytest_llmperf.stats.launches import LaunchValues
from pytest_llmperf.stats.stored import judge_targeted

FOLDER = Path(__file__).parents[2] / "fixtures" / "h200-vllm-0.26.0" / "baselines"
STORE = Store(FOLDER)
[(PATH, FILE)] = STORE.walk()
assert not isinstance(FILE, Exception)
[ENTRY] = FILE.entries.values()
LAUNCHES = [from_stored(session.launches[0], session.id) for session in ENTRY.sessions]


@pytest.mark.parametrize("session", [session.id for session in ENTRY.sessions])
def test_percentiles_follow_from_the_samples(session: str) -> None:
    """By numpy's estimator of the same definition (linear between order statistics)."""
    [launch] = next(each.launches for each in ENTRY.sessions if each.id == session)
    lines = [line for line in STORE.samples(PATH, ENTRY.identity().digest()) if line.session == session]
    checked = 0
    for line in lines:
        values = line.seconds()
        for suffix, share in (("p50", 0.5), ("p90", 0.9), ("p95", 0.95), ("p99", 0.99)):
            stored = launch.metrics.get(f"{line.family}_{suffix}")
            if stored is not None and all(map(math.isfinite, values)):
                assert stored == pytest.approx(numpy.quantile(values, share), rel=2e-3), (line.family, suffix)
                checked += 1
    assert checked >= 20


@pytest.mark.parametrize("held_out", range(3))
def test_the_same_server_is_never_convicted_by_its_other_sessions(held_out: int) -> None:
    others = [launch for at, launch in enumerate(LAUNCHES) if at != held_out]
    judged = judge_targeted(others, LAUNCHES[held_out])
    assert judged.metrics
    assert not any(each.regressed for each in judged.metrics)


@pytest.mark.parametrize("held_out", range(3))
def test_twice_the_latency_is_never_acquitted(held_out: int) -> None:
    good = LAUNCHES[held_out]
    others = [launch for at, launch in enumerate(LAUNCHES) if at != held_out]
    slow = {name: 2 * value if name.startswith(("ttft", "tpot")) else value for name, value in good.metrics.items()}
    bad = LaunchValues(slow, good.order, good.block, good.session, good.n_requests, good.n_failed, good.n_tokens)
    assert judge_targeted(others, bad).result != "PASS"
