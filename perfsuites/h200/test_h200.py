"""Chat, and prompts that share their beginnings, at concurrency 16."""

import pytest

CHAT = {
    "name": "real-chat",
    "input": {"lognormal": {"median": 256, "sigma": 0.5, "low": 32, "high": 1024}},
    "output": {"uniform": [64, 192]},
    "sampling": {"temperature": 0},
}
SHARED = {
    "name": "shared",
    "input": {"uniform": [1400, 1600]},
    "output": {"uniform": [16, 48]},
    "shared_prefix": {"groups": 2, "tokens": 1200},
    "sampling": {"temperature": 0},
}


@pytest.mark.llmperf(workload=CHAT, concurrency=16, requests=200, seed=1)
@pytest.mark.regression
@pytest.mark.sla(ttft_p95="5 s", tpot_p95="200 ms", output_throughput="100 tok/s", peak_memory="140 GiB")
def test_chat(llmperf):
    assert llmperf.run().failed == 0


@pytest.mark.llmperf(workload=SHARED, concurrency=16, requests=160, seed=2)
@pytest.mark.regression
def test_shared_prefix(llmperf):
    assert llmperf.run().failed == 0
