"""What a campaign decides without running anything: modes, families, lengths, costs, replays, words."""

from __future__ import annotations

import datetime
import math
from collections.abc import Mapping
from typing import Any

import pytest
from made import failure, record, trial
from reported import plan, report_of

from pytest_llmperf.baseline.launches import from_stored, stored_launch
from pytest_llmperf.baseline.provenance import utc_now
from pytest_llmperf.baseline.state import Durations, StoredNoise
from pytest_llmperf.campaign import price
from pytest_llmperf.campaign.case import Case
from pytest_llmperf.campaign.conclusion import Comparison, comparison_rows, judgement_report, unmeasured
from pytest_llmperf.campaign.forecast import foretell, most_blocks
from pytest_llmperf.campaign.grounds import Grounds
from pytest_llmperf.campaign.lengths import length_fault
from pytest_llmperf.campaign.remedy import remedy
from pytest_llmperf.campaign.replication import replays_for, within_launches
from pytest_llmperf.campaign.terms import Terms, gate_config, mode_of
from pytest_llmperf.comparisons import DifferenceReport, Forecast
from pytest_llmperf.identity import Fact
from pytest_llmperf.measured import launch_values
from pytest_llmperf.plan import LoadProfile, Plan, Regression, ServerSpec, ToleratedChange
from pytest_llmperf.records import TokenSource
from pytest_llmperf.samples import Buckets, EngineSample, GpuSample, StartUp, Telemetry
from pytest_llmperf.settings.model import Accept, Budget
from pytest_llmperf.stats.interleaved import judge_interleaved
from pytest_llmperf.stats.launches import GateConfig, Judgement, LaunchValues, Tolerance
from pytest_llmperf.stats.power import detectable_interleaved
from pytest_llmperf.stats.prior import Prior
from pytest_llmperf.variables import Arms

TODAY = datetime.date(2026, 12, 2)
SPEC = ServerSpec(name="s", engine="embedded")
ARMS = Arms(SPEC, SPEC.model_copy(update={"max_num_seqs": 3}), ("max_num_seqs",), "max_num_seqs: 2 → 3")


def test(**changes: Any) -> Plan:
    """A plan of 100 requests."""
    return plan([]).model_copy(update={"load": LoadProfile(concurrency=2, requests=100), "server": SPEC, **changes})


test.__test__ = False  # type: ignore[attr-defined]


def values(order: int, block: int, n_tokens: int | None = 800, **metrics: float) -> LaunchValues:
    return LaunchValues(metrics, order, block, "now", 100, 0, n_tokens)


@pytest.mark.parametrize(
    ("terms", "arms", "stored", "mode"),
    [
        (Terms(), None, False, "sla"),
        (Terms(), None, True, "stored"),
        (Terms(explicit=True), None, False, "stored"),
        (Terms(against="none"), None, True, "sla"),
        (Terms(against="version=1", explicit=True), ARMS, True, "screened"),
        (Terms(against="version=1", explicit=True), None, True, "stored"),
        (Terms(ab="max_num_seqs=3"), ARMS, True, "interleaved"),
        (Terms(noise_blocks=4), ARMS, True, "interleaved"),
        (Terms(refresh=True, reason="x"), None, True, "refresh"),
    ],
)
def test_the_mode_follows_from_what_was_asked_and_what_is_stored(
    terms: Terms, arms: Arms | None, stored: bool, mode: str
) -> None:
    assert mode_of([test()], terms, arms, stored) == mode


def test_a_marker_asks_for_a_comparison_without_anything_stored() -> None:
    assert mode_of([test(regression=Regression())], Terms(), None, False) == "stored"


def test_a_running_server_is_targeted_and_two_are_a_pair() -> None:
    url = SPEC.model_copy(update={"url": "http://h:1"})
    assert mode_of([test(server=url)], Terms(), None, True) == "targeted"
    assert mode_of([test(server=url)], Terms(ab="url=a,b"), ARMS, True) == "pair"


def test_the_family_is_the_default_one_and_what_the_marker_adds_or_its_own() -> None:
    def family(asked: Regression | None, **how: Any) -> tuple[str, ...] | None:
        told = {"cpu": False, "ok_requests": 100, **how}
        return gate_config(test(regression=asked), accepted=(), today=TODAY, **told)[0].metrics

    usual = ("ttft_p50", "tpot_mean", "output_throughput", "peak_memory")
    assert family(None) == usual
    assert set(family(None, cpu=True, ok_requests=200) or ()) == {*usual, "ttft_p95", "cpu_seconds_per_mtok"}
    change = ToleratedChange(floor=0.03, limit=0.05, written="3 %..5 %")
    assert family(Regression(tolerances={"e2e_p50": change})) == (*usual, "e2e_p50")
    assert family(Regression(metrics=("tpot_mean",))) == ("tpot_mean",)


def test_an_accepted_trade_widens_one_tolerance_until_its_day() -> None:
    trade = Accept(test="*", metric="ttft_p50", up_to="8 %", reason="why", until="2026-12-02", approved_by="me")
    told: dict[str, Any] = {"cpu": False, "ok_requests": 100, "accepted": (trade,)}
    config, notes = gate_config(test(), today=TODAY, **told)
    assert config.tolerances["ttft_p50"].floor == pytest.approx(math.log(1.08))
    assert config.tolerances["ttft_p50"].limit == pytest.approx(math.log(1.16))
    assert "approved by me: why" in notes[0]
    config, notes = gate_config(test(), today=TODAY + datetime.timedelta(days=1), **told)
    assert not config.tolerances
    assert "expired" in notes[0]


def trade(metric: str, up_to: str, **changes: Any) -> Accept:
    told = {"test": "*", "reason": "why", "until": "2999-01-01", "approved_by": "me", **changes}
    return Accept(metric=metric, up_to=up_to, **told)


@pytest.mark.parametrize(
    ("asked", "up_to", "floor", "limit"),
    [
        ((0.05, 0.10), "1 %", 0.05, 0.10),
        ((0.05, 0.10), "7 %", 0.07, 0.14),
        ((0.05, 0.30), "7 %", 0.07, 0.30),
        # The catalog's own of ttft_p50: not beyond 5 %, of which half (on the log scale) is no regression.
        (None, "1 %", math.sqrt(1.05) - 1, 0.05),
    ],
)
def test_an_accepted_trade_never_narrows_a_tolerance(
    asked: tuple[float, float] | None, up_to: str, floor: float, limit: float
) -> None:
    marker = None
    if asked is not None:
        marker = Regression(tolerances={"ttft_p50": ToleratedChange(floor=asked[0], limit=asked[1], written="")})
    told: dict[str, Any] = {"cpu": False, "ok_requests": 100, "today": TODAY, "accepted": (trade("ttft_p50", up_to),)}
    config, _ = gate_config(test(regression=marker), **told)
    assert config.tolerances["ttft_p50"].floor == pytest.approx(math.log1p(floor))
    assert config.tolerances["ttft_p50"].limit == pytest.approx(math.log1p(limit))


def test_a_trade_of_a_metric_that_is_not_gated_is_said_to_have_no_use() -> None:
    told: dict[str, Any] = {"cpu": False, "ok_requests": 100, "today": TODAY}
    config, notes = gate_config(test(), accepted=(trade("e2e_p99", "2000 %"),), **told)
    assert "e2e_p99" not in (config.metrics or ())
    assert not config.tolerances
    [note] = notes
    assert note.startswith("an accepted trade has no use, since this test does not gate e2e_p99: ")
    assert note.endswith("e2e_p99 up to 2,000 % worse, approved by me: why")
    assert gate_config(test(), accepted=(trade("e2e_p99", "9 %", test="another"),), **told)[1] == ()


@pytest.mark.parametrize(
    ("ab", "shown"),
    [
        ("env.HF_TOKEN=sk-secret", "--llmperf-ab 'env.HF_TOKEN=***'"),
        ("env.OPENAI_KEY = sk-secret", "--llmperf-ab 'env.OPENAI_KEY=***'"),
        ("args.--api-key=sk-secret", "--llmperf-ab 'args.--api-key=***'"),
        ("args.--hf-token = sk-secret", "--llmperf-ab 'args.--hf-token=***'"),
        ("max_num_seqs=3", "--llmperf-ab max_num_seqs=3"),
        ("args.--max-num-batched-tokens=8192", "--llmperf-ab args.--max-num-batched-tokens=8192"),
        ("args.--enforce-eager", "--llmperf-ab args.--enforce-eager"),
    ],
)
def test_the_option_of_the_arms_is_shown_without_secrets(ab: str, shown: str) -> None:
    assert Terms(ab=ab).argument == shown


@pytest.mark.parametrize(
    ("name", "holds"), [("suite/test_x.py::test_a[16]", True), ("test_x.py::test_a[16]", True), ("test_x", False)]
)
def test_a_trade_names_its_test_as_pytest_does(name: str, holds: bool) -> None:
    trade = Accept(test=name, metric="ttft_p50", up_to="8 %", reason="r", until="2999-01-01", approved_by="me")
    own = test(nodeid="suite/test_x.py::test_a[16]")
    config, _ = gate_config(own, cpu=False, ok_requests=100, accepted=(trade,), today=TODAY)
    assert bool(config.tolerances) is holds


def test_arms_of_different_lengths_are_not_compared() -> None:
    same, longer = [values(0, 0), values(1, 1)], [values(2, 0, 804), values(3, 1, 806)]
    assert length_fault(test(), same, [values(2, 0, 803)]) is None
    assert "8 and 8.05 output tokens" in str(length_fault(test(), same, longer))
    assert length_fault(test(), same, [values(2, 0, None)]) is None
    by_time = test(load=LoadProfile(concurrency=2, duration="9 s"))
    assert length_fault(by_time, same, longer) is None


TIMES = Durations(launch_s=(50.0, 60.0, 70.0), replay_s={"t": (9.0, 10.0, 11.0)})


@pytest.mark.parametrize(("budget", "blocks"), [(None, 8), (3600.0, 12), (9 * 160.0, 8), (5 * 160.0, 4), (10.0, 3)])
def test_a_budget_has_room_for_so_many_blocks_of_two_launches(budget: float | None, blocks: int) -> None:
    """A launch is 60 s and two replays of 10 s, a block 160 s, and one unjudged launch of each arm goes first."""
    assert most_blocks([test(nodeid="t")], [TIMES, TIMES], budget, 2) == blocks


def test_what_was_never_timed_is_no_forecast() -> None:
    assert most_blocks([test(nodeid="other")], [TIMES, TIMES], 10.0, 2) == 8
    found = foretell("interleaved", [test(nodeid="other")], [TIMES, TIMES], ARMS, None, [GateConfig(("tpot_mean",))])
    assert (found.launches, found.seconds) == ((4, 16), None)
    found = foretell("interleaved", [test(nodeid="t")], [TIMES, TIMES], ARMS, None, [GateConfig(("tpot_mean",))])
    assert found.seconds == (3 * 160, 9 * 160)
    assert "max_num_seqs: 2 → 3" in found.mode


def test_a_forecast_shows_what_is_gated_and_by_the_test_that_shows_least() -> None:
    narrow = GateConfig(("ttft_p50",), {"ttft_p50": Tolerance.between(0.1, 0.2)})
    wide = GateConfig(("ttft_p50", "tpot_mean"))
    both = foretell("interleaved", [test(nodeid="t")] * 2, [TIMES] * 2, ARMS, None, [narrow, wide]).detects
    one = foretell("interleaved", [test(nodeid="t")], [TIMES] * 2, ARMS, None, [narrow]).detects
    assert one.keys() == {"ttft_p50"}
    assert one["ttft_p50"] > 0.1  # no change that is allowed is shown
    assert both == {**detectable_interleaved(wide.metrics or (), 8, config=wide), **one}


def test_gpu_hours_are_wall_clock_over_the_gpus() -> None:
    assert Terms(budget=Budget.parse("6 GPUh")).budget_s(4) == 1.5 * 3600
    assert Terms(budget=Budget.parse("30 min")).budget_s(4) == 1800
    assert Terms().budget_s(4) is None


def test_the_price_is_that_of_the_gpus_for_the_longest_it_may_take(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = {"gpu": Fact(value="NVIDIA H200", source="live")}
    monkeypatch.setattr(price, "machine_facts", lambda *_: gpu)
    forecast = Forecast(mode="x", launches=(2, 4), seconds=(600.0, 1800.0), gpus=2)
    assert price.priced(forecast, SPEC, {"NVIDIA H200": 3.5}).price_usd == pytest.approx(3.5)
    assert price.priced(forecast, SPEC, {"NVIDIA H100": 3.5}).price_usd is None
    assert price.priced(forecast.model_copy(update={"seconds": None}), SPEC, {"NVIDIA H200": 3.5}).price_usd is None


def test_variance_within_launches_is_that_of_their_replays() -> None:
    def one(launch: int, replay: int, ttft_ms: int) -> Any:
        made = [record(i, chunks_ms=(ttft_ms, ttft_ms + 10, ttft_ms + 20)) for i in range(3)]
        return report_of(trial(made, launch=launch, replay=replay)).trials[0]

    found = within_launches([one(0, 0, 100), one(0, 1, 200), one(1, 0, 100), one(1, 1, 400), one(2, 0, 7)])
    expected = (math.log(2) ** 2 / 2 + math.log(4) ** 2 / 2) / 2
    assert found["ttft_p50"] == pytest.approx(expected)


def test_replays_follow_from_cost_and_noise() -> None:
    """r = sqrt(60 / 10 x .0004 / s_launch^2), with s_launch^2 = .0003 - .0004 / 2 of the means of two replays."""
    group = StoredNoise(created=utc_now(), spread={"ttft_p50": (0.0003, 4)}, within={"ttft_p50": 0.0004}, replays=2)
    assert replays_for([group], TIMES, "t", 1) == round(math.sqrt(6 * 4))
    assert replays_for([group], TIMES, "t", 6) == round(math.sqrt(4))
    assert replays_for([group], TIMES, "other", 1) is None
    assert replays_for([group.model_copy(update={"within": {}})], TIMES, "t", 1) is None


def judged(candidate_ms: float) -> Comparison:
    base = [values(order, block, ttft_p50=0.1, output_throughput=100.0) for block, order in enumerate((0, 3))]
    cand = [
        values(order, block, ttft_p50=candidate_ms / 1000, output_throughput=90.0) for block, order in enumerate((1, 2))
    ]
    config = GateConfig(("ttft_p50", "output_throughput"))
    return Comparison("interleaved", "the other", judge_interleaved(base, cand, config=config), max_blocks=8)


def test_rows_show_the_change_of_the_value_itself_in_its_own_direction() -> None:
    comparison = judged(150)
    first = [values(0, 0, ttft_p50=0.1)]
    rows = {row.metric: row for row in comparison_rows(comparison, first, first)}
    assert rows["ttft_p50"].change == pytest.approx(0.5)
    assert rows["output_throughput"].change == pytest.approx(-0.1)
    for row in rows.values():
        assert row.change_low is not None
        assert row.change_high is not None
        assert row.change_low < (row.change or 0) < row.change_high
    assert rows["ttft_p50"].allowed == pytest.approx(0.025)
    assert rows["ttft_p50"].ruled_out == pytest.approx(0.05)
    assert judgement_report(comparison).verdict == "FAIL"


def difference(role: Any) -> DifferenceReport:
    return DifferenceReport(name="driver", kind="environment", baseline="1", candidate="2", role=role)


def test_what_was_not_compared_is_never_a_pass() -> None:
    passed = judged(100)
    assert Comparison("stored", "").verdict == "INCONCLUSIVE"
    assert Comparison("stored", "", missing="none").verdict == "NO_BASELINE"
    for role, verdict in (("escalating", "INCONCLUSIVE"), ("confounding", "CONFOUNDED")):
        found = Comparison("stored", "", passed.judgement, differences=(difference(role),))
        assert (found.verdict, "driver (1 → 2)" in found.reason) == (verdict, True)
    assert Comparison(
        "stored", "", passed.judgement, invalid="x", differences=(difference("confounding"),)
    ).verdict == ("INVALID")


def test_a_pass_by_the_launches_of_an_earlier_job_alone_is_no_pass() -> None:
    """A sequence that goes on may be decided before its first load, which then never runs."""
    passed = Comparison("interleaved", "the other", Judgement("PASS", "shown no worse"))
    assert passed.verdict == "PASS"
    verdict = unmeasured(passed)
    assert verdict.name == "INVALID"
    assert "its limits are not judged" in verdict.checks[0].reason
    assert unmeasured(Comparison("stored", "", missing="none")).name == "NO_BASELINE"


def test_a_remedy_is_a_command_that_can_decide() -> None:
    mine = test(nodeid="test_x.py::test_a[16]")
    said = remedy(mine, Comparison("stored", "", missing="none"), "")
    assert said.startswith("pytest 'test_x.py::test_a[16]' --llmperf --llmperf-refresh --llmperf-reason")
    said = remedy(mine, Comparison("interleaved", ""), "--llmperf-ab max_num_seqs=3")
    assert said.endswith("pytest 'test_x.py::test_a[16]' --llmperf --llmperf-ab max_num_seqs=3")
    upgrade = Comparison("stored", "", variable="version: 1 → 2", differences=(declared("version", "1", "2"),))
    assert remedy(mine, upgrade, LATEST).endswith("--llmperf-against version=1")


MINE = test(nodeid="t.py::t")
EXECUTABLE = MINE.model_copy(update={"server": ServerSpec(name="s", engine="embedded", executable="/bin/server")})
RUNNING = MINE.model_copy(update={"server": ServerSpec(name="s", engine="openai", url="http://h:1")})
LATEST = "--llmperf-against latest"
NONE = Comparison("stored", "", missing="none")


def declared(name: str, baseline: str, candidate: str, kind: Any = "input") -> DifferenceReport:
    return DifferenceReport(name=name, kind=kind, baseline=baseline, candidate=candidate, role="declared")


@pytest.mark.parametrize(
    ("plan", "option", "said"),
    [
        (MINE, LATEST, "pytest t.py::t --llmperf --llmperf-refresh --llmperf-reason 'first baseline'"),
        (
            MINE,
            "--llmperf-against version=0.2",
            (
                "measure version 0.2 and refresh it: pytest t.py::t --llmperf --llmperf-set version=0.2 "
                "--llmperf-refresh --llmperf-reason 'first baseline'"
            ),
        ),
        (
            EXECUTABLE,
            "--llmperf-against version=b8",
            (
                "measure version b8 and refresh it; executable = '/bin/server' is one build; write {version} into its "
                "path. With that version configured: pytest t.py::t --llmperf --llmperf-refresh --llmperf-reason "
                "'first baseline'"
            ),
        ),
        (
            RUNNING,
            "--llmperf-against version=2",
            (
                "measure version 2 and refresh it: pytest t.py::t --llmperf --llmperf-url URL_OF_THAT_VERSION "
                "--llmperf-refresh --llmperf-reason 'first baseline'"
            ),
        ),
    ],
)
def test_a_missing_baseline_is_refreshed_from_the_version_that_was_asked_for(
    plan: Plan, option: str, said: str
) -> None:
    assert remedy(plan, NONE, option) == said


@pytest.mark.parametrize(
    ("differences", "said"),
    [
        (
            [declared("max_num_seqs", "64", "32")],
            "pytest t.py::t --llmperf --llmperf-set max_num_seqs=64 --llmperf-ab max_num_seqs=32",
        ),
        (
            [declared("env.A", "x y", "z")],
            "pytest t.py::t --llmperf --llmperf-set 'env.A=x y' --llmperf-ab env.A=z",
        ),
        (
            [declared("threads", "1", "2"), declared("max_num_seqs", "4", "8")],
            ("one variable at a time: pytest t.py::t --llmperf --llmperf-set threads=1 --llmperf-ab threads=2; "
            "pytest t.py::t --llmperf --llmperf-set max_num_seqs=4 --llmperf-ab max_num_seqs=8"),
        ),
        ([declared("threads", "1", "2"), declared("version", "1", "2")],
         "pytest t.py::t --llmperf --llmperf-against version=1"),
    ],
)  # fmt: skip
def test_an_input_that_was_allowed_to_differ_is_compared_side_by_side(
    differences: list[DifferenceReport], said: str
) -> None:
    assert remedy(MINE, Comparison("stored", "", differences=tuple(differences)), LATEST) == said


@pytest.mark.parametrize(
    "found", [declared("args.--a", "1", "2"), declared("env.A", "not set", "1"), declared("model_digest", "a", "b")]
)
def test_an_input_that_no_option_sets_takes_two_servers(found: DifferenceReport) -> None:
    said = remedy(MINE, Comparison("stored", "", differences=(found,)), LATEST, "--llmperf-server mine")
    assert said.endswith(": pytest t.py::t --llmperf --llmperf-server BASELINE --llmperf-ab server=CANDIDATE")
    assert f"the baseline's {found.name} {found.baseline}" in said


def test_another_host_that_was_allowed_is_no_variable() -> None:
    found = Comparison("stored", "", differences=(declared("host", "a", "b", "environment"),))
    assert "rerun on the baseline's host" in remedy(MINE, found, LATEST)


def test_two_running_servers_are_not_told_to_compare_two_running_servers() -> None:
    targeted = Comparison("targeted", "")
    assert remedy(RUNNING, targeted, LATEST).endswith("--llmperf-ab url=BASELINE_URL,http://h:1")
    said = remedy(RUNNING, targeted, Terms(ab="url=http://h:2,http://h:1").argument)
    assert "url=" not in said
    assert said.startswith("a longer load")
    assert "more servers" in said


@pytest.mark.parametrize(
    ("plan", "comparison", "option"),
    [
        (MINE, NONE, LATEST),
        (MINE, NONE, "--llmperf-against version=0.2"),
        (EXECUTABLE, NONE, "--llmperf-against version=0.2"),
        (RUNNING, Comparison("targeted", ""), LATEST),
        (MINE, Comparison("interleaved", ""), "--llmperf-ab threads=2"),
        (MINE, Comparison("stored", "", differences=(declared("version", "1", "2"),)), LATEST),
        (MINE, Comparison("stored", "", differences=(declared("threads", "1", "2"),)), LATEST),
    ],
)
def test_a_remedy_names_the_server_of_the_run(plan: Plan, comparison: Comparison, option: str) -> None:
    given = "--llmperf-server big --llmperf-set max_num_seqs=7"
    assert f"pytest t.py::t --llmperf {given} --llmperf-" in remedy(plan, comparison, option, given)


def test_values_of_a_launch_are_infinite_where_a_quantile_lies_among_failures() -> None:
    failed = [failure(i) for i in range(3)]
    found = launch_values(
        test(), [trial([*failed, record(3)])], StartUp(time_to_ready_s=2.0), order=0, block=0, session="now"
    )
    assert (found.n_requests, found.n_failed) == (4, 3)
    assert math.isinf(found.metrics["ttft_p50"])
    assert found.metrics["time_to_ready"] == 2.0


def test_the_gap_of_chunks_is_left_out_where_a_chunk_is_no_token() -> None:
    whole = [record(i, chunks_ms=(10, 20, 30), output_tokens=3) for i in range(3)]
    merged = [record(i, chunks_ms=(10, 20, 30), output_tokens=6) for i in range(3)]
    names = [
        launch_values(test(), [trial(r)], StartUp(), order=0, block=0, session="").metrics for r in (whole, merged)
    ]
    assert ["icl_p50" in each for each in names] == [True, False]


def test_values_of_a_launch_say_how_they_were_measured_and_leave_out_what_is_known_by_its_bucket() -> None:
    empty, full = Buckets(0, 0, (1, 2), (0, 0)), Buckets(9, 9.0, (1, 2), (4, 9))
    telemetry = Telemetry(
        gpu=tuple(GpuSample(at, 0, 50, None) for at in (0, 1_000_000_000)), gpus=(0,),
        engine=tuple(EngineSample(at, {}, {"queue_wait": told}) for at, told in ((0, empty), (2_000_000_000, full))),
    )  # fmt: skip
    start = StartUp(memory_bytes=70, whole_gpus=True)
    found = launch_values(test(), [trial([record()], telemetry=telemetry)], start, order=0, block=0, session="")
    assert {"peak_memory": "whole-gpus", "startup_memory": "whole-gpus"}.items() <= found.sources.items()
    assert set(found.sources) <= set(found.metrics)
    assert found.metrics["queue_wait_mean"] == 1
    assert "queue_wait_p95" not in found.metrics
    assert from_stored(stored_launch(found, 1), "") == found


def test_tokens_that_a_tokenizer_counted_are_not_those_that_a_server_counts() -> None:
    def sources(*of: TokenSource) -> Mapping[str, str]:
        made = [record(i, token_source=source) for i, source in enumerate(of)]
        return launch_values(test(), [trial(made)], StartUp(), order=0, block=0, session="").sources

    own, ours = TokenSource.USAGE, TokenSource.TOKENIZER
    assert sources(own, own, ours) == {}
    found = sources(ours, ours, own)
    assert {found[name] for name in ("output_throughput", "total_throughput", "tpot_p95")} == {"tokenizer"}
    assert not {"ttft_p50", "e2e_p95", "request_throughput"} & found.keys()


def test_a_metric_that_some_launch_lacks_is_said_to_be_so() -> None:
    base = [values(order, block, ttft_p50=0.1, peak_memory=1e9) for block, order in enumerate((0, 3))]
    cand = [values(order, block, ttft_p50=0.1) for block, order in enumerate((1, 2))]
    judgement = judge_interleaved(base, cand, config=GateConfig(("ttft_p50", "peak_memory")))
    rows = {row.metric: row for row in comparison_rows(Comparison("interleaved", "the other", judgement), base, cand)}
    assert rows["peak_memory"].reason == "not decided: some launch has no value of it"
    assert not any("nan" in (row.reason or "") or "inf" in (row.reason or "") for row in rows.values())


def test_what_a_job_detects_follows_from_the_noise_that_it_had() -> None:
    family = ("ttft_p50", "peak_memory")
    prior = {"ttft_p50": (0.01**2, 4.0), "peak_memory": (0.002**2, 4.0)}
    case = Case(test(), GateConfig(family), Prior(prior))
    grounds = Grounds(Terms(), None)  # type: ignore[arg-type]
    found = Comparison("interleaved", "the other", detects=grounds.detects(case))

    def shown(kappa: float) -> Comparison:
        case.judgement = Judgement("INCONCLUSIVE", "", kappa=kappa)
        return grounds.concluded(found, case)

    assert shown(1.0).detects == found.detects
    # Nine times the variance is three times the standard deviation of a launch; memory's is no part of it.
    noisier = {"ttft_p50": (0.03**2, 4.0), "peak_memory": (0.002**2, 4.0)}
    wide = detectable_interleaved(family, 8, prior=noisier, config=case.config)
    assert shown(9.0).detects == {name: pytest.approx(wide[name]) for name in found.detects}
    assert shown(9.0).detects["ttft_p50"] > 2 * found.detects["ttft_p50"]
    assert shown(9.0).judgement is case.judgement
