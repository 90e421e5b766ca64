"""The stored form of what the gate remembers. A reader believes a file of this form: bounds and pairs are checked here.

Bounds are far from anything that is measured. What they keep out would end a run by arithmetic, or never end it.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Annotated, Final, Literal, Self

from pydantic import AfterValidator, AwareDatetime, BaseModel, ConfigDict, Field, FiniteFloat, model_validator

from pytest_llmperf.baseline.codec import launch_fault
from pytest_llmperf.baseline.schema import StoredLaunch
from pytest_llmperf.catalog import metric
from pytest_llmperf.stats.family import gate_row
from pytest_llmperf.stats.prior import MOST_D0

__all__ = [
    "SCHEMA",
    "BlockSequence",
    "Durations",
    "Noise",
    "NoiseKey",
    "PriorRow",
    "Remembered",
    "SequenceKey",
    "StoredNoise",
    "Undecided",
]

SCHEMA: Final = "pytest-llmperf/state/1"
MOST_VARIANCE: Final = 1e4
"""Of log values: launches that differ by a factor of e^100."""
MOST_LAUNCHES: Final = 1000
MOST_REPLAYS: Final = 100
MOST_REQUESTS: Final = 10**12


def _known(name: str) -> str:
    try:
        metric(name)
    except KeyError as error:
        raise ValueError(error.args[0]) from None
    return name


def _whole_key(key: dict[str, str]) -> dict[str, str]:
    if set(key) != {field.name for field in fields(NoiseKey)}:
        raise ValueError(f"a key of noise holds {', '.join(field.name for field in fields(NoiseKey))}")
    return key


Metric = Annotated[str, AfterValidator(_known)]
Variance = Annotated[FiniteFloat, Field(ge=0, le=MOST_VARIANCE)]
Taken = Annotated[FiniteFloat, Field(gt=0, le=1e8)]
"""Seconds."""


class _Form(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)


class Remembered(_Form):
    """A file of it."""

    schema_: Literal["pytest-llmperf/state/1"] = Field(default=SCHEMA, alias="schema")


@dataclass(frozen=True, slots=True)
class SequenceKey:
    """The pair whose blocks belong together; a change of any part is another sequence."""

    baseline: str
    """Digest of the input identity."""
    candidate: str
    test: str
    workload: str
    pool: str | None
    config: str
    """Digest of the suite's and the gate's configuration."""


@dataclass(frozen=True, slots=True)
class NoiseKey:
    """Measurements that share their noise."""

    runner: str
    """Fingerprint: GPU model and count, driver, host class."""
    workload: str
    engine: str
    """Family."""
    quantization: str


class PriorRow(_Form):
    """What was believed of a metric's noise before the first block."""

    s0_squared: FiniteFloat = Field(ge=0, le=2.5 * MOST_VARIANCE)
    """A prior of few launches is up to 2.2 times the variance that they showed."""
    d0: FiniteFloat = Field(gt=0, le=MOST_D0)


class BlockSequence(Remembered):
    """The blocks of one pair until it is decided. Its prior is frozen: it is that of the first block for good."""

    key: dict[str, str | None]
    number: int = Field(default=1, ge=1)
    """How many sequences this pair has had, this one included."""
    earlier: tuple[str, ...] = ()
    """Verdicts of those before."""
    status: Literal["open", "decided"] = "open"
    verdict: str | None = None
    """The last, also of an open one."""
    baseline: tuple[StoredLaunch, ...] = ()
    candidate: tuple[StoredLaunch, ...] = ()
    prior: dict[Metric, PriorRow]
    metrics: tuple[Metric, ...] = ()
    """The gated family, fixed before the first block."""
    max_blocks: int = Field(default=8, ge=2, le=100)
    created: AwareDatetime
    updated: AwareDatetime

    @model_validator(mode="after")
    def _paired(self) -> Self:
        """Each block has a launch of each arm, and each launch a place of its own and numbers that can be."""
        arms = [[launch.block for launch in arm] for arm in (self.baseline, self.candidate)]
        if sorted(arms[0]) != sorted(arms[1]) or len(set(arms[0])) < len(arms[0]):
            raise ValueError("a block has not one launch of each arm")
        launches = (*self.baseline, *self.candidate)
        if len({launch.order for launch in launches}) < len(launches):
            raise ValueError("two launches have the same order")
        if len(arms[0]) > self.max_blocks:
            raise ValueError(f"{len(arms[0])} blocks, where at most {self.max_blocks} were to be run")
        for name in self.metrics:
            if gate_row(name) is None:
                raise ValueError(f"{name} cannot be gated")
        for launch in launches:
            if fault := _fault(launch):
                raise ValueError(f"launch {launch.order}: {fault}")
        return self


def _fault(launch: StoredLaunch) -> str | None:
    if not (0 <= launch.block <= MOST_REQUESTS and 0 <= launch.order <= MOST_REQUESTS):
        return "no place in a job"
    if not 1 <= launch.replays <= MOST_REPLAYS:
        return f"replays from 1 to {MOST_REPLAYS}"
    if not 0 <= (launch.n_tokens or 0) <= MOST_REQUESTS or launch.n_requests > MOST_REQUESTS:
        return "more requests or tokens than there can be"
    return launch_fault(launch)


class StoredNoise(_Form):
    """How the launches of one arm of one job varied."""

    created: AwareDatetime
    spread: dict[Metric, tuple[Variance, Annotated[int, Field(ge=2, le=MOST_LAUNCHES)]]]
    """Metric → (variance of one launch's log value, launches that it rests on)."""
    within: dict[Metric, Variance] = Field(default_factory=dict)
    """Metric → variance between the log values of replays of one launch."""
    replays: int = Field(default=1, ge=1, le=MOST_REPLAYS)
    """Per launch."""


class Noise(Remembered):
    """The groups of one kind of measurement."""

    key: dict[str, str]
    groups: tuple[StoredNoise, ...] = ()


class Durations(Remembered):
    """Seconds that launches of one server and replays of its tests have taken, oldest first."""

    launch_s: tuple[Taken, ...] = ()
    replay_s: dict[str, tuple[Taken, ...]] = Field(default_factory=dict)
    """By node id."""
    noise: dict[str, Annotated[dict[str, str], AfterValidator(_whole_key)]] = Field(default_factory=dict)
    """By node id: where the noise of that test on this server is kept."""


class Undecided(Remembered):
    """How often in a row a test ended undecided."""

    test: str
    runs: int = Field(default=0, ge=0)
