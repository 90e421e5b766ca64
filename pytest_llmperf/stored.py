"""From what was computed to what is stored: plain functions from steps' values to ``result`` models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Final

from pytest_llmperf.engines.redact import public_env, redact
from pytest_llmperf.metrics.request import e2e, known_tokens, tpot, ttft
from pytest_llmperf.metrics.trial import counts, in_flight, slowest
from pytest_llmperf.metrics.validity import Validity
from pytest_llmperf.plan import Plan
from pytest_llmperf.records import ClientStats, RequestRecord, Trial, Window
from pytest_llmperf.result import (
    ClientReport,
    MetricReport,
    SlowRequest,
    TrialReport,
    ValidityReport,
    WindowReport,
)
from pytest_llmperf.samples import Telemetry
from pytest_llmperf.stats.value import MetricValue

__all__ = ["metric_reports", "public_plan", "stored_trial", "trial_report"]

_ALIKE: Final = tuple(field.name for field in fields(ClientStats) if field.name in ClientReport.model_fields)


def metric_reports(measured: Mapping[str, MetricValue]) -> dict[str, MetricReport]:
    """The measured metrics as they are stored, without the values behind percentiles."""
    return {
        name: MetricReport(
            value=m.value,
            unit=m.unit,
            n=m.n,
            definition=m.definition,
            note=m.note,
            invalid=m.invalid,
            lower=m.lower,
            upper=m.upper,
        )
        for name, m in measured.items()
    }


def public_plan(plan: Plan) -> Plan:
    """The plan as it is stored: secrets in the server's arguments, environment and URL replaced."""
    server = plan.server
    shown = {
        "extra_args": redact(server.extra_args),
        "env": public_env(server),
        "url": redact([server.url])[0] if server.url is not None else None,
    }
    return plan.model_copy(update={"server": server.model_copy(update=shown)})


def trial_report(
    trial: Trial,
    measured: Mapping[str, MetricValue],
    validity: Validity,
    records_path: str | None,
    telemetry_path: str | None = None,
) -> TrialReport:
    """One trial as it is stored; the paths are relative to the report."""
    count, flying, client = counts(trial), in_flight(trial), trial.client
    return TrialReport(
        arm=trial.arm,
        launch=trial.launch,
        replay=trial.replay,
        complete=trial.complete,
        window=WindowReport(start_ns=trial.window.start_ns, end_ns=trial.window.end_ns, seconds=trial.window.seconds),
        validity=ValidityReport(
            valid=validity.valid,
            reasons=validity.reasons,
            notes=validity.notes,
            unsettled=validity.unsettled,
            steady_checked=validity.steady_checked,
        ),
        attempted=count.attempted,
        ok=count.ok,
        failed=count.failed,
        cut=count.cut,
        planned=trial.planned,
        warmup=count.warmup,
        failures=count.failures,
        in_flight_mean=flying.mean,
        in_flight_max=flying.maximum,
        metrics=metric_reports(measured),
        client=ClientReport(
            **_alike(client),
            slip_p99_s=_seconds(client.slip_p99_ns),
            slip_max_s=_seconds(client.slip_max_ns),
            wake_lag_p99_s=_seconds(client.wake_lag_p99_ns),
        ),
        slowest=tuple(_slow(record) for record in slowest([trial])),
        records=records_path,
        telemetry=telemetry_path,
        wall_start=trial.wall_start,
        monotonic_start_ns=trial.monotonic_start_ns,
        warnings=(*trial.warnings, *trial.telemetry.notes),
    )


def stored_trial(report: TrialReport, records: tuple[RequestRecord, ...], telemetry: Telemetry | None) -> Trial:
    """The trial that ``report`` is of, as far as metrics need it; None: its samples are not there."""
    return Trial(
        launch=report.launch,
        replay=report.replay,
        records=records,
        planned=report.planned,
        window=Window(report.window.start_ns, report.window.end_ns),
        client=ClientStats(**_alike(report.client), slip_p99_ns=None, slip_max_ns=None, wake_lag_p99_ns=None),
        telemetry=telemetry or Telemetry(notes=("the samples of the server are not beside the report",)),
        wall_start=report.wall_start,
        monotonic_start_ns=report.monotonic_start_ns,
        arm=report.arm,
    )


def _alike(client: ClientStats | ClientReport) -> dict[str, Any]:
    """What both have by the same name: all but times, which are stored in seconds."""
    return {name: getattr(client, name) for name in _ALIKE}


def _slow(record: RequestRecord) -> SlowRequest:
    return SlowRequest(
        index=record.index,
        connection=record.connection,
        ttft_s=ttft(record),
        tpot_s=tpot(record),
        e2e_s=e2e(record),
        prompt_tokens=record.prompt_tokens,
        output_tokens=known_tokens(record),
        outcome=record.outcome.value,
        detail=record.detail,
    )


def _seconds(ns: int | None) -> float | None:
    return None if ns is None else ns / 1e9
