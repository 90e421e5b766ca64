"""The worked examples of the gate's specification, to a thousandth of what it prints."""

from __future__ import annotations

import math

import numpy as np
import pytest
from judging import BASELINE_ORDERS, CANDIDATE_ORDERS, about, arm, arms

from pytest_llmperf.stats.arms import gate
from pytest_llmperf.stats.interleaved import judge_interleaved
from pytest_llmperf.stats.launches import GateConfig
from pytest_llmperf.stats.levels import levels
from pytest_llmperf.stats.look import fit
from pytest_llmperf.stats.moderate import beyond, moderated
from pytest_llmperf.stats.multiple import hommel, simes
from pytest_llmperf.stats.prior import NoiseGroup, Prior
from pytest_llmperf.stats.stored import judge_stored

PRIOR = {
    "ttft_p50": (1e-4, 4.0),
    "tpot_mean": (6.4e-5, 4.0),
    "output_throughput": (3.6e-5, 4.0),
    "peak_memory": (2.5e-7, 4.0),
}
BASELINE = {
    "ttft_p50": [120.0, 121.5, 119.2, 120.8],
    "tpot_mean": [21.00, 21.12, 20.95, 21.05],
    "throughput": [2400, 2388, 2410, 2395],
}
CANDIDATE = {
    "ttft_p50": [126.4, 127.1, 125.2, 127.9],
    "tpot_mean": [21.04, 21.10, 20.98, 21.09],
    "throughput": [2396, 2391, 2405, 2399],
}
SAME = {**CANDIDATE, "ttft_p50": [120.6, 120.2, 120.1, 121.0]}


def near(value: float) -> object:
    """A thousandth, or what the printed digits leave open."""
    digits = f"{value:e}".split("e")[0].rstrip("0").replace("-", "").replace(".", "")
    exponent = math.floor(math.log10(abs(value)))
    return pytest.approx(value, rel=1e-3, abs=0.51 * 10 ** (exponent - len(digits) + 1) if len(digits) > 2 else None)


def test_e1_a_slower_first_token_is_open_after_two_blocks_and_fails_after_three() -> None:
    two = judge_interleaved(*arms(BASELINE, CANDIDATE, 2), prior=PRIOR)
    ttft = about(two, "ttft_p50")
    assert (ttft.estimate, ttft.se, ttft.nu) == (near(0.048510), near(0.008954), 5)
    assert (ttft.p, ttft.p_seq, two.p_global) == (near(0.001450), near(0.02429), near(0.0729))
    assert two.result == "CONTINUE"

    three = judge_interleaved(*arms(BASELINE, CANDIDATE, 3), prior=PRIOR)
    ttft = about(three, "ttft_p50")
    assert (ttft.estimate, ttft.se, ttft.nu) == (near(0.049264), near(0.0079442), 7)
    assert (ttft.p, ttft.p_seq, three.p_global) == (near(2.2236e-4), near(0.002487), near(0.00746))
    assert (three.result, three.regressed, three.kappa) == ("FAIL", ("ttft_p50",), 1.0)


def test_e1_the_fit_after_three_blocks() -> None:
    y_b, y_c = (np.log([each["ttft_p50"][:3]]).T for each in (BASELINE, CANDIDATE))
    fitted = fit(y_b, y_c, np.array([*BASELINE_ORDERS[:3], *CANDIDATE_ORDERS[:3]], dtype=float))
    assert (fitted.c, fitted.s_sq[0], fitted.df) == (near(0.673077), near(8.5449e-5), 3)
    gated = gate(arm({"ttft_p50": [120.0]}), PRIOR, GateConfig(), 8)
    v, nu = moderated(fitted.s_sq, fitted.df, 1.0, 1, gated)
    assert (v[0], nu[0]) == (near(9.3764e-5), 7)


def test_e2_the_same_passes_at_two_blocks() -> None:
    judged = judge_interleaved(*arms(BASELINE, SAME, 2), prior=PRIOR)
    ttft = about(judged, "ttft_p50")
    assert (ttft.estimate, ttft.se, ttft.q) == (near(-0.00288), near(0.00922), near(0.00125))
    assert about(judged, "tpot_mean").q == near(5.43e-4)
    assert about(judged, "throughput").q == near(1.38e-4)
    assert judged.result == "PASS"


def test_e3_more_memory_without_variance_fails_at_two_blocks() -> None:
    baseline, candidate = ({**each, "peak_mem": [memory] * 4} for each, memory in ((BASELINE, 61.0), (SAME, 62.0)))
    judged = judge_interleaved(*arms(baseline, candidate, 2), prior=PRIOR)
    memory = about(judged, "peak_mem")
    assert (memory.estimate, memory.se, memory.nu) == (near(0.01626), near(0.0005), 5)
    assert (memory.p, memory.p_seq) == (near(2.58e-7), near(4.33e-6))
    assert judged.p_global == near(1.73e-5)
    assert (judged.result, judged.regressed) == ("FAIL", ("peak_memory",))


def test_e4_an_outlier_launch_is_pruned_and_never_fails() -> None:
    baseline = {
        name: [*values, more] for (name, values), more in zip(BASELINE.items(), (120.3, 21.01, 2402), strict=True)
    }
    candidate = {
        "ttft_p50": [128.6, 117.9, 160.1, 126.9, 121.9],
        "tpot_mean": [21.04, 21.10, 26.98, 21.09, 21.02],
        "throughput": [2396, 2391, 2005, 2399, 2397],
    }
    judged = {n: judge_interleaved(*arms(baseline, candidate, n), prior=PRIOR) for n in (2, 3, 4, 5)}
    assert [each.kappa for each in judged.values()] == [near(12.43), near(106.9), near(4.909), near(3.244)]
    assert [each.blocks_pruned for each in judged.values()] == [(), (), (2,), (2,)]
    assert about(judged[2], "ttft_p50").nu == 3
    ttft = about(judged[5], "ttft_p50")
    assert (ttft.estimate, ttft.se, ttft.nu) == (near(0.0254), near(0.01834), 9)
    assert (ttft.p, ttft.q) == (near(0.1993), near(0.117))
    assert {each.result for each in judged.values()} == {"CONTINUE"}  # the job may still run three blocks
    assert judged[5].blocks_used == (0, 1, 3, 4)


SESSIONS = ((120.0, 121.5, 119.2), (121.0, 122.1, 120.6), (119.0, 120.2, 119.9))


@pytest.mark.parametrize(
    ("candidate", "estimate", "se", "nu", "q", "result"),
    [
        ([120.9, 119.8], -0.000302, 0.011508, 9.854, 8.52e-4, "PASS"),
        ([126.0, 127.2], 0.050326, 0.011514, 9.875, 0.5517, "CONTINUE"),
    ],
)
def test_e5_stored_sessions_acquit_or_escalate(
    candidate: list[float], estimate: float, se: float, nu: float, q: float, result: str
) -> None:
    baseline = [each for s, values in enumerate(SESSIONS) for each in arm({"ttft_p50": values}, session=str(s))]
    judged = judge_stored(baseline, arm({"ttft_p50": candidate}), prior=PRIOR)
    ttft = about(judged, "ttft_p50")
    assert (ttft.estimate, ttft.se, ttft.nu, ttft.q) == (near(estimate), near(se), near(nu), near(q))
    assert judged.result == result


@pytest.mark.parametrize(("s_sq", "v", "nu"), [(6e-4, 3.142857e-4, 7), (7e-4, 7e-4, 3), (2.5e-4, 1.642857e-4, 7)])
def test_e6_moderation(s_sq: float, v: float, nu: float) -> None:
    gated = gate(arm({"ttft_p50": [120.0]}), {"ttft_p50": (1e-4, 4)}, GateConfig(), 8)
    found = moderated(np.array([s_sq]), 3, 1.0, 1, gated)
    assert (found[0][0], found[1][0]) == (near(v), nu)


def test_e7_simes_hommel_and_the_t_distribution() -> None:
    values = (0.0031, 0.0042, 0.2, 0.6)
    assert simes(values) == near(0.0084)
    assert hommel(values) == (near(0.0093), near(0.0126), near(0.4), near(0.6))
    tails = beyond(np.array([3.2, 4.1]), np.array([6.5, 9.0]))
    assert tails.tolist() == [near(0.0083307), near(0.0013384)]


GROUPS = (
    (120.0, 121.1, 119.4, 120.9),
    (118.0, 118.9, 119.4, 117.7),
    (125.0, 122.8, 124.1, 125.9),
    (121.0, 121.9, 120.2, 121.1),
)


def test_e8_a_prior_from_four_groups() -> None:
    launches = [arm({"ttft_p50": values}) for values in GROUPS]
    groups = [NoiseGroup.of(each, 0.0) for each in launches]
    printed = (7.3166e-5, 4.6831e-5, 1.05594e-4, 5.1299e-5)
    assert [group.spread["ttft_p50"] for group in groups] == [(near(v), 4) for v in printed]
    assert Prior.from_history(groups)["ttft_p50"] == (near(1.88010e-4), 4.0)
    assert Prior.from_history(launches) == Prior.from_history(groups)
    w = 2.7 / 4
    assert Prior.from_history(groups)["ttft_p50"][0] == near(w * 8.5941e-5 + (1 - w) * 4e-4)


PRINTED_LEVELS = """\
| 3 | .4270 .6762 | .0325 .0311 |
| 4 | .2398 .3730 .5906 | .0243 .0228 .0272 |
| 6 | .1063 .1608 .2533 .3656 .5046 | .0162 .0145 .0169 .0198 .0230 |
| 8 | .0597 .0894 .1390 .2002 .2711 .3562 .4491 | .0121 .0105 .0123 .0145 .0165 .0189 .0211 |
| 12 | .0265 .0388 .0601 .0865 .1174 .1516 .1910 .2369 .2834 .3423 .4021 |\
 .0081 .0069 .0079 .0091 .0105 .0119 .0132 .0147 .0163 .0175 .0191 |
"""


@pytest.mark.parametrize("row", PRINTED_LEVELS.splitlines())
def test_the_levels_are_those_of_the_table(row: str) -> None:
    n, *columns = row.strip("| ").split(" | ")
    c, a = (tuple(map(float, column.split())) for column in columns)
    assert levels(int(n)) == (c, a)
    assert len(c) == len(a) == int(n) - 1
    assert list(c) == sorted(c)


def test_other_numbers_of_blocks_and_other_levels_are_bonferroni() -> None:
    assert levels(5) == ((0.25,) * 4, (0.0125,) * 4)
    assert levels(2) == ((1.0,), (0.05,))
    assert levels(8, 0.02)[0] == (1 / 7,) * 7
    assert levels(8, 0.01, 0.1)[1] == (0.1 / 7,) * 7
    with pytest.raises(ValueError, match="max_blocks = 1: a comparison needs at least 2"):
        levels(1)
    with pytest.raises(ValueError, match="alpha"):
        levels(8, 0.0)


def test_bounds_are_those_of_the_levels() -> None:
    """lower = est - t(1 - alpha c/m) se, upper = est + t(1 - a) se, with scipy's own quantiles."""
    from scipy.stats import t

    judged = judge_interleaved(*arms(BASELINE, CANDIDATE, 3), prior=PRIOR)
    for each in judged.metrics:
        below, above = t.isf(0.01 * 0.0894 / 3, each.nu), t.isf(0.0105, each.nu)
        assert each.lower == pytest.approx(each.estimate - below * each.se, rel=1e-9)
        assert each.upper == pytest.approx(each.estimate + above * each.se, rel=1e-9)
    assert about(judged, "ttft_p50").baseline == pytest.approx(math.prod([120.0, 121.5, 119.2]) ** (1 / 3))
