"""The recorded runs of a report as a session of a baseline, and why they should not become one."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from hashlib import sha256
from pathlib import Path
from typing import Final

from pytest_llmperf.baseline.keys import Key
from pytest_llmperf.baseline.launches import stored_launch
from pytest_llmperf.baseline.provenance import Provenance
from pytest_llmperf.baseline.samples import LaunchSamples, samples_of
from pytest_llmperf.baseline.schema import Session
from pytest_llmperf.catalog import metric
from pytest_llmperf.differences import with_test
from pytest_llmperf.errors import UsageError
from pytest_llmperf.identity import Identity
from pytest_llmperf.measured import launch_values, metrics_of
from pytest_llmperf.metrics.start import start_values
from pytest_llmperf.recordfile import read_records, read_telemetry
from pytest_llmperf.records import RequestRecord
from pytest_llmperf.result import MetricReport, RunReport, TestReport, TrialReport
from pytest_llmperf.samples import StartUp, Telemetry
from pytest_llmperf.stats.launches import LaunchValues
from pytest_llmperf.stored import stored_trial

__all__ = ["ARM", "Promotion", "doubts", "promotion"]

ARM: Final = "candidate"
_ERROR_RATE: Final = 0.01


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
        start, records = _start(report, test, number), [_records(folder, trial) for trial in own]
        known = [each for each in records if each is not None]
        if len(known) == len(own):
            replays = [stored_trial(a, b, _telemetry(folder, a)) for a, b in zip(own, known, strict=True)]
            values = launch_values(test.plan, replays, start, order=order, block=order, session="")
            samples.append(samples_of(order, metrics_of(test.plan, replays, ()).values()))
            if any(trial.telemetry is not None and _inside(folder, trial.telemetry) is None for trial in own):
                notes.append(f"launch {number}: its memory and CPU samples are not beside the report")
                values = _completed(values, own)
        elif len(own) > 1:
            raise UsageError(
                f"{test.nodeid}: launch {number} has {len(own)} replays, and their records are not beside the report: "
                f"percentiles of several replays need every request"
            )
        else:
            values = _without_records(order, own[0], start)
            notes.append(f"launch {number}: no records beside the report: values are stored without samples")
        stored.append(stored_launch(values, len(own)))
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
    definitions = {name: each.definition.partition(":")[0] for trial in trials for name, each in trial.metrics.items()}
    held = {name: definitions.get(name) or metric(name).definition for launch in stored for name in launch.metrics}
    key = Key.of(identity, test.nodeid)
    return Promotion(key, identity, session, tuple(samples), held, tuple(notes))


def _records(folder: Path, trial: TrialReport) -> tuple[RequestRecord, ...] | None:
    path = _inside(folder, trial.records)
    return None if path is None else read_records(path)


def _telemetry(folder: Path, trial: TrialReport) -> Telemetry | None:
    path = _inside(folder, trial.telemetry)
    return None if path is None else read_telemetry(path)


def _inside(folder: Path, written: str | None) -> Path | None:
    """None where there is no such file; a path that leads out of the report's folder is none of its files."""
    if written is None:
        return None
    path = (folder / written).resolve()
    return path if path.is_relative_to(folder.resolve()) and path.is_file() else None


def _without_records(order: int, own: TrialReport, start: StartUp) -> LaunchValues:
    """From the values that the report itself has."""
    told = start_values([start])
    starts = {name: each.value for name, each in told.items() if each.value is not None}
    sources = _sources(own) | {name: each.source for name, each in told.items() if each.source}
    metrics = _reported(own) | starts
    return LaunchValues(metrics, order, order, "", own.ok + own.failed, own.failed, sources=sources)


def _completed(values: LaunchValues, own: Sequence[TrialReport]) -> LaunchValues:
    """With what the report itself says of a launch whose samples are gone; of several replays it says too little."""
    if len(own) != 1:
        return values
    missing = {name: value for name, value in _reported(own[0]).items() if name not in values.metrics}
    sources = {name: source for name, source in _sources(own[0]).items() if name in missing}
    return replace(values, metrics={**missing, **values.metrics}, sources={**sources, **values.sources})


def _sources(trial: TrialReport) -> dict[str, str]:
    reported = _reported(trial)
    told = {name: each.definition.partition(":")[2] for name, each in trial.metrics.items() if name in reported}
    return {name: source for name, source in told.items() if source}


def _reported(trial: TrialReport) -> dict[str, float]:
    told = {name: each for name, each in trial.metrics.items() if each.invalid is None and _told(name, each)}
    return {name: math.inf if each.value is None else each.value for name, each in told.items()}


def _told(name: str, found: MetricReport) -> bool:
    """Whether there is something to store: a number, or a percentile that lies among failed requests."""
    return found.lower is None and (found.value is not None or (found.n > 0 and metric(name).quantile is not None))


def _start(report: RunReport, test: TestReport, number: int) -> StartUp:
    launches = (each for campaign in report.campaigns if test.nodeid in campaign.tests for each in campaign.launches)
    return next((each.start_up for each in launches if each.index == number), StartUp())
