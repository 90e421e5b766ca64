"""Limits and evidence in, verdict out."""

from __future__ import annotations

import math
from itertools import permutations

import numpy as np
import pytest
from made import failure, record, trial
from scipy.stats import binomtest

from pytest_llmperf.catalog import Family, Metric, metric
from pytest_llmperf.gate import PRECEDENCE, Check, Verdict, VerdictName, judge, strongest
from pytest_llmperf.metrics.trial import measure
from pytest_llmperf.plan import Sla
from pytest_llmperf.reports.phrases import check_line
from pytest_llmperf.stats.value import MetricValue


def sla(name: str, limit: float, confidence: float | None = None) -> Sla:
    return Sla(metric=name, limit=limit, written=f"{limit:g} as written", confidence=confidence)


def percentile(name: str, values: list[float], excluded: int = 0) -> dict[str, MetricValue]:
    return {name: MetricValue(metric(name), 0.0, len(values), None, tuple(sorted(values)), excluded)}


def scalar(name: str, value: float | None, note: str | None = None) -> dict[str, MetricValue]:
    return {name: MetricValue(metric(name), value, 10, note)}


def only(slas: list[Sla], measured: dict[str, MetricValue]) -> Check:
    verdict = judge(slas, measured, invalid=(), ok=100, failed=0)
    (check,) = verdict.checks
    assert verdict.name == check.verdict
    return check


def beyond(n: int, x: int) -> list[float]:
    """``n`` latencies of which ``x`` exceed 0.5 s."""
    return [0.1] * (n - x) + [0.9] * x


def test_a_ceiling_and_a_floor_include_the_limit_itself() -> None:
    assert only([sla("ttft_mean", 0.5)], scalar("ttft_mean", 0.5)).verdict == "PASS"
    assert only([sla("ttft_mean", 0.5)], scalar("ttft_mean", 0.501)).verdict == "FAIL"
    assert only([sla("output_throughput", 100)], scalar("output_throughput", 100)).verdict == "PASS"
    assert only([sla("output_throughput", 100)], scalar("output_throughput", 99)).verdict == "FAIL"


def test_the_observed_quantile_decides_by_default_and_its_confidence_is_said() -> None:
    check = only([sla("ttft_p95", 0.5)], percentile("ttft_p95", beyond(200, 7)))
    assert (check.verdict, check.n, check.beyond) == ("PASS", 200, 7)
    assert check.confidence == pytest.approx(1 - binomtest(7, 200, 0.05, "less").pvalue)
    check = only([sla("ttft_p95", 0.5)], percentile("ttft_p95", beyond(200, 13)))
    assert check.verdict == "FAIL"
    assert check.confidence == pytest.approx(1 - binomtest(13, 200, 0.05, "greater").pvalue)
    assert "13 of 200 requests beyond, confidence" in check.reason


@pytest.mark.parametrize(
    ("n", "x", "verdict"),
    [(59, 0, "PASS"), (58, 0, "INCONCLUSIVE"), (200, 4, "PASS"), (200, 7, "INCONCLUSIVE"), (200, 20, "FAIL")],
)
def test_a_required_confidence_wants_the_limit_shown(n: int, x: int, verdict: VerdictName) -> None:
    check = only([sla("ttft_p95", 0.5, 0.95)], percentile("ttft_p95", beyond(n, x)))
    assert check.verdict == verdict
    assert (check.needed_n is not None) == (verdict == "INCONCLUSIVE")


def test_an_undecided_limit_says_how_many_requests_would_decide() -> None:
    check = only([sla("ttft_p95", 0.5, 0.95)], percentile("ttft_p95", beyond(200, 7)))
    assert check.needed_n is not None
    assert check.reason == (
        f"not decidable with n=200: 7 beyond; about {check.needed_n} requests would decide at confidence 95 %"
    )
    assert 400 < check.needed_n < 900


def test_an_observed_share_at_the_limit_has_no_deciding_number() -> None:
    check = only([sla("ttft_p95", 0.5, 0.95)], percentile("ttft_p95", beyond(200, 10)))
    assert (check.verdict, check.needed_n) == ("INCONCLUSIVE", None)
    assert "no number of requests would decide" in check.reason


def test_failed_requests_are_beyond_every_ceiling() -> None:  # pitfall 25
    values = [0.1] * 13 + [math.inf] * 7
    check = only([sla("ttft_p95", 0.5)], percentile("ttft_p95", values))
    assert (check.verdict, check.value, check.beyond) == ("FAIL", None, 7)
    assert "lies among the failed requests" in check.reason


def test_real_failures_reach_the_gate_through_measure() -> None:
    t = trial([record(i) for i in range(13)] + [failure(i) for i in range(13, 20)])
    measured = measure([t], None, ["ttft_p95", "tpot_p95"])
    verdict = judge([sla("ttft_p95", 9.0), sla("tpot_p95", 9.0)], measured, invalid=(), ok=13, failed=7)
    assert [check.verdict for check in verdict.checks] == ["FAIL", "FAIL", "FAIL"]
    assert [check.kind for check in verdict.checks] == ["sla", "sla", "errors"]


def test_not_measured_is_invalid_and_never_a_pass() -> None:  # pitfall 25
    for measured in ({}, scalar("tpot_p95", None, "no token count from the server")):
        check = only([sla("tpot_p95", 0.03)], measured)
        assert check.verdict == "INVALID"
        assert check.reason.startswith("not measured: ")
    assert "no token count from the server" in check.reason


def test_a_tpot_that_no_request_has_is_invalid() -> None:
    t = trial([record(i, chunks_ms=(5,), output_tokens=1) for i in range(10)])
    assert only([sla("tpot_p95", 0.03)], measure([t], None, ["tpot_p95"])).verdict == "INVALID"


def test_requests_left_out_are_said() -> None:
    check = only([sla("tpot_p95", 0.5)], percentile("tpot_p95", beyond(50, 0), excluded=3))
    assert "3 requests without a value left out" in check.reason


def test_gaps_are_not_called_requests() -> None:
    assert "chunk gaps" in only([sla("icl_p99", 0.5)], percentile("icl_p99", beyond(5000, 1))).reason


@pytest.mark.parametrize(("failed", "verdict"), [(0, "PASS"), (1, "PASS"), (2, "FAIL"), (100, "FAIL")])
def test_more_than_one_percent_errors_fail_the_test(failed: int, verdict: VerdictName) -> None:
    assert judge([], {}, invalid=(), ok=100 - failed, failed=failed).name == verdict


def test_an_sla_on_the_error_rate_replaces_the_default_limit() -> None:
    verdict = judge([sla("error_rate", 0.2)], scalar("error_rate", 0.1), invalid=(), ok=90, failed=10)
    assert verdict.name == "PASS"
    assert [check.kind for check in verdict.checks] == ["sla"]


def test_nothing_to_check_passes_and_nothing_measured_is_invalid() -> None:
    assert judge([], {}, invalid=(), ok=5, failed=0) == Verdict("PASS", ())
    assert judge([], {}, invalid=(), ok=0, failed=0).name == "INVALID"


def test_reasons_against_the_trial_outrank_a_failed_limit() -> None:
    verdict = judge([sla("ttft_mean", 0.5)], scalar("ttft_mean", 9.0), invalid=["client lag"], ok=9, failed=0)
    assert verdict.name == "INVALID"
    assert [(check.kind, check.verdict) for check in verdict.checks] == [("validity", "INVALID"), ("sla", "FAIL")]


def test_the_strongest_verdict_wins_in_any_order() -> None:
    assert PRECEDENCE == ("INVALID", "CONFOUNDED", "FAIL", "INCONCLUSIVE", "NO_BASELINE", "PASS")
    for pair in permutations(PRECEDENCE, 2):
        assert strongest(pair) == min(pair, key=PRECEDENCE.index)
    assert strongest([]) == "PASS"


def test_a_floor_on_a_percentile_counts_what_lies_below(monkeypatch: pytest.MonkeyPatch) -> None:
    # No family is such today; the rule must not be silently wrong for the first that is.
    speed = Metric("speed_p05", Family("speed", "tok/s", "higher", "speed/1", "made up"), 0.05)
    for module in ("checks", "plan"):
        monkeypatch.setattr(f"pytest_llmperf.{module}.metric", lambda name: speed)
    measured = {"speed_p05": MetricValue(speed, 0.0, 100, None, tuple([5.0] * 2 + [50.0] * 98))}
    check = only([sla("speed_p05", 10.0)], measured)
    assert (check.verdict, check.beyond) == ("PASS", 2)
    assert check.confidence == pytest.approx(1 - binomtest(2, 100, 0.05, "less").pvalue)


# One server launch is the unit: each is asked on its own.


def launches(*counts: tuple[int, int]) -> dict[str, MetricValue]:
    """TTFT p95 of launches with (requests, requests beyond 0.5 s) each."""
    each = [sorted(beyond(n, x)) for n, x in counts]
    values = sorted(value for one in each for value in one)
    return {"ttft_p95": MetricValue(metric("ttft_p95"), 0.0, len(values), None, values, by_launch=tuple(each))}


STRICT = sla("ttft_p95", 0.5, 0.95)


@pytest.mark.parametrize(
    ("counts", "verdict", "shown"),
    [
        ([(200, 2)], "PASS", 1),
        ([(200, 2), (200, 2), (200, 7)], "PASS", 2),  # two of three show it, the third shows nothing
        ([(200, 2), (200, 7)], "INCONCLUSIVE", 1),  # half is not most
        ([(200, 2), (200, 2), (200, 30)], "INCONCLUSIVE", 2),  # one launch shows the opposite
        ([(200, 30), (200, 30), (200, 7)], "FAIL", 2),
        ([(200, 30), (200, 30), (200, 2)], "INCONCLUSIVE", 1),
        ([(20, 0)] * 5, "INCONCLUSIVE", 0),  # 100 requests without one beyond, but no launch shows anything
        ([(200, 2), (200, 2), (0, 0)], "PASS", 2),  # a launch that measured nothing shows nothing
    ],
)
def test_most_launches_must_show_it_and_none_the_opposite(
    counts: list[tuple[int, int]], verdict: VerdictName, shown: int
) -> None:
    check = only([STRICT], launches(*counts))
    assert (check.verdict, check.launches_shown, check.launches) == (verdict, shown, len(counts))


def test_the_sentence_says_how_many_launches_show_it() -> None:
    one = only([STRICT], percentile("ttft_p95", beyond(200, 2)))
    assert "required) by 1 of 1 launch" in one.reason
    assert (one.launches_shown, one.launches) == (1, 1)
    many = only([STRICT], launches((200, 2), (200, 1), (200, 7)))
    assert "shown met with confidence" in many.reason
    assert "(95 % required) by 2 of 3 launches" in many.reason
    # The confidence is that of the weaker of the launches that show it.
    assert many.confidence == pytest.approx(1 - binomtest(2, 200, 0.05, "less").pvalue)
    open_ = only([STRICT], launches((200, 2), (200, 30)))
    assert "1 of 2 launches show it met, 1 missed" in open_.reason
    assert "requests per launch would decide" in open_.reason


def test_without_a_required_confidence_the_pooled_quantile_decides() -> None:
    check = only([sla("ttft_p95", 0.5)], launches((200, 2), (200, 30)))
    assert (check.verdict, check.launches, check.n, check.beyond) == ("FAIL", None, 400, 32)


@pytest.mark.parametrize("number", [1, 2, 3, 5])
def test_several_launches_err_no_more_often_than_one(number: int) -> None:
    """Truth just beyond the limit (5.01 % of requests): a PASS is an error, at most 5 % of the time."""
    rng = np.random.default_rng(number)
    passed = 0
    for draws in rng.binomial(300, 0.0501, size=(400, number)):
        check = only([STRICT], launches(*((300, int(x)) for x in draws)))
        passed += check.verdict == "PASS"
    assert passed <= 400 * 0.05 + 3 * (400 * 0.05 * 0.95) ** 0.5


def test_an_invalid_metric_makes_its_own_check_invalid_and_no_other() -> None:
    measured = {
        "icl_p99": MetricValue(metric("icl_p99"), None, 500, invalid="2 % of the chunks shared a read: remedy"),
        **percentile("ttft_p95", beyond(200, 0)),
    }
    verdict = judge([sla("icl_p99", 0.5), sla("ttft_p95", 0.5)], measured, invalid=(), ok=100, failed=0)
    assert [check.verdict for check in verdict.checks] == ["INVALID", "PASS"]
    assert verdict.checks[0].reason == "invalid: 2 % of the chunks shared a read: remedy"


def test_a_limit_on_what_most_requests_do_not_tell_is_invalid() -> None:
    """Two of a hundred requests with a token count say nothing about the others."""
    found = MetricValue(metric("tpot_p95"), 0.01, 2, "98 of 100 have no token count", (0.01, 0.01), 98, 0.98)
    verdict = judge(
        [Sla(metric="tpot_p95", limit=0.02, written="20 ms")], {"tpot_p95": found}, invalid=(), ok=100, failed=0
    )
    assert verdict.name == "INVALID"
    assert "known for 2 % of the requests only" in verdict.checks[0].reason


@pytest.mark.parametrize(
    ("value", "untold", "name"),
    [(5.0, 0.9, "PASS"), (0.6, 0.9, "FAIL"), (2.0, 0.9, "INVALID"), (3.95, 0.02, "INVALID"), (3.0, 0.02, "FAIL")],
)
def test_a_lower_bound_acquits_and_convicts_only_where_the_rest_would_not_save_it(
    value: float, untold: float, name: str
) -> None:
    """Limit 4 tok/s: what was counted, and what the untold requests would add at the same rate."""
    found = MetricValue(metric("output_throughput"), value, 10, "a lower bound", untold=untold)
    limit = Sla(metric="output_throughput", limit=4.0 if value != 0.6 else 10.0, written="4 tok/s")
    assert judge([limit], {"output_throughput": found}, invalid=(), ok=10, failed=0).name == name


def bucketed(lower: float, upper: float | None, value: float = 0.4) -> dict[str, MetricValue]:
    return {"queue_wait_p95": MetricValue(metric("queue_wait_p95"), value, 400, "note", lower=lower, upper=upper)}


@pytest.mark.parametrize(
    ("lower", "upper", "limit", "verdict"),
    [
        (0, 0.3, 0.5, "PASS"),
        (0, 0.3, 0.3, "PASS"),  # a bucket counts what is at most its bound
        (0, 0.3, 300 * 1e-3 * (1 - 1e-15), "PASS"),
        (0, 0.3, 0.299, "INCONCLUSIVE"),
        (0, 0.3, 0, "INCONCLUSIVE"),  # all may have waited for 0 s
        (0.3, 0.5, 0.3, "FAIL"),  # above its lower bound
        (0.3, 0.5, 0.1, "FAIL"),
        (0.3, 0.5, 0.4, "INCONCLUSIVE"),
        (0.3, 0.5, 0.5, "PASS"),
        (2, None, 2, "FAIL"),
        (2, None, 2.5, "INCONCLUSIVE"),
    ],
)
def test_what_is_known_by_its_bucket_alone_is_judged_by_the_bounds(
    lower: float, upper: float | None, limit: float, verdict: VerdictName
) -> None:
    check = only([sla("queue_wait_p95", limit)], bucketed(lower, upper))
    assert (check.verdict, check.lower, check.upper) == (verdict, lower, upper)
    assert ("queue_wait_mean, would decide" in check.reason) is (verdict == "INCONCLUSIVE")


def test_a_limit_inside_a_bucket_says_what_would_decide() -> None:
    check = only([sla("queue_wait_p95", 0.4)], bucketed(0.3, 0.5))
    assert check.reason == (
        "queue_wait_p95 is 300 ms..500 ms, and 0.4 as written lies inside that bucket of the engine's: a limit at "
        "300 ms or 500 ms, or one on queue_wait_mean, would decide"
    )
    assert check_line(only([sla("queue_wait_p95", 0.5)], bucketed(0, 0.3))) == (
        "queue_wait_p95 ≤ 300 ms, within 0.5 as written  (n=400, by the engine's buckets)"
    )
    assert check_line(only([sla("queue_wait_p95", 1)], bucketed(2, None))) == (
        "queue_wait_p95 > 2.00 s, beyond 1 as written  (n=400, by the engine's buckets)"
    )
