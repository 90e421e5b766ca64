"""What a run shows of the engine's own metrics, and what these show against the run."""

from __future__ import annotations

from typing import Any

import pytest
from comparing import compare, the_test
from truth_engine import CONFTEST

from pytest_llmperf.recordfile import read_telemetry

WATCHED = """
[tool.llmperf]
default_server = "watched"
[tool.llmperf.servers.watched]
engine = "watched"
env = {{ {env} }}
"""
TEST = """
import pytest

@pytest.mark.llmperf(workload={'input': 40, 'output': 8}, concurrency=4, requests=30, warmup=4)
@pytest.mark.sla(error_rate='1 %'EXPECTED)
def test_it(llmperf):
    llmperf.run()
"""


def run(pytester: pytest.Pytester, expected: str = "", **env: object) -> dict[str, Any]:
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(test_it=TEST.replace("EXPECTED", expected))
    pytester.makepyprojecttoml(WATCHED.format(env=", ".join(f'{name} = "{value}"' for name, value in env.items())))
    compare(pytester)
    return the_test(pytester)


def test_counters_gauges_and_histograms_of_the_engine_are_in_the_report(pytester: pytest.Pytester) -> None:
    found = run(pytester, expected=", queue_wait_p95='2 s'")
    assert found["verdict"] == "PASS"
    [trial] = found["trials"]
    assert trial["validity"]["reasons"] == []
    metrics = trial["metrics"]
    assert metrics["queue_wait_mean"]["value"] == pytest.approx(0.625)
    assert metrics["queue_wait_p95"]["value"] == pytest.approx(0.5 + 0.5 * 0.9)  # half of them waited 0.5 s or less
    assert metrics["queue_wait_p95"]["note"].startswith("from buckets; over ")
    assert metrics["queue_wait_p50"]["value"] is None
    assert metrics["prefix_hit_rate"]["value"] == 0
    assert metrics["preemptions"]["value"] is None
    assert metrics["preemptions"]["note"] == "the engine's metrics do not state it"
    telemetry = read_telemetry(pytester.path / "llmperf-report" / trial["telemetry"])
    first, last = telemetry.engine[0], telemetry.engine[-1]
    assert last.values["requests"] - first.values["requests"] == 34
    assert last.histograms["queue_wait"].count - first.histograms["queue_wait"].count == 34


def test_another_client_on_the_server_makes_the_run_invalid(pytester: pytest.Pytester) -> None:
    found = run(pytester, FOREIGN=0.5)
    assert found["verdict"] == "INVALID"
    [reason] = found["trials"][0]["validity"]["reasons"]
    assert "the server finished 51 requests while we sent 34" in reason


def test_hits_in_the_prefix_cache_that_only_the_counters_show_make_it_invalid(pytester: pytest.Pytester) -> None:
    found = run(pytester, HITS=0.9)
    assert found["verdict"] == "INVALID"
    [reason] = found["trials"][0]["validity"]["reasons"]
    assert reason.startswith("prefix cache hits in a load that promised none")
    assert found["trials"][0]["metrics"]["prefix_hit_rate"]["value"] == pytest.approx(0.9)


def test_a_server_that_was_restarted_during_the_load_makes_it_invalid(pytester: pytest.Pytester) -> None:
    found = run(pytester, RESTART=20)
    assert found["verdict"] == "INVALID"
    assert found["trials"][0]["validity"]["reasons"] == [
        "the engine's counters fell while the load ran: the server was restarted; run it again"
    ]


LLAMA = """
from dataclasses import replace
from pytest_llmperf.engines import ENGINES

ENGINES["embedded"] = replace(
    ENGINES["embedded"],
    metrics_url="/metrics",
    series={
        "running": ("llamacpp:requests_processing",),
        "waiting": ("llamacpp:requests_deferred",),
        "prefix_hits": ("llamacpp:prompt_tokens_cached_total",),
        "prompt_tokens": ("llamacpp:prompt_tokens_total",),
        "generation_tokens": ("llamacpp:tokens_predicted_total",),
        "drafts": ("llamacpp:spec_decode_num_drafts_total",),
        "accepted_tokens": ("llamacpp:spec_decode_num_accepted_tokens_total",),
    },
)
"""


def test_of_the_embedded_engine_what_it_states_is_read_and_what_it_lacks_is_not_measured(
    pytester: pytest.Pytester,
) -> None:
    pytester.makeconftest(LLAMA)
    pytester.makepyfile(
        test_it=TEST.replace("EXPECTED", "").replace("concurrency=4, requests=30", "concurrency=2, requests=20")
    )
    pytester.makepyprojecttoml(WATCHED.replace("watched", "embedded").format(env=""))
    compare(pytester)
    [trial] = the_test(pytester)["trials"]
    assert trial["validity"]["reasons"] == []
    metrics = trial["metrics"]
    unmeasured = {
        name: metrics[name]["note"] for name in ("preemptions", "kv_usage_p95", "kv_capacity_tokens", "queue_wait_mean")
    }
    assert set(unmeasured.values()) == {"the engine's metrics do not state it"}
    assert metrics["acceptance_length"]["note"] == "no draft was verified: it does not decode speculatively"
    assert all(metrics[name]["value"] is None for name in (*unmeasured, "acceptance_length"))
    assert metrics["prefix_hit_rate"]["value"] is not None  # by the requests' usage
    telemetry = read_telemetry(pytester.path / "llmperf-report" / trial["telemetry"])
    grown = telemetry.engine[-1].values["generation_tokens"] - telemetry.engine[0].values["generation_tokens"]
    assert grown == 24 * 8
    assert not any("metrics" in warning for warning in trial["warnings"])
