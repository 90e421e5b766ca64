"""The recorded runs of a report as a session of a baseline, and why they should not become one."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from pathlib import Path
from typing import Final

from pytest_llmperf.baseline.keys import Key
from pytest_llmperf.baseline.provenance import Provenance
from pytest_llmperf.baseline.samples import LaunchSamples
from pytest_llmperf.baseline.schema import Session, StoredLaunch
from pytest_llmperf.catalog import FAMILIES, metric
from pytest_llmperf.differences import with_test
from pytest_llmperf.errors import UsageError
from pytest_llmperf.identity import Identity
from pytest_llmperf.recordfile import read_records
from pytest_llmperf.records import ClientStats, RequestRecord, Trial, Window
from pytest_llmperf.result import RunReport, TestReport, TrialReport
from pytest_llmperf.samples import Telemetry

__all__ = ["ARM", "Promotion", "doubts", "promotion"]

ARM: Final = "candidate"
_ERROR_RATE: Final = 0.01
_LARGEST_OF: Final = ("peak_memory", "startup_memory", "memory_growth")
_CPU: Final = "cpu_seconds_per_mtok"


@dataclass(frozen=True, slots=True)
class Promotion:
    """A test of a report as it would be stored."""

    key: Key
    identity: Identity
    session: Session
    samples: tuple[LaunchSamples, ...]
    definitions: dict[str, str]
    notes: tuple[str, ...]


def doubts(report: RunReport, test: TestReport) -> list[str]:
    """Why the runs should not be accepted unless someone insists; empty where nothing speaks against it."""
    found = []
    if report.partial:
        found.append("the report is partial: the run was interrupted")
    if test.outcome in ("error", "interrupted", "skipped"):
        found.append(f"the test's outcome is {test.outcome!r}")
    for trial in (own := _trials(test)):
        name = f"launch {trial.launch}, replay {trial.replay}"
        if not trial.complete:
            found.append(f"{name}: the trial was interrupted")
        if not trial.validity.valid:
            found.append(f"{name}: not valid: {'; '.join(trial.validity.reasons)}")
    failed, sent = sum(trial.failed for trial in own), sum(trial.ok + trial.failed for trial in own)
    if failed > _ERROR_RATE * sent:
        found.append(f"{failed} of {sent} requests failed")
    return found


def _trials(test: TestReport) -> list[TrialReport]:
    return [trial for trial in test.trials if trial.arm == ARM and trial.discarded is None]


def promotion(
    report: RunReport, folder: Path, test: TestReport, provenance: Provenance, reason: str, pool: str | None
) -> Promotion:
    """What would be stored of ``test``. ``folder`` is that of the report. Raises UsageError where nothing can be."""
    trials = _trials(test)
    if test.identity is None or not trials:
        lost = any(trial.arm == ARM for trial in test.trials)
        found = f"every launch of the {ARM} was discarded" if lost else f"no {ARM} was measured"
        raise UsageError(f"{test.nodeid}: {found} in this report")
    identity = with_test(test.identity, test.plan)
    launches: dict[int, list[TrialReport]] = defaultdict(list)
    for trial in trials:
        launches[trial.launch].append(trial)
    stored, samples, notes = [], [], []
    for order, (number, own) in enumerate(sorted(launches.items())):
        records = [_records(folder, trial) for trial in own]
        if all(each is not None for each in records):
            known = [each for each in records if each is not None]
            samples.append(LaunchSamples(order, _values(known)))
        elif len(own) > 1:
            raise UsageError(
                f"{test.nodeid}: launch {number} has {len(own)} replays, and their records are not beside the report: "
                f"percentiles of several replays need every request"
            )
        else:
            known = []
            notes.append(f"launch {number}: no records beside the report: values are stored without samples")
        stored.append(_launch(order, own, known, test, _ready_s(report, test, number)))
    if len(stored) == 1:
        notes.append("one launch says little: a refresh takes three")
    # The time is that of the runs, so that sessions sort by it; the digest makes a second promotion of them the same.
    taken = datetime.fromisoformat(report.created)
    digest = sha256(f"{report.created} {test.model_dump_json()}".encode()).hexdigest()[:6]
    session = Session(
        id=f"{taken:%Y%m%dT%H%M%SZ}-{digest}",
        created=report.created,
        by=provenance.by,
        reason=f"promoted: {reason}",
        commit=provenance.commit,
        node=f"promoted on {provenance.node}",
        pool=pool,
        plugin_version=report.plugin_version,
        environment=identity.environment,
        consequence=identity.consequence,
        launches=tuple(stored),
    )
    definitions = {name: each.definition for trial in trials for name, each in trial.metrics.items()}
    held = {name: definitions.get(name) or metric(name).definition for launch in stored for name in launch.metrics}
    key = Key.of(identity, test.nodeid)
    return Promotion(key, identity, session, tuple(samples), held, tuple(notes))


def _records(folder: Path, trial: TrialReport) -> tuple[RequestRecord, ...] | None:
    """None where there are none; a path that leads out of the report's folder is none of its records."""
    if trial.records is None:
        return None
    path = (folder / trial.records).resolve()
    return read_records(path) if path.is_relative_to(folder.resolve()) and path.is_file() else None


def _values(records: Sequence[tuple[RequestRecord, ...]]) -> dict[str, Sequence[float]]:
    from pytest_llmperf.metrics.latency import pool

    together = [record for each in records for record in each]
    pools = {family: pool(together, family).values for family in FAMILIES}
    return {family: values for family, values in pools.items() if any(map(math.isfinite, values))}


def _launch(
    order: int,
    own: Sequence[TrialReport],
    records: Sequence[tuple[RequestRecord, ...]],
    test: TestReport,
    ready_s: float | None,
) -> StoredLaunch:
    from pytest_llmperf.metrics.request import known_tokens

    values = _single(own[0]) if len(own) == 1 else _pooled(own, records, test)
    ready = {} if ready_s is None else {"time_to_ready": ready_s}

    counts = [known_tokens(record) for each in records for record in each if not record.failed]
    return StoredLaunch(
        order=order,
        block=order,
        n_requests=sum(trial.ok + trial.failed for trial in own),
        n_failed=sum(trial.failed for trial in own),
        n_tokens=sum(count or 0 for count in counts) if counts and None not in counts else None,
        replays=len(own),
        metrics={**values, **ready},
        time_to_ready_s=ready_s,
    )


def _told(name: str, value: float | None, n: int) -> bool:
    """Whether there is something to store: a number, or a percentile that lies among failed requests."""
    return value is not None or (n > 0 and metric(name).quantile is not None)


def _single(trial: TrialReport) -> dict[str, float | None]:
    return {
        name: each.value
        for name, each in trial.metrics.items()
        if each.invalid is None and _told(name, each.value, each.n)
    }


def _pooled(
    own: Sequence[TrialReport], records: Sequence[tuple[RequestRecord, ...]], test: TestReport
) -> dict[str, float | None]:
    """As for the launches of a run: requests pooled, rates over all windows, the largest memory, CPU time by tokens."""
    from pytest_llmperf.metrics.trial import measure

    trials = [_trial(trial, each) for trial, each in zip(own, records, strict=True)]
    names = {name for trial in own for name in trial.metrics}
    slo = test.plan.slo.limits if test.plan.slo is not None else None
    measured = measure(trials, slo, sorted(names))
    found = {
        name: each.value for name, each in measured.items() if each.invalid is None and _told(name, each.value, each.n)
    }
    for name in (*_LARGEST_OF, _CPU):
        values = [each.value for trial in own if (each := trial.metrics.get(name)) is not None]
        numbers = [value for value in values if value is not None]
        if len(numbers) == len(own):
            found[name] = max(numbers) if name != _CPU else _by_tokens(own, numbers)
    return {name: value for name, value in found.items() if value is None or math.isfinite(value)}


def _by_tokens(own: Sequence[TrialReport], values: Sequence[float]) -> float:
    """Mean weighted by the output tokens of the windows; equally where a rate is unknown."""
    rates = [rate.value if (rate := trial.metrics.get("output_throughput")) else None for trial in own]
    known = [rate * trial.window.seconds for rate, trial in zip(rates, own, strict=True) if rate]
    weights: Sequence[float] = known if len(known) == len(own) else (1.0,) * len(own)
    return sum(value * weight for value, weight in zip(values, weights, strict=True)) / sum(weights)


def _trial(report: TrialReport, records: tuple[RequestRecord, ...]) -> Trial:
    """As far as metrics of requests need it; memory and CPU samples are not in a report."""
    client = report.client
    return Trial(
        launch=report.launch,
        replay=report.replay,
        records=records,
        planned=report.planned,
        window=Window(report.window.start_ns, report.window.end_ns),
        client=ClientStats(
            stamps=client.stamps,
            reads=client.reads,
            unstamped_reads=client.unstamped_reads,
            shared_reads=client.shared_reads,
            output_chunks=client.output_chunks,
            cpu_seconds=client.cpu_seconds,
            wall_seconds=client.wall_seconds,
            slip_p99_ns=None,
            slip_max_ns=None,
            wake_lag_p99_ns=None,
        ),
        telemetry=Telemetry(),
        wall_start=report.wall_start,
        monotonic_start_ns=report.monotonic_start_ns,
        arm=report.arm,
    )


def _ready_s(report: RunReport, test: TestReport, number: int) -> float | None:
    for campaign in report.campaigns:
        if test.nodeid in campaign.tests:
            return next((each.start_up.time_to_ready_s for each in campaign.launches if each.index == number), None)
    return None
