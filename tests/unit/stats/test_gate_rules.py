"""Special cases of the gate: errors, infinities, what is not gated, what is refused; families, priors, power, modes."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from judging import about, arm, arms

from pytest_llmperf.catalog import METRICS
from pytest_llmperf.stats.family import default_family, gate_row, why_not_gateable
from pytest_llmperf.stats.interleaved import judge_interleaved
from pytest_llmperf.stats.launches import GateConfig, Tolerance
from pytest_llmperf.stats.modes import bimodal
from pytest_llmperf.stats.power import blocks_for, detectable_interleaved, detectable_stored, replays
from pytest_llmperf.stats.prior import NoiseGroup, Prior
from pytest_llmperf.stats.stored import ONE_SESSION, judge_pair, judge_stored, judge_targeted

QUIET = {"ttft_p50": (2.5e-5, 4.0), "tpot_mean": (2.5e-5, 4.0)}
SAME = {"ttft_p50": [0.120, 0.121, 0.119, 0.1205], "tpot_mean": [0.021, 0.0211, 0.0209, 0.021]}


def test_one_block_is_no_comparison() -> None:
    judged = judge_interleaved(*arms(SAME, SAME, 1))
    assert (judged.result, judged.metrics) == ("INCONCLUSIVE", ())
    assert "needs at least 2" in judged.reason


def test_errors_of_the_candidate_in_two_launches_fail_whatever_its_speed() -> None:
    baseline, _ = arms(SAME, SAME, 2)
    faster = {name: [value / 2 for value in values[:2]] for name, values in SAME.items()}
    broken = arm(faster, (1, 2), n_failed=21)
    for judged in (judge_interleaved(baseline, broken), judge_stored(baseline, broken), judge_pair(
        arm(SAME), arm(SAME, n_failed=21)
    )):  # fmt: skip
        assert (judged.result, judged.regressed) == ("FAIL", ("errors",))
    assert judge_interleaved(baseline, arm(faster, (1, 2), n_failed=20), prior=QUIET).result == "PASS"  # 1 % is allowed


def test_errors_in_one_launch_or_in_the_baseline_decide_nothing() -> None:
    baseline, candidate = arms(SAME, SAME, 2)
    once = [candidate[0], replace(candidate[1], n_failed=100)]
    judged = judge_interleaved(baseline, once)
    assert (judged.result, judged.regressed) == ("CONTINUE", ())
    assert judged.reason.endswith("launch of block 1; run it again")
    assert judge_interleaved(baseline, once, config=GateConfig(max_blocks=2)).result == "INCONCLUSIVE"
    assert judge_targeted(baseline, once[1]).result == "INCONCLUSIVE"
    both = judge_interleaved([replace(each, n_failed=100) for each in baseline], once)
    assert both.result == "INCONCLUSIVE"
    assert both.reason.startswith("invalid")


def test_a_metric_lost_in_two_launches_fails_and_in_one_decides_nothing() -> None:
    for lost_in, result in ((2, "FAIL"), (1, "CONTINUE")):
        values = [math.inf] * lost_in + SAME["ttft_p50"][lost_in:]
        judged = judge_interleaved(*arms(SAME, {**SAME, "ttft_p50": values}, 3))
        assert judged.result == result
        assert judged.regressed == (("ttft_p50",) if result == "FAIL" else ())
        assert about(judged, "ttft_p50").q == 1
    both = judge_interleaved(*arms({**SAME, "ttft_p50": [math.inf] * 4}, {**SAME, "ttft_p50": [math.inf] * 4}))
    assert both.result == "CONTINUE"
    assert about(both, "ttft_p50").p == 1


def test_a_throughput_of_zero_is_lost_and_no_goodput_on_both_sides_is_the_same() -> None:
    rate = {"output_throughput": [2400.0, 2410.0, 2405.0]}
    assert judge_interleaved(*arms(rate, {"output_throughput": [0.0] * 3})).regressed == ("output_throughput",)
    nothing = {"goodput": [0.0, 0.0, 0.0]}
    assert judge_interleaved(*arms(nothing, nothing), prior={"goodput": (1e-5, 4.0)}).result == "PASS"
    assert judge_interleaved(*arms({"goodput": [5.0] * 3}, nothing)).regressed == ("goodput",)


@pytest.mark.parametrize(
    ("metrics", "n_requests", "n_tokens", "why"),
    [
        (("ttft_p95",), 199, 400_000, "needs 200 successful requests in each launch, one has 199"),
        (("ttft_p50",), 19, 400_000, "needs 20 successful"),
        (("icl_p99",), 200, 9_999, "needs 10000 output tokens in each launch, one has 9999"),
        (("icl_p99",), 200, None, "their number is not known"),
    ],
)
def test_too_few_requests_are_reported_and_never_gated(
    metrics: tuple[str, ...], n_requests: int, n_tokens: int | None, why: str
) -> None:
    values = {name: [1.0, 1.01] for name in metrics}
    sides = [[replace(x, n_requests=n_requests, n_tokens=n_tokens) for x in side] for side in arms(values, values, 2)]
    judged = judge_interleaved(*sides, config=GateConfig(metrics=metrics))
    assert judged.result == "INCONCLUSIVE"
    assert why in judged.not_gated[metrics[0]]
    assert why in judged.reason
    enough = [[replace(x, n_requests=1000, n_tokens=10_000) for x in side] for side in sides]
    assert [each.metric for each in judge_interleaved(*enough, config=GateConfig(metrics=metrics)).metrics] == [
        *metrics
    ]


def test_a_metric_that_was_asked_for_and_never_measured_cannot_pass() -> None:
    def judged(config: GateConfig) -> str:
        return judge_interleaved(*arms(SAME, SAME, 2), prior=QUIET, config=config).result

    assert judged(GateConfig(metrics=("ttft_p50",))) == "PASS"
    assert judged(GateConfig(metrics=("ttft_p50", "peak_memory"))) == "CONTINUE"
    assert judged(GateConfig(tolerances={"peak_memory": Tolerance.of(0.01)})) == "CONTINUE"


def test_without_a_primary_metric_every_metric_is_primary_and_no_margin_is_widened() -> None:
    noisy = {"ttft_p99": (0.01, 4.0)}
    values = {"ttft_p99": [0.5, 0.51, 0.49]}
    alone = judge_interleaved(*arms(values, values), prior=noisy)
    assert (about(alone, "ttft_p99").primary, about(alone, "ttft_p99").widened) == (True, False)
    beside = judge_interleaved(*arms({**values, **SAME}, {**values, **SAME}, 3), prior=noisy)
    found = about(beside, "ttft_p99")
    assert (found.primary, found.widened) == (False, True)
    assert found.limit == pytest.approx(4 * math.sqrt(2 * 0.01 / 8))
    assert any("ttft_p99: this runner's noise widens the limit from 15 % to 22 %" in text for text in beside.warnings)


def test_hopeless_noise_stops_early_and_says_what_it_would_take() -> None:
    rng = np.random.default_rng(3)
    noise = [{"ttft_p50": np.exp(rng.normal(0, 0.2, 8))} for _ in range(2)]
    judged = judge_interleaved(*arms(*noise, 4))
    assert judged.result == "INCONCLUSIVE"
    found = about(judged, "ttft_p50")
    assert judged.blocks_needed == math.ceil(4 * (2.5 * found.se / found.limit) ** 2)
    assert judged.reason.startswith(f"too noisy: needs about {judged.blocks_needed} blocks")


def test_the_last_block_without_a_decision_is_final() -> None:
    worse = {"ttft_p50": [value * 1.035 for value in SAME["ttft_p50"]]}
    base = {"ttft_p50": SAME["ttft_p50"]}
    assert judge_interleaved(*arms(base, worse, 4), config=GateConfig(max_blocks=8)).result == "CONTINUE"
    last = judge_interleaved(*arms(base, worse, 4), config=GateConfig(max_blocks=4, alpha=1e-9, alpha_pass=1e-9))
    assert last.result == "INCONCLUSIVE"


def test_arms_that_do_not_pair_up_are_refused() -> None:
    baseline, candidate = arms(SAME, SAME)
    with pytest.raises(ValueError, match="block 3 has only one of the two arms"):
        judge_interleaved(baseline, candidate[:3])
    with pytest.raises(ValueError, match="two launches of the candidate are in block 0"):
        judge_interleaved(baseline[:2], [candidate[0], replace(candidate[1], block=0)])
    with pytest.raises(ValueError, match="same order"):
        judge_interleaved(baseline[:2], [replace(each, order=0) for each in candidate[:2]])
    with pytest.raises(ValueError, match="4 blocks, but max_blocks = 3"):
        judge_interleaved(baseline, candidate, config=GateConfig(max_blocks=3))
    with pytest.raises(ValueError, match="no launches of the baseline"):
        judge_stored([], candidate[:2])
    with pytest.raises(ValueError, match="4 candidate launches"):
        judge_stored(baseline, candidate)
    with pytest.raises(ValueError, match="several sessions"):
        judge_stored(baseline, [candidate[0], replace(candidate[1], session="tomorrow")])
    with pytest.raises(ValueError, match="do not pair up"):
        judge_pair(baseline, candidate[:3])


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (GateConfig(metrics=("mfu",)), "mfu cannot be gated"),
        (GateConfig(metrics=("ttft_p75",)), "gate ttft_p50, _p90, _p95, _p99 or _mean"),
        (GateConfig(metrics=("ttft_p5O",)), "unknown metric 'ttft_p5O'; did you mean"),
        (GateConfig(metrics=("ttft_p50",), tolerances={"tpot_mean": Tolerance.of(0.1)}), "tolerance of tpot_mean"),
        (GateConfig(tolerances={"ttft_p50": Tolerance(0.2, 0.1)}), "0 <= floor <= limit"),
        (GateConfig(max_blocks=1), "max_blocks = 1"),
    ],
)
def test_an_impossible_configuration_is_refused(config: GateConfig, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        judge_interleaved(*arms(SAME, SAME, 2), config=config)


@pytest.mark.parametrize("noise", [(1e-4, 5.0), (1e-4, 0.0), (-1.0, 4.0), (math.nan, 4.0), (math.inf, 4.0)])
def test_a_prior_that_would_break_the_error_rate_is_refused(noise: tuple[float, float]) -> None:
    with pytest.raises(ValueError, match="prior of ttft_p50"):
        judge_interleaved(*arms(SAME, SAME, 2), prior={"ttft_p50": noise})


def test_rows_are_those_of_the_table() -> None:
    printed = {  # margin, sd floor, built-in s0, requests
        "ttft_p50": (0.05, 0.002, 0.020, 20), "ttft_p95": (0.08, 0.004, 0.035, 200),
        "ttft_p99": (0.15, 0.008, 0.070, 1000), "tpot_mean": (0.05, 0.001, 0.020, 20),
        "tpot_p95": (0.05, 0.002, 0.020, 200), "icl_p99": (0.10, 0.004, 0.035, 200),
        "output_throughput": (0.05, 0.001, 0.020, 20), "goodput": (0.05, 0.003, 0.030, 50),
        "peak_memory": (0.02, 0.0005, 0.002, 1), "e2e_mean": (0.05, 0.002, 0.020, 20),
        "e2e_p90": (0.08, 0.004, 0.035, 200), "tpot_p50": (0.05, 0.001, 0.020, 20),
        "tpot_p99": (0.15, 0.008, 0.070, 1000), "kv_capacity_tokens": (0.02, 0.0005, 0.002, 1),
        "time_to_ready": (0.20, 0.005, 0.050, 1), "compile_time": (0.20, 0.005, 0.050, 1),
        "energy_per_mtok": (0.05, 0.002, 0.020, 20), "cpu_seconds_per_mtok": (0.10, 0.002, 0.035, 20),
        "icl_p50": (0.02, 0.0005, 0.004, 20), "goodput_share": (0.05, 0.003, 0.030, 50),
    }  # fmt: skip
    for name, (margin, floor, s0, requests) in printed.items():
        row = gate_row(name)
        assert row is not None
        assert (row.sd_floor, row.s0, row.min_ok) == (floor, s0, requests)
        assert row.tolerance.limit == pytest.approx(math.log(1 + margin))
        assert row.tolerance.floor == pytest.approx(math.log(1 + margin) / 2)
    primary = {name for name in METRICS if (row := gate_row(name)) is not None and row.primary}
    assert primary == {"ttft_p50", "tpot_mean", "output_throughput"}


def test_what_cannot_be_gated_says_what_to_do_instead() -> None:
    never = {name for name in METRICS if gate_row(name) is None}
    assert never == {
        "error_rate", "memory_growth", "prefix_hit_rate", "kv_usage_p95", "preemptions", "time_to_ready_cold",
        "cost_per_mtok", "mbu", "mfu", "scaling_efficiency", "acceptance_length",
        *(f"{name}_p{n}" for name in ("queue_wait", "prefill_time") for n in (50, 90, 95, 99)),
    }  # fmt: skip
    assert why_not_gateable("queue_wait_p95").endswith("gate queue_wait_mean")
    assert gate_row("queue_wait_mean") is not None
    assert all(why_not_gateable(name) for name in never)
    assert "output_throughput" in why_not_gateable("cost_per_mtok")
    assert gate_row("ttft_p99_9") is None


def test_what_was_measured_in_unlike_ways_is_not_compared() -> None:
    """One arm by the memory of its processes, the other by that of whole GPUs: 3 % more, and nothing has changed."""
    values = {"peak_memory": [10e9] * 3, "ttft_p50": [0.1, 0.101, 0.099]}
    more = {"peak_memory": [10.3e9] * 3, "ttft_p50": [0.1, 0.101, 0.099]}
    baseline, candidate = arms(values, more, 3)
    assert judge_interleaved(baseline, candidate).not_gated == {}
    whole = [replace(each, sources={"peak_memory": "whole-gpus"}) for each in candidate]
    found = judge_interleaved(baseline, whole)
    assert found.not_gated == {
        "peak_memory": "is measured differently in different launches (peak_memory/1 and peak_memory/1:whole-gpus): "
        "these are not comparable"
    }
    assert [each.metric for each in found.metrics] == ["ttft_p50"]
    alike = [replace(each, sources={"peak_memory": "whole-gpus"}) for each in baseline]
    assert judge_interleaved(alike, whole).not_gated == {}


def test_the_default_family() -> None:
    four = ("ttft_p50", "tpot_mean", "output_throughput", "peak_memory")
    assert default_family(cpu_engine=False, ok_requests=199) == four
    assert default_family(cpu_engine=True, ok_requests=200) == (*four, "ttft_p95", "cpu_seconds_per_mtok")


def test_few_groups_are_pooled_and_blended_with_the_built_in_noise() -> None:
    group = arm({"ttft_p50": [1.0, math.exp(0.02)]})  # v = 0.02^2 / 2, e = 1
    s0_sq, d0 = Prior.from_history([group])["ttft_p50"]
    w = 0.5 / 4
    assert (s0_sq, d0) == (pytest.approx(w * 0.02**2 / 2 + (1 - w) * 0.02**2), 4.0)
    assert len(Prior.from_history([])) == 0
    assert Prior({}).noise("ttft_p95") == (0.035**2, 4.0)
    assert Prior({"ttft_p50": (0.0, 4.0)}).noise("ttft_p50") == (pytest.approx(0.002**2), 4.0)


def test_only_twelve_groups_of_ninety_days_count() -> None:
    day = 86_400.0

    def group(age: float, step: float) -> NoiseGroup:
        return NoiseGroup.of(arm({"ttft_p50": np.exp([0.0, step, 0.0, step]).tolist()}), 1000 * day - age * day)

    fresh = [group(age, 0.01 + 0.001 * age) for age in range(12)]
    stale, older = group(91, 0.5), group(60, 0.5)
    assert Prior.from_history([stale, *fresh[:3]], now=1000 * day) == Prior.from_history(fresh[:3])
    assert Prior.from_history([older, *fresh]) == Prior.from_history(fresh)
    assert Prior.from_history([older, *fresh[:11]]) != Prior.from_history(fresh[:11])


def test_groups_survive_json_and_refuse_what_is_no_group() -> None:
    group = NoiseGroup.of(
        arm({"ttft_p50": [1.0, 1.1, 1.0], "mfu": [0.1, 0.2, 0.3], "tpot_mean": [1.0, math.inf, 1.0]}), 5.0
    )
    assert set(group.spread) == {"ttft_p50"}
    assert NoiseGroup.from_json(json.loads(json.dumps(group.as_json()))) == group
    for bad in ({}, {"taken": 1, "spread": {"ttft_p50": [-1, 3]}}, {"taken": 1, "spread": {"ttft_p50": [0.1, 1]}},
                {"taken": 1, "spread": {"tftt_p50": [0.1, 3]}}):  # fmt: skip
        with pytest.raises(ValueError, match=r"taken|ttft_p50|tftt_p50"):
            NoiseGroup.from_json(bad)
    with pytest.raises(ValueError, match="at least 2 launches, got 1"):
        NoiseGroup.of(arm({"ttft_p50": [1.0]}), 0.0)


def test_a_pair_of_live_servers_convicts_only_of_what_every_replay_shows() -> None:
    a = arm({"ttft_p50": [0.120, 0.121, 0.119, 0.1205]})
    assert judge_pair(a, a, prior={"ttft_p50": (2.5e-5, 4.0)}).result == "PASS"
    worse = judge_pair(a, arm({"ttft_p50": [0.24, 0.25, 0.24, 0.24]}))
    assert (worse.result, worse.regressed) == ("FAIL", ("ttft_p50",))
    found = about(worse, "ttft_p50")
    assert (found.se, found.nu) == (pytest.approx(math.sqrt(2) * 0.02), 4)
    assert judge_pair(a, arm({"ttft_p50": [0.24, 0.25, 0.24, 0.121]})).result == "INCONCLUSIVE"
    assert judge_pair(a[:3], a[:3]).reason == "3 replays of each server; needs 4"


@pytest.mark.parametrize(("blocks", "power"), [(6, 0.35), (8, 0.58), (12, 0.87), (16, 0.94)])
def test_the_detectable_change_is_that_of_the_simulated_budgets(blocks: int, power: float) -> None:
    """The specification's budgets: TTFT 5 % worse on a noisy runner with nine metrics gated."""
    names = ("ttft_p50", "ttft_p95", "ttft_p99", "tpot_mean", "tpot_p95", "icl_p99", "output_throughput", "goodput",
             "peak_memory")  # fmt: skip
    launch_sd = math.sqrt(0.02**2 * (1 + 0.2**2 + 2 * 0.2 * 0.6) + (0.006 * 1.5) ** 2 / 2)
    prior = {"ttft_p50": (launch_sd**2, 4.0)}
    at = {share: detectable_interleaved(names, blocks, prior=prior, power=share)["ttft_p50"]
          for share in (power - 0.08, power + 0.06)}  # fmt: skip
    low, high = at.values()
    assert low < 0.05 < high


def test_blocks_for_a_change_and_what_no_number_of_blocks_shows() -> None:
    family = ("ttft_p50", "tpot_mean")
    n = blocks_for("ttft_p50", 0.05, family)
    assert n is not None
    assert detectable_interleaved(family, n)["ttft_p50"] <= 0.05
    assert detectable_interleaved(family, n - 1)["ttft_p50"] > 0.05
    assert blocks_for("ttft_p50", 0.02, family) is None  # below the least effect
    one, three = (detectable_stored(family, [3] * sessions)["ttft_p50"] for sessions in (1, 3))
    assert 0.05 < three < one
    with pytest.raises(ValueError, match="mfu cannot be gated"):
        detectable_interleaved(("mfu",), 8)


def test_replays_buy_precision_where_launches_are_dear() -> None:
    assert replays(80, 8, {"ttft_p50": (3e-4, 3e-4), "tpot_mean": (1e-5, 1e-4)}) == round(math.sqrt(10))
    assert replays(80, 8, {"ttft_p50": (3e-4, 3e-4)}, tests=10) == 1
    assert replays(80, 8, {"ttft_p50": (3e-4, 0.0)}) == 6
    assert replays(800, 8, {"ttft_p50": (9e-4, 1e-4)}) == 6
    assert replays(8, 80, {"ttft_p50": (0.0, 1e-4)}) == 1
    with pytest.raises(ValueError, match="positive times"):
        replays(0, 8, {"ttft_p50": (1e-4, 1e-4)})


def test_launches_of_two_kinds_are_told_from_one_outlier_and_from_noise() -> None:
    fast, slow = [0.100, 0.1005, 0.0995, 0.1002, 0.0998], [0.110, 0.1102, 0.1098]
    (found,) = bimodal(arm({"tpot_mean": [*fast, *slow]}), ("tpot_mean", "ttft_p50"))
    assert (found.n_better, found.n_worse) == (5, 3)
    assert (found.better, found.worse) == (pytest.approx(0.1, rel=1e-3), pytest.approx(0.11, rel=1e-3))
    (rate,) = bimodal(arm({"output_throughput": [1 / x for x in (*fast, *slow)]}), ("output_throughput",))
    assert (rate.n_better, rate.n_worse) == (5, 3)
    assert bimodal(arm({"tpot_mean": [*fast, 0.15]}), ("tpot_mean",)) == ()
    assert bimodal(arm({"tpot_mean": [*fast[:2], slow[0]]}), ("tpot_mean",)) == ()
    tight = [value ** (1 / 10) for value in (*fast, *slow)]  # as clear, and too small to matter
    assert bimodal(arm({"tpot_mean": tight}), ("tpot_mean",)) == ()
    with pytest.raises(ValueError, match="mfu"):
        bimodal(arm({"mfu": [0.1] * 4}), ("mfu",))


def test_bimodal_launches_are_a_false_alarm_in_one_case_of_a_hundred() -> None:
    rng = np.random.default_rng(7)
    alarms = sum(bool(bimodal(arm({"tpot_mean": np.exp(rng.normal(0, 0.5, 8)).tolist()}), ("tpot_mean",)))
                 for _ in range(1500))  # fmt: skip
    assert 3 <= alarms <= 30  # 15 expected; binomial, 1 in 1000 on either side


def test_sessions_of_unequal_size_enter_by_their_own_means() -> None:
    """The stored test written out for one metric, with scipy's t; sessions of 2 and 4 launches, a noisy job."""
    from scipy.stats import f, t

    sessions, candidate = ([1.00, 1.03], [1.05, 1.01, 1.02, 1.06]), [1.04, 1.01, 1.03]
    logs = [np.log(each) for each in (*sessions, candidate)]
    df = 1 + 3 + 2
    s_sq = sum(((each - each.mean()) ** 2).sum() for each in logs) / df
    s0_sq, d0 = 1e-4, 4.0
    kappa = max(1.0, s_sq / s0_sq)
    assert kappa > 1
    assert f.sf(s_sq / (kappa * s0_sq), df, d0) > 0.05
    v_l, nu_l = (d0 * kappa * s0_sq + df * s_sq) / (d0 + df), min(d0 + df, df)
    means = np.array([each.mean() for each in logs[:2]])
    m_s = max(0.0, means.var(ddof=1) - v_l * (1 / 2 + 1 / 4) / 2)
    v_s = (3 * 0.01**2 + m_s) / 4
    a, b = v_s * 1.5, v_l * ((1 / 2 + 1 / 4) / 4 + 1 / 3)
    nu = (a + b) ** 2 / (a**2 / 4 + b**2 / nu_l)
    estimate = logs[2].mean() - means.mean()

    baseline = [each for n, values in enumerate(sessions) for each in arm({"ttft_p50": values}, session=str(n))]
    judged = judge_stored(baseline, arm({"ttft_p50": candidate}), prior={"ttft_p50": (s0_sq, d0)})
    found = about(judged, "ttft_p50")
    assert (found.estimate, found.se, found.nu) == tuple(map(pytest.approx, (estimate, math.sqrt(a + b), nu)))
    assert found.q == pytest.approx(t.sf((math.log(1.05) - estimate) / math.sqrt(a + b), nu))
    assert judged.kappa == pytest.approx(kappa)
    assert judged.warnings == ()
    alone = judge_stored(baseline[:2], arm({"ttft_p50": candidate}))
    assert alone.warnings == (ONE_SESSION,)


def test_fail_is_asked_before_pass() -> None:
    """More memory, certain and below twice the tolerance: the regression is shown and the limit is ruled out."""
    values = {"peak_memory": [61.0] * 3}, {"peak_memory": [61.8] * 3}
    judged = judge_interleaved(*arms(*values))
    found = about(judged, "peak_memory")
    assert found.q <= 0.0105
    assert (judged.result, judged.regressed) == ("FAIL", ("peak_memory",))
    assert judge_interleaved(*arms(values[0], {"peak_memory": [61.5] * 3})).result == "PASS"  # below 1 %: never FAIL


def test_a_regression_of_an_early_look_that_is_gone_is_neither_pass_nor_fail() -> None:
    slower_at_first = {"peak_memory": [62.0, 62.0, 60.0, 60.0, 60.0]}
    judged = [judge_interleaved(*arms({"peak_memory": [61.0] * 5}, slower_at_first, n)) for n in (2, 5)]
    assert judged[0].result == "FAIL"
    assert (judged[1].result, judged[1].p_global <= 0.01) == ("CONTINUE", True)
    assert judged[1].reason == "an earlier look showed a regression that 5 blocks together do not show"
