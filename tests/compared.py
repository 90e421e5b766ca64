"""Tests with a comparison, as reports hold them; figures of an engine upgrade, in base units."""

from __future__ import annotations

from typing import Any

import reported
from made import trial

from pytest_llmperf.comparisons import ComparisonReport, DifferenceReport, JudgementReport
from pytest_llmperf.identity import Fact, Identity
from pytest_llmperf.result import CampaignReport, LaunchReport, RunReport, TestReport
from pytest_llmperf.samples import StartUp

AB = "pytest --llmperf -k test_rag_long --llmperf-ab args.--max-num-batched-tokens=8192"


def entry(metric: str, verdict: Any, before: float, after: float | None, **more: Any) -> ComparisonReport:
    values: dict[str, Any] = {
        "metric": metric,
        "unit": "s",
        "better": "lower",
        "verdict": verdict,
        "baseline": before,
        "candidate": after,
        "change": None if after is None else after / before - 1,
        "baseline_launches": 4,
        "candidate_launches": 4,
    }
    return ComparisonReport(**(values | more))


WORSE = entry("ttft_p50", "FAIL", 0.181, 0.214, change_low=0.151, change_high=0.214, allowed=0.05, p=1e-5, q=0.99)
SAME = entry("tpot_mean", "PASS", 0.00602, 0.00605, change_low=-0.006, change_high=0.016, allowed=0.03, ruled_out=0.06)
RATE = entry(
    "output_throughput", "PASS", 3105, 3090, unit="tok/s", better="higher", change_low=-0.012, change_high=0.003,
    allowed=0.02, ruled_out=0.058, widened=True,
)  # fmt: skip
SHOWN = entry("ttft_p99", "PASS", 0.32, 0.41, reason="400 of 1000 requests a launch")
VAGUE = entry("ttft_p50", "INCONCLUSIVE", 0.092, 0.096, change_low=-0.019, change_high=0.11, allowed=0.05)

CHUNKED = DifferenceReport(
    name="max_num_batched_tokens", kind="consequence", baseline="8192", candidate="2048", role="came_with", note=AB
)
TORCH = DifferenceReport(name="torch", kind="consequence", baseline="2.10", candidate="2.11", role="came_with")
VERSION = DifferenceReport(name="version", kind="input", baseline="0.32.0", candidate="0.33.0", role="declared")
SEQS = DifferenceReport(name="max_num_seqs", kind="input", baseline="64", candidate="32", role="confounding")
DRIVER = DifferenceReport(name="driver", kind="environment", baseline="570.1", candidate="580.2", role="escalating")
DTYPE = DifferenceReport(
    name="kv_cache_dtype", kind="input", baseline="unknown", candidate="unknown", role="unverified"
)


def judgement(verdict: Any, **more: Any) -> JudgementReport:
    values: dict[str, Any] = {
        "mode": "interleaved",
        "verdict": verdict,
        "reason": "ttft_p50 is worse by more than 5 %",
        "against": "vllm 0.32.0, the highest lower version that has a baseline",
        "variable": "version: 0.32.0 → 0.33.0",
        "differences": (VERSION, CHUNKED, TORCH, DTYPE),
        "blocks": 4,
        "blocks_used": (0, 1, 3),
        "blocks_pruned": (2,),
        "max_blocks": 8,
        "p_global": 0.00746,
        "detects": {"ttft_p50": 0.031, "tpot_mean": 0.012},
    }
    return JudgementReport(**(values | more))


def report(nodeid: str, found: JudgementReport | None, *entries: ComparisonReport, **more: Any) -> TestReport:
    """The report of an otherwise passing test on an H200, with the verdict of its comparison."""
    base = reported.passing()
    identity = Identity(
        input={
            "engine": Fact(value="vllm", source="live"),
            "version": Fact(value="0.33.0", source="live"),
            "model": Fact(value="meta-llama/Llama-3.1-8B", source="live"),
            "quantization": Fact(value="bf16", source="live"),
        },
        environment={
            "gpu": Fact(value="NVIDIA H200", source="live"),
            "gpu_count": Fact(value="1", source="live"),
        },
    )
    verdict = found.verdict if found is not None else base.verdict
    values: dict[str, Any] = {
        "nodeid": nodeid,
        "identity": identity,
        "verdict": verdict,
        "outcome": "passed" if verdict in ("PASS", "INCONCLUSIVE", "NO_BASELINE") else "failed",
        "plan": base.plan.model_copy(update={"nodeid": nodeid}),
        "judgement": found,
        "comparisons": entries,
    }
    return base.model_copy(update=values | more)


def regressed() -> TestReport:
    return report("perf/test_rag.py::test_rag_long[16]", judgement("FAIL", remedy=AB), WORSE, SAME, RATE, SHOWN)


def accepted() -> TestReport:
    found = judgement(
        "PASS", mode="stored", reason="shown no worse", blocks=2, blocks_used=(0, 1), blocks_pruned=(), max_blocks=3,
        p_global=1.0,
    )  # fmt: skip
    return report("perf/test_chat.py::test_chat[16]", found, SAME, RATE)


def undecided() -> TestReport:
    found = judgement(
        "INCONCLUSIVE", reason="too noisy: ttft_p50", blocks=8, blocks_used=tuple(range(8)), blocks_pruned=(),
        blocks_needed=11, kappa=3.24, sequence=2, p_global=0.2, notes=("ttft_p99 has too few requests",),
        remedy="pytest --llmperf -k test_agent --llmperf-against version=0.32.0",
    )  # fmt: skip
    return report("perf/test_agent.py::test_agent[8]", found, VAGUE, SAME)


def confounded() -> TestReport:
    found = judgement(
        "CONFOUNDED", reason="max_num_seqs differs too", differences=(VERSION, SEQS, DRIVER), blocks=0, blocks_used=(),
        blocks_pruned=(), p_global=1.0, remedy="set max_num_seqs = 64, or --llmperf-allow max_num_seqs",
    )  # fmt: skip
    return report("perf/test_chat.py::test_confounded", found)


def without_baseline() -> TestReport:
    found = judgement(
        "NO_BASELINE", mode="stored", reason="no entry for this test on 1×NVIDIA H200; nearest: 1×NVIDIA H100",
        against="nothing", variable=None, differences=(), blocks=0, blocks_used=(), blocks_pruned=(), max_blocks=3,
        p_global=1.0, detects={}, remedy="pytest --llmperf --llmperf-refresh --llmperf-reason 'first baseline'",
    )  # fmt: skip
    return report("perf/test_new.py::test_new", found)


def lost() -> TestReport:
    """Most requests of the candidate failed: its TTFT has no finite value."""
    gone = entry("ttft_p50", "FAIL", 0.181, None, allowed=0.05, reason="no finite value in 3 of 3 launches")
    return report("perf/test_rag.py::test_lost", judgement("FAIL"), gone)


def launches(seconds: float | None = 90.0) -> CampaignReport:
    """Two launches that shared the tests above."""
    made = tuple(
        LaunchReport(
            index=index,
            command=("vllm",),
            url="http://127.0.0.1:1",
            pid=7,
            start_up=StartUp(time_to_ready_s=seconds),
            lifetime_s=None if seconds is None else seconds + 0.6,
            log=None,
        )
        for index in range(2)
    )
    return CampaignReport(
        server="vllm-bf16", salt="0", identity=regressed().identity, launches=made, tests=(regressed().nodeid,)
    )


def run(*tests: TestReport, partial: bool = False, **more: Any) -> RunReport:
    return reported.run_report(*tests, partial=partial).model_copy(update=more)


def with_launches(test: TestReport, ttfts_ms: tuple[int, ...], arm: str = "candidate") -> TestReport:
    """``test`` with one trial a launch, whose requests have the TTFTs given, all on time."""
    trials = []
    for number, ttft in enumerate(ttfts_ms):
        records = [reported.record(i, sent_ms=400 * i, chunks_ms=(ttft, ttft + 20, ttft + 40)) for i in range(10)]
        measured = reported.report_of(trial(records, end_ms=4000, launch=number, arm=arm))
        trials += list(measured.trials)
    return test.model_copy(update={"trials": tuple(trials)})
