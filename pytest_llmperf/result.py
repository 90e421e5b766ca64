"""The stored form of a run: what ``report.json`` holds and what ``llmperf.run()`` returns.

Frozen pydantic models; ``SCHEMA`` changes when a reader of the old form would misread the new one. Times are integer
ns of the run's monotonic clock, everything else is in base units (s, B, tok/s, req/s, ratio).
"""

from __future__ import annotations

from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from pytest_llmperf.comparisons import ComparisonReport, JudgementReport
from pytest_llmperf.gate import Check, VerdictName
from pytest_llmperf.identity import Identity
from pytest_llmperf.plan import Plan
from pytest_llmperf.samples import StartUp

__all__ = [
    "SCHEMA",
    "CampaignReport",
    "ClientReport",
    "LaunchReport",
    "MetricReport",
    "Result",
    "RunReport",
    "SlowRequest",
    "TestReport",
    "TrialReport",
    "ValidityReport",
    "VerdictName",
    "WindowReport",
]

SCHEMA: Final = "pytest-llmperf/report/1"


class _Stored(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True, protected_namespaces=())


class MetricReport(_Stored):
    """One number, with what it rests on."""

    value: float | None
    """In ``unit``; None where it is not measured or has no finite value, then ``note`` or ``invalid`` says why."""
    unit: str
    n: int
    """Values behind it: requests for per-request metrics, chunk gaps for icl, tokens for itl, samples for memory."""
    definition: str
    note: str | None = None
    invalid: str | None = None
    """Why the value cannot be trusted and is not given, with the remedy."""
    lower: float | None = None
    """Of what is known by the bucket of a histogram alone, ``value`` being interpolated: it lies above this."""
    upper: float | None = None
    """It lies at or below this; None beside a ``lower``: nobody knows how far above."""


class WindowReport(_Stored):
    """The interval that rates are taken over."""

    start_ns: int
    end_ns: int
    seconds: float


class ValidityReport(_Stored):
    """Whether the trial can be trusted. ``reasons`` make it INVALID; ``notes`` only qualify it."""

    valid: bool
    reasons: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    unsettled: str | None = None
    """The load was not in a steady state: what changed inside the window, and what to do. No failure by itself."""
    steady_checked: bool = False
    """False where the window was too short to tell, or the plan itself changes the load (ramp, trace)."""


class ClientReport(_Stored):
    """How the client itself behaved; see ``records.ClientStats``."""

    stamps: Literal["kernel", "user"]
    reads: int
    unstamped_reads: int
    shared_reads: int
    output_chunks: int
    cpu_seconds: float
    wall_seconds: float
    slip_p99_s: float | None
    slip_max_s: float | None
    wake_lag_p99_s: float | None
    realtime: bool = False
    processes: int = 1
    cpu_total_seconds: float | None = None
    busiest: float | None = None
    retried: int = 0


class SlowRequest(_Stored):
    """One of the slowest requests of a trial, or an example of a failure, for the message of a failed test."""

    index: int
    connection: int
    ttft_s: float | None
    tpot_s: float | None
    e2e_s: float | None
    prompt_tokens: int | None
    output_tokens: int | None
    outcome: str
    detail: str | None = None


class TrialReport(_Stored):
    """One replay of one test's load on one launch."""

    arm: str
    launch: int
    replay: int
    complete: bool
    window: WindowReport
    validity: ValidityReport
    attempted: int
    """Measured requests sent; = ok + failed + cut."""
    ok: int
    failed: int
    cut: int
    planned: int
    warmup: int
    failures: dict[str, int] = Field(default_factory=dict)
    """Failure class → count."""
    in_flight_mean: float
    in_flight_max: int
    metrics: dict[str, MetricReport]
    client: ClientReport
    slowest: tuple[SlowRequest, ...] = ()
    records: str | None = None
    """Path of the requests' records, relative to the report."""
    telemetry: str | None = None
    """Path of the samples of the server's memory and CPU; None where there are none."""
    discarded: str | None = None
    """Why it counts for nothing although it was measured; None where it counts."""
    wall_start: float
    """Unix time of ``monotonic_start_ns``, for correlation only."""
    monotonic_start_ns: int
    warnings: tuple[str, ...] = ()


class LaunchReport(_Stored):
    """One server process, or one connection to a server that was already running."""

    index: int
    arm: Literal["baseline", "candidate"] = "candidate"
    block: int | None = None
    """Interleaved launches: the block of two, one per arm."""
    priming: bool = False
    """Unjudged, to warm what a first start of a configuration has to make."""
    lifetime_s: float | None = None
    """From the start to the end of the server (of a running server: of our connection)."""
    gpus: int = 0
    """That it was given; times ``lifetime_s`` they are what it cost."""
    command: tuple[str, ...] | None
    """Secrets replaced; None for a targeted server."""
    url: str
    pid: int | None
    start_up: StartUp = StartUp()
    log: str | None
    """Path of the server's log, relative to the report."""
    exit_code: int | None = None
    error: str | None = None


class CampaignReport(_Stored):
    """All selected tests of one server specification, and the launches that they shared."""

    server: str
    mode: Literal["sla", "stored", "interleaved", "screened", "targeted", "pair", "refresh"] = "sla"
    salt: str
    """Made anew for each run; with a test's node id, block, replay and seed it gives the texts that were sent."""
    identity: Identity | None
    """Of the candidate."""
    baseline_identity: Identity | None = None
    launches: tuple[LaunchReport, ...]
    tests: tuple[str, ...]


class Result(_Stored):
    """What ``llmperf.run()`` returns: the candidate's measurement. ``result.value("ttft_p95")`` is in base units."""

    nodeid: str
    identity: Identity
    metrics: dict[str, MetricReport]
    """Over all replays of all launches."""
    trials: tuple[TrialReport, ...]
    launches: tuple[LaunchReport, ...]
    attempted: int
    ok: int
    failed: int
    cut: int
    baseline: dict[str, MetricReport] | None = None
    """The same metrics of the other arm, where both ran."""

    def __repr__(self) -> str:
        """Short: pytest prints it beside a failed assertion."""
        return f"<Result of {self.nodeid}: {self.ok} ok, {self.failed} failed, {self.cut} cut>"

    def value(self, name: str) -> float:
        """The metric's value in its base unit. Raises KeyError where it is unknown, ValueError where not measured."""
        found = self.metrics.get(name)
        if found is None:
            raise KeyError(f"{name!r} is not among the measured metrics: {', '.join(sorted(self.metrics))}")
        if found.value is None:
            raise ValueError(
                f"{name} is invalid: {found.invalid}"
                if found.invalid
                else f"{name} was not measured: {found.note or 'no data'}"
            )
        return found.value


class TestReport(_Stored):
    """One test: what it asked for, what was measured, how it was judged."""

    __test__ = False  # not a test class, whatever its name

    nodeid: str
    verdict: VerdictName
    outcome: Literal["passed", "failed", "error", "skipped", "interrupted"]
    """pytest's outcome; a test may fail by an assertion of its own although every check passed."""
    duration_s: float
    plan: Plan
    identity: Identity | None
    metrics: dict[str, MetricReport] = Field(default_factory=dict)
    trials: tuple[TrialReport, ...] = ()
    slas: tuple[Check, ...] = ()
    judgement: JudgementReport | None = None
    """None where no comparison was asked for."""
    comparisons: tuple[ComparisonReport, ...] = ()
    findings: tuple[dict[str, Any], ...] = ()
    notes: tuple[str, ...] = ()
    """What was done besides, e.g. the baseline that was refreshed, old and new."""
    message: str | None = None

    @property
    def counted(self) -> tuple[TrialReport, ...]:
        """The trials behind ``metrics``: the candidate's, without the discarded; where none is left, all."""
        own = tuple(each for each in self.trials if each.arm == "candidate" and each.discarded is None)
        return own or self.trials


class RunReport(_Stored):
    """``report.json``."""

    schema_: Literal["pytest-llmperf/report/1"] = Field(default=SCHEMA, alias="schema")
    plugin_version: str
    created: str
    """ISO 8601, UTC."""
    partial: bool
    """True while the run lasts, and for good where it was interrupted or killed."""
    environment: dict[str, str]
    prices: dict[str, float] = Field(default_factory=dict)
    """GPU name → USD per hour of one, as the configuration had them."""
    campaigns: tuple[CampaignReport, ...] = ()
    tests: tuple[TestReport, ...] = ()
