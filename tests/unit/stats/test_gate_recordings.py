"""The gate on recordings of real engines: a noisy shared CPU, and an H200."""

from __future__ import annotations

import json
import random
from itertools import combinations, permutations, product
from pathlib import Path
from typing import Any

import pytest

from pytest_llmperf.stats.interleaved import judge_interleaved
from pytest_llmperf.stats.launches import GateConfig, Judgement, LaunchValues
from pytest_llmperf.stats.stored import judge_pair, judge_stored

RECORDED: dict[str, Any] = json.loads(
    (Path(__file__).parents[2] / "fixtures" / "recordings" / "launches.json").read_text(encoding="utf-8")
)
FAMILY = GateConfig(metrics=("ttft_p50", "tpot_mean", "output_throughput", "cpu_seconds_per_mtok", "peak_memory"))
VLLM = ("vllm-llama8b-c16", "vllm-llama8b-c64", "vllm-llama1b-c16", "vllm-llama1b-c64")
GPU = GateConfig(metrics=("ttft_p50", "tpot_mean", "output_throughput", "ttft_p95", "tpot_p95"))
PRIMARY = GateConfig(metrics=("ttft_p50", "tpot_mean", "output_throughput"))


def launch(entry: dict[str, Any], block: int, order: int, session: str = "recorded") -> LaunchValues:
    counts = {name: entry[name] for name in ("n_requests", "n_failed", "n_tokens")}
    return LaunchValues(metrics=entry["metrics"], order=order, block=block, session=session, **counts)


def run(baseline: list[dict[str, Any]], candidate: list[dict[str, Any]], config: GateConfig) -> Judgement:
    """Block by block until the gate has decided, or the recording ends."""
    most = min(len(baseline), config.max_blocks)
    base = [launch(entry, block, entry["order"]) for block, entry in enumerate(baseline[:most])]
    cand = [launch(entry, block, entry["order"]) for block, entry in enumerate(candidate[:most])]
    for n in range(2, most + 1):
        judged = judge_interleaved(base[:n], cand[:n], config=config)
        if judged.result != "CONTINUE":
            break
    return judged


@pytest.mark.parametrize("name", ["llama-server-smollm2", "llama-server-tiny"])
@pytest.mark.parametrize("config", [FAMILY, PRIMARY], ids=["family", "primary"])
def test_the_same_server_never_fails_whatever_the_labels(name: str, config: GateConfig) -> None:
    """200 labellings within pairs of consecutive launches, on a host that other work keeps half busy."""
    launches, ended = RECORDED[name], []
    for seed in range(200):
        rng = random.Random(seed)
        pairs = [rng.sample(launches[at : at + 2], 2) for at in range(0, len(launches), 2)]
        ended.append(run([pair[0] for pair in pairs], [pair[1] for pair in pairs], config))
    assert [judged.reason for judged in ended if judged.result == "FAIL"] == []
    assert sum(judged.reason.startswith("too noisy") for judged in ended) >= 170


def test_cpu_seconds_acquit_where_every_time_is_too_noisy() -> None:
    config = GateConfig(metrics=("cpu_seconds_per_mtok",))
    launches = RECORDED["llama-server-smollm2"]
    for seed in range(20):
        rng = random.Random(seed)
        pairs = [rng.sample(launches[at : at + 2], 2) for at in range(0, 12, 2)]
        assert run([pair[0] for pair in pairs], [pair[1] for pair in pairs], config).result == "PASS"


def cache(state: str) -> list[dict[str, Any]]:
    return [entry for entry in RECORDED["llama-server-smollm2-ab"] if entry["label"] == f"prompt-cache-{state}"]


def test_losing_the_prompt_cache_fails_at_four_blocks() -> None:
    judged = run(cache("on"), cache("off"), FAMILY)
    assert (judged.result, judged.blocks) == ("FAIL", 4)
    assert judged.regressed == ("ttft_p50", "output_throughput")


def test_gaining_the_prompt_cache_passes_at_four_blocks() -> None:
    judged = run(cache("off"), cache("on"), FAMILY)
    assert (judged.result, judged.blocks) == ("PASS", 4)


@pytest.mark.parametrize("name", [name for name in VLLM if "8b" in name])
def test_vllm_never_fails_against_itself_side_by_side(name: str) -> None:
    """Every way to make two blocks of its four launches."""
    for order in permutations(entry["launch"] for entry in RECORDED[name]):
        base = [launch(order[0], 0, 0), launch(order[3], 1, 3)]
        cand = [launch(order[1], 0, 1), launch(order[2], 1, 2)]
        assert judge_interleaved(base, cand, config=GPU).result != "FAIL"


@pytest.mark.parametrize("name", VLLM)
def test_vllm_never_fails_beside_the_very_same_values(name: str) -> None:
    """Gated on everything that was recorded, the tails of chunk gaps included."""
    launches = [entry["launch"] for entry in RECORDED[name]]
    base = [launch(each, n, 2 * n) for n, each in enumerate(launches)]
    cand = [launch(each, n, 2 * n + 1) for n, each in enumerate(launches)]
    judged = judge_interleaved(base, cand)
    assert judged.result != "FAIL"
    assert {each.metric for each in judged.metrics} == set(launches[0]["metrics"])


@pytest.mark.parametrize("name", VLLM)
def test_vllm_never_fails_against_itself_stored_or_live(name: str) -> None:
    launches = [entry["launch"] for entry in RECORDED[name]]
    base = [launch(each, n, n) for n, each in enumerate(launches)]
    for chosen in combinations(range(len(launches)), min(3, len(launches))):
        cand = [launch(launches[at], n, n, "today") for n, at in enumerate(chosen)]
        assert judge_stored(base, cand).result != "FAIL"
    replays = [[launch(each, n, n) for n, each in enumerate(entry["replays"])] for entry in RECORDED[name]]
    for a, b in product(replays, repeat=2):
        if len(a) == len(b):
            assert judge_pair(a, b).result != "FAIL"
