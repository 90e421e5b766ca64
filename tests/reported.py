"""Stored tests and runs made from hand-made trials, for tests of what is written and shown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from made import client, failure, record, trial

from pytest_llmperf.gate import judge
from pytest_llmperf.identity import Fact, Identity
from pytest_llmperf.metrics.trial import counts, measure
from pytest_llmperf.metrics.validity import LoadFacts, assess
from pytest_llmperf.plan import Fixed, LoadProfile, Plan, ServerSpec, Sla, Workload
from pytest_llmperf.records import Outcome, RequestRecord, Trial
from pytest_llmperf.result import RunReport, TestReport
from pytest_llmperf.samples import HostSample, Telemetry
from pytest_llmperf.stored import metric_reports, trial_report

SLO = {"ttft": 0.5}


def plan(slas: Sequence[Sla] = (), **load: Any) -> Plan:
    return Plan(
        nodeid="test_chat.py::test_chat",
        server=ServerSpec(name="local", engine="llamacpp"),
        workload=Workload(name="tiny", input=Fixed(tokens=10), output=Fixed(tokens=3)),
        load=LoadProfile(**(load or {"concurrency": 4, "requests": 40, "warmup": 8})),
        slas=tuple(slas),
    )


def closed_loop(n: int = 40) -> list[RequestRecord]:
    """``n`` requests, four at a time; TTFTs from 100 ms in steps of 5 ms, in no order."""
    firsts = [100 + 5 * (11 * i % n) for i in range(n)]
    return [record(i, sent_ms=400 * (i // 4), chunks_ms=(t, t + 20, t + 40)) for i, t in enumerate(firsts)]


def with_memory(records: Sequence[RequestRecord]) -> Trial:
    host = tuple(HostSample(i * 200_000_000, 700 * 2**20 + i * 2**20, 0.1 * i, 1) for i in range(20))
    return trial(records, end_ms=4000, telemetry=Telemetry(host=host))


def report_of(t: Trial, slas: Sequence[Sla] = (), **load: Any) -> TestReport:
    """The report of a test with the one trial ``t``."""
    asked = plan(slas, **load)
    wanted = [sla.metric for sla in slas]
    measured = measure([t], SLO) | measure([t], SLO, wanted)
    validity = assess(t, LoadFacts(request_rate=asked.load.request_rate, asked=wanted))
    count = counts(t)
    verdict = judge(slas, measured, invalid=validity.reasons, ok=count.ok, failed=count.failed)
    return TestReport(
        nodeid=asked.nodeid,
        verdict=verdict.name,
        outcome="passed" if verdict.name == "PASS" else "failed",
        duration_s=5.0,
        plan=asked,
        identity=Identity(
            input={
                "engine": Fact(value="llamacpp", source="configured"),
                "version": Fact(value="b9000", source="live"),
                "model": Fact(value="tiny-llama", source="live"),
            }
        ),
        metrics=metric_reports(measured),
        trials=(trial_report(t, measured, validity, "records/test_chat-0-0.jsonl.gz"),),
        slas=verdict.checks,
    )


def passing() -> TestReport:
    slas = [
        Sla(metric="ttft_p95", limit=0.5, written="500 ms"),
        Sla(metric="output_throughput", limit=20, written="20 tok/s"),
    ]
    return report_of(with_memory(closed_loop()), slas)


def failing() -> TestReport:
    slas = [
        Sla(metric="ttft_p95", limit=0.25, written="250 ms"),
        Sla(metric="tpot_p95", limit=0.03, written="30 ms", confidence=0.95),
        Sla(metric="itl_p50", limit=0.03, written="30 ms"),
        Sla(metric="peak_memory", limit=2**30, written="1 GiB"),
    ]
    lost = "server closed the connection\nafter 0 bytes"
    records = closed_loop(36) + [failure(36 + i, sent_ms=3600, detail=lost) for i in range(3)]
    records.append(failure(39, Outcome.HTTP_STATUS, sent_ms=3600, detail="503 " + "overloaded " * 40))
    return report_of(with_memory(records), slas)


def mixed_reads() -> TestReport:
    """A client that could not tell chunks apart, with a limit on the gaps between them and one on something else."""
    slas = [Sla(metric="icl_p99", limit=9, written="9 s"), Sla(metric="ttft_p50", limit=9, written="9 s")]
    return report_of(trial(closed_loop(), end_ms=4000, client=client(shared_reads=20)), slas)


def unsettled() -> TestReport:
    """Half way the server takes twice as long."""
    firsts = [100 if i < 20 else 200 for i in range(40)]
    records = [record(i, sent_ms=400 * (i // 4), chunks_ms=(t, t + 20, t + 40)) for i, t in enumerate(firsts)]
    return report_of(trial(records, end_ms=4000), [Sla(metric="ttft_p50", limit=9, written="9 s")])


def run_report(*tests: TestReport, partial: bool = False) -> RunReport:
    return RunReport(
        plugin_version="0.1.0",
        created="2027-01-02T03:04:05+00:00",
        partial=partial,
        environment={"python": "3.11"},
        tests=tests,
    )


def invalid() -> TestReport:
    """An open loop that fell behind, against a server that counts nothing and stops early."""
    late = [
        record(
            i,
            sent_ms=100 * i * 1.1,
            scheduled_ns=100 * i * 1_000_000,
            output_tokens=3 if i % 2 else None,
            requested_output_tokens=5,
        )
        for i in range(30)
    ]
    slas = [Sla(metric="kv_usage_p95", limit=0.9, written="90 %"), Sla(metric="ttft_p50", limit=9, written="9 s")]
    return report_of(trial(late, end_ms=3500), slas, request_rate=10, requests=30, arrival="poisson")
