"""Three loads on the embedded engine: a real llama.cpp server on a tiny generated model, no GPU, no download.

The limits are sanity limits: loose enough to hold on any two-core machine, so that a failure means that something is
broken and not that the machine is slow. Limits that mean something belong to your own server and hardware.
"""

import pytest

pytestmark = pytest.mark.llmperf(server="embedded", seed=1)


@pytest.mark.llmperf(workload="quickstart-chat", concurrency=2, requests=200)
@pytest.mark.sla(ttft_p95="5 s", tpot_p95="500 ms", output_throughput="5 tok/s", peak_memory="4 GiB")
def test_chat_closed_loop(llmperf):
    """Two users who ask the next question as soon as the last answer is there."""
    result = llmperf.run()
    assert result.failed == 0


@pytest.mark.llmperf(workload="quickstart-completions", request_rate="4 req/s", arrival="poisson", duration="12 s")
@pytest.mark.sla(ttft_p90="5 s", e2e_p90="30 s", error_rate="1 %")
def test_open_loop_at_a_rate(llmperf):
    """Requests that arrive when they arrive, whether the server keeps up or not."""
    llmperf.run()


@pytest.mark.llmperf(workload="quickstart-shared-prefix", concurrency=2, requests=100)
@pytest.mark.sla(ttft_p95="5 s", output_throughput="5 tok/s")
def test_shared_prefix(llmperf):
    """Prompts with a common beginning, as behind a system prompt."""
    llmperf.run()
