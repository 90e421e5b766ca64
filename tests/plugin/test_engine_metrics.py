"""What a run shows of the engine's own metrics, and what these show against the run."""

from __future__ import annotations

import pytest
from comparing import compare, the_test
from truth_engine import CONFTEST
from truth_server import TruthServer

from pytest_llmperf.recordfile import read_records, read_telemetry

SERVER = """
[tool.llmperf]
default_server = "watched"
[tool.llmperf.servers.watched]
engine = "watched"
"""
TEST = """
import pytest

@pytest.mark.llmperf(workload={'input': 40, 'output': 8}, concurrency=4, requests=30, warmup=4)
@pytest.mark.sla(error_rate='1 %'EXPECTED)
def test_it(llmperf):
    llmperf.run()
"""


def test_counters_gauges_and_histograms_of_the_engine_are_in_the_report(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(test_it=TEST.replace("EXPECTED", ", queue_wait_p95='2 s'"))
    pytester.makepyprojecttoml(SERVER)
    compare(pytester)
    found = the_test(pytester)
    assert found["verdict"] == "PASS"
    [trial] = found["trials"]
    assert trial["validity"]["reasons"] == []
    metrics = trial["metrics"]
    assert metrics["queue_wait_mean"]["value"] == pytest.approx(0.625)
    assert metrics["queue_wait_p95"]["value"] == pytest.approx(0.5 + 0.5 * 0.9)  # half of them waited 0.5 s or less
    assert metrics["queue_wait_p95"]["note"].startswith("500 ms..1.00 s by the engine's buckets; over ")
    assert [metrics["queue_wait_p50"][key] for key in ("value", "lower", "upper")] == [0.5, 0, 0.5]
    assert [check["upper"] for check in found["slas"] if check["metric"] == "queue_wait_p95"] == [1]
    assert metrics["prefix_hit_rate"]["value"] == 0
    assert metrics["preemptions"]["value"] is None
    assert metrics["preemptions"]["note"] == "the engine's metrics do not state it"
    telemetry = read_telemetry(pytester.path / "llmperf-report" / trial["telemetry"])
    first, last = telemetry.engine[0], telemetry.engine[-1]
    assert last.values["requests"] - first.values["requests"] == 34
    assert last.histograms["queue_wait"].count - first.histograms["queue_wait"].count == 34


FAULTS = """
[tool.llmperf.servers.shared]
engine = "watched"
env = { FOREIGN = "0.5" }
[tool.llmperf.servers.caching]
engine = "watched"
env = { HITS = "0.9" }
[tool.llmperf.servers.restarting]
engine = "watched"
env = { RESTART = "20" }
"""
FAULTY = """
import pytest

@pytest.mark.parametrize("server", ["shared", "caching", "restarting"])
@pytest.mark.llmperf(workload={'input': 40, 'output': 8}, concurrency=4, requests=30, warmup=4)
def test_it(llmperf, server):
    llmperf.run()
"""


def test_what_the_counters_show_against_a_run_makes_it_invalid(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(test_it=FAULTY)
    pytester.makepyprojecttoml(FAULTS)
    compare(pytester)
    shared, caching, restarting = (the_test(pytester, at) for at in range(3))
    assert {found["verdict"] for found in (shared, caching, restarting)} == {"INVALID"}
    [foreign], [hits], [restart] = (f["trials"][0]["validity"]["reasons"] for f in (shared, caching, restarting))
    assert "the server finished 51 requests while we sent 34" in foreign
    assert hits.startswith("prefix cache hits in a load that promised none")
    assert caching["trials"][0]["metrics"]["prefix_hit_rate"]["value"] == pytest.approx(0.9)
    assert restart == "the engine's counters fell while the load ran: the server was restarted; run it again"


def test_a_running_server_is_watched_with_its_key_and_below_its_prefix(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(test_it=TEST.replace("EXPECTED", ""))
    monkeypatch.setenv("TRUTH_KEY", "only-with-this")
    plain = {"foreign": 0, "hits": 0, "restart": 0}
    with TruthServer(api_key="only-with-this", prefix="/behind/a/proxy", metrics=plain) as server:
        pytester.makepyprojecttoml(
            '[tool.llmperf.servers.there]\nengine = "watched"\napi_key_env = "TRUTH_KEY"\n'
            f'url = "{server.url}"\n[tool.llmperf]\ndefault_server = "there"\n'
        )
        compare(pytester)
    [trial] = the_test(pytester)["trials"]
    telemetry = read_telemetry(pytester.path / "llmperf-report" / trial["telemetry"])
    assert telemetry.host == ()
    assert telemetry.engine[-1].values["requests"] - telemetry.engine[0].values["requests"] == 34
    assert trial["metrics"]["queue_wait_mean"]["value"] == pytest.approx(0.625)


def test_a_server_without_such_a_page_is_measured_all_the_same(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(test_it=TEST.replace("EXPECTED", ""))
    with TruthServer() as server:
        pytester.makepyprojecttoml(
            f'[tool.llmperf.servers.there]\nengine = "watched"\nurl = "{server.url}"\n'
            '[tool.llmperf]\ndefault_server = "there"\n'
        )
        result = compare(pytester)
    assert result.ret == 0
    [trial] = the_test(pytester)["trials"]
    [said] = [warning for warning in trial["warnings"] if warning.startswith("the engine's metrics")]
    assert "HTTP 404" in said
    assert trial["metrics"]["kv_usage_p95"]["note"] == f"no metrics of the engine were read; {said}"


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
    pytester.makepyprojecttoml(SERVER.replace("watched", "embedded"))
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
    first, last = (telemetry.engine[at].values for at in (0, -1))
    grown = sum(last[name] - first[name] for name in ("prompt_tokens", "prefix_hits"))  # the former without the latter
    records = read_records(pytester.path / "llmperf-report" / trial["records"])
    assert grown == sum(record.prompt_tokens or 0 for record in records) > 0
    assert not any("metrics" in warning for warning in trial["warnings"])


def test_a_server_that_a_command_starts_is_watched_where_the_configuration_says(pytester: pytest.Pytester) -> None:
    """Paths of the commands are seen from the configuration, addresses are no paths."""
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(test_it=TEST.replace("EXPECTED", ""))
    for name, does in (("start", 'exec "$@"'), ("stop", 'echo "$1" > "$(dirname "$0")/stopped"')):
        script = pytester.path / f"{name}.sh"
        script.write_text(f"#!/bin/sh\n{does}\n")
        script.chmod(0o755)
    pytester.makepyprojecttoml(
        f"{SERVER}launcher = 'command'\nstart = ['./start.sh', '{{command}}']\nready_url = 'http://127.0.0.1:{{port}}'\n"
        "metrics_urls = ['http://127.0.0.1:{port}/metrics']\nstop = ['./stop.sh', '{port}']\n"
    )
    compare(pytester)
    found = the_test(pytester)
    assert found["verdict"] == "PASS"
    assert found["trials"][0]["metrics"]["queue_wait_mean"]["value"] == pytest.approx(0.625)
    assert (pytester.path / "stopped").read_text().strip().isdecimal()
