"""What holds for every job, and that the numbers are those of scipy and of plain least squares."""

from __future__ import annotations

import math
import random
import warnings
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from judging import BASELINE_ORDERS, CANDIDATE_ORDERS, about, arms

from pytest_llmperf.stats.interleaved import judge_interleaved
from pytest_llmperf.stats.launches import GateConfig, LaunchValues
from pytest_llmperf.stats.look import fit
from pytest_llmperf.stats.moderate import beyond
from pytest_llmperf.stats.multiple import hommel, simes
from pytest_llmperf.stats.stored import judge_pair, judge_stored, judge_targeted

NAMES = ("ttft_p50", "tpot_mean", "output_throughput")
few = settings(max_examples=40)
Job = tuple[list[LaunchValues], list[LaunchValues]]


@st.composite
def jobs(draw: st.DrawFn) -> Job:
    """Two to six blocks with noise from nothing to wild, and any effect."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    blocks = draw(st.integers(2, 6))
    sd, effect = (
        draw(st.sampled_from([0.0, 0.003, 0.01, 0.04, 0.3])),
        draw(st.sampled_from([-0.1, 0.0, 0.03, 0.1, 1.0])),
    )
    baseline, candidate = rng.normal(0, sd, (3, blocks)), rng.normal(effect, sd, (3, blocks))
    sign = (1, 1, -1)
    return arms(*({name: 100 * np.exp(sign[i] * y[i]) for i, name in enumerate(NAMES)} for y in (baseline, candidate)))


@few
@given(jobs(), st.sampled_from([1e-9, 0.001, 60.0, 1e12]))
def test_units_do_not_matter(job: Job, scale: float) -> None:
    def scaled(launches: list[LaunchValues]) -> list[LaunchValues]:
        return [replace(x, metrics={name: scale * value for name, value in x.metrics.items()}) for x in launches]

    plain, other = judge_interleaved(*job), judge_interleaved(*map(scaled, job))
    assert other.result == plain.result
    assert [each.estimate for each in other.metrics] == pytest.approx([x.estimate for x in plain.metrics], abs=1e-9)


@few
@given(jobs())
def test_swapped_arms_give_the_opposite_estimates(job: Job) -> None:
    baseline, candidate = job
    there, back = judge_interleaved(baseline, candidate), judge_interleaved(candidate, baseline)
    for one, other in zip(there.metrics, back.metrics, strict=True):
        assert one.estimate == pytest.approx(-other.estimate, abs=1e-9)
        assert one.se == pytest.approx(other.se)
    assert {there.result, back.result} != {"FAIL"}


@few
@given(jobs(), st.randoms(use_true_random=False))
def test_the_sequence_in_which_launches_are_given_does_not_matter(job: Job, rng: random.Random) -> None:
    shuffled = [rng.sample(each, len(each)) for each in job]
    assert judge_interleaved(*shuffled) == judge_interleaved(*job)
    assert judge_interleaved(*job) == judge_interleaved(*job)


@few
@given(jobs(), st.data())
def test_a_value_that_is_missing_never_passes(job: Job, data: st.DataObject) -> None:
    baseline, candidate = job
    name = data.draw(st.sampled_from(NAMES))
    gap = data.draw(
        st.sampled_from([math.nan, None, 0.0, -1.0] if name != "output_throughput" else [math.nan, None, -1.0])
    )
    side, at = data.draw(st.sampled_from([baseline, candidate])), data.draw(st.integers(0, len(baseline) - 1))
    metrics = {key: value for key, value in side[at].metrics.items() if key != name or gap is not None}
    side[at] = replace(side[at], metrics={**metrics, name: gap} if gap is not None else metrics)
    judged = judge_interleaved(baseline, candidate, config=GateConfig(metrics=NAMES))
    assert judged.result != "PASS"
    found = about(judged, name)
    assert (found.p, found.q) == (1.0, 1.0)
    assert name not in judged.regressed
    assert any(name in text for text in judged.warnings)


@few
@given(jobs())
def test_the_evidence_of_a_job_only_grows(job: Job) -> None:
    """p_seq is over all looks, so it never rises; alpha is kept by the levels, not by forgetting."""
    seen = [judge_interleaved(*(each[:n] for each in job)) for n in range(2, len(job[0]) + 1)]
    for name in NAMES:
        sequence = [about(each, name).p_seq for each in seen]
        assert sequence == sorted(sequence, reverse=True)
        assert all(about(each, name).p_seq <= 1 for each in seen)


@few
@given(jobs())
def test_a_verdict_is_what_its_numbers_say(job: Job) -> None:
    judged = judge_interleaved(*job)
    if judged.result == "FAIL":  # asked before PASS, and only for what is worse by the least effect
        assert judged.p_global <= 0.01
        assert judged.regressed
        assert all(about(judged, name).estimate >= about(judged, name).floor for name in judged.regressed)
    if judged.result == "PASS":
        assert judged.p_global > 0.01
        assert all(each.upper <= each.limit + 1e-9 for each in judged.metrics)
    assert judged.result != "INCONCLUSIVE" or judged.blocks >= 4
    assert {each.metric for each in judged.metrics if each.regressed} == set(judged.regressed)


@given(st.integers(2, 8), st.integers(0, 2**32))
def test_the_fit_is_that_of_least_squares(blocks: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    y = rng.normal(3, 1, (2 * blocks, 2))
    orders = np.array([*BASELINE_ORDERS[:blocks], *CANDIDATE_ORDERS[:blocks]], dtype=float)
    x = np.column_stack([np.ones(2 * blocks), np.repeat([0.0, 1.0], blocks), orders])
    solution, residuals, *_ = np.linalg.lstsq(x, y, rcond=None)
    found = fit(y[:blocks], y[blocks:], orders)
    assert found.estimate == pytest.approx(solution[1])
    assert found.s_sq == pytest.approx(residuals / (2 * blocks - 3))
    assert found.c == pytest.approx(np.linalg.inv(x.T @ x)[1, 1])
    assert found.df == 2 * blocks - 3


@given(st.floats(-50, 50), st.floats(0.5, 60))
def test_tails_are_those_of_scipy(t: float, nu: float) -> None:
    from scipy.stats import t as student

    assert float(beyond(np.array([t]), np.array([nu]))[0]) == pytest.approx(float(student.sf(t, nu)), rel=1e-6)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=6))
def test_hommel_is_the_closed_test_of_simes(values: list[float]) -> None:
    """By definition: the largest Simes p-value of all sets that contain the hypothesis."""
    from itertools import combinations

    def largest(i: int) -> float:
        others = [j for j in range(len(values)) if j != i]
        sets = (rest for size in range(len(values)) for rest in combinations(others, size))
        return max(simes([values[i], *(values[j] for j in rest)]) for rest in sets)

    assert hommel(values) == pytest.approx([largest(i) for i in range(len(values))])
    assert min(hommel(values)) >= simes(values) * (1 - 1e-9)


ODD = st.sampled_from([0.0, -1.0, math.inf, -math.inf, math.nan, 5e-324, 1e308, 1.0, 2.0])


@few
@given(st.lists(st.tuples(ODD, ODD, ODD, ODD), min_size=2, max_size=6), st.booleans())
def test_odd_values_give_a_verdict_and_no_warning(rows: list[tuple[float, ...]], whole: bool) -> None:
    columns = list(zip(*rows, strict=True))
    names = ("ttft_p50", "goodput")
    baseline, candidate = arms(dict(zip(names, columns[:2], strict=True)), dict(zip(names, columns[2:], strict=True)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        judged = judge_interleaved(baseline, candidate)
        stored = judge_stored(baseline, candidate[: 3 if whole else 2])
        judge_targeted(baseline, candidate[0])
        judge_pair(baseline, candidate)
    for each in (judged, stored):
        assert (each.result == "FAIL") == bool(each.regressed)
        assert not math.isnan(each.p_global)
    if any(not 0 < value < math.inf for value in (*columns[0], *columns[2])):
        assert stored.result != "PASS"


@few
@given(jobs())
def test_a_stored_baseline_convicts_only_of_the_gross(job: Job) -> None:
    baseline, candidate = job
    judged = judge_stored(baseline, candidate[:3])
    if judged.result == "FAIL":
        worst = [launch.metrics[judged.regressed[0]] for launch in candidate[:3]]
        found = about(judged, judged.regressed[0])
        sign = -1 if found.metric == "output_throughput" else 1
        assert all(sign * math.log(value / found.baseline) >= found.limit * (1 - 1e-9) for value in worst)
    assert judge_stored(baseline, candidate[:2]).result != "FAIL"
    assert judge_targeted(baseline, candidate[0]).result in ("PASS", "INCONCLUSIVE")
