"""The configuration file and the command line as values."""

from __future__ import annotations

import datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator

from pytest_llmperf.catalog import metric
from pytest_llmperf.fields import Gpus, Price
from pytest_llmperf.plan import Clients
from pytest_llmperf.units import parse_quantity

__all__ = ["Accept", "Budget", "Overrides", "Settings", "WorkerDevices"]


def _share(written: object) -> object:
    return parse_quantity(written, "ratio").value if isinstance(written, str | int | float) else written


def _with_unit(written: object) -> object:
    """A bare number is an error: of which currency, per what?"""
    return parse_quantity(written, "USD/h").value if isinstance(written, str | int | float) else written


class WorkerDevices(BaseModel):
    """What one xdist worker owns."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    gpus: Gpus = Field(min_length=1)


class Accept(BaseModel):
    """A known trade: a regression that someone has accepted up to a size and a day."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    test: str = Field(min_length=1)
    """Node id, its part after the last ``/``, or a pattern with ``*``."""
    metric: str
    up_to: Annotated[float, BeforeValidator(_share), Field(gt=0, le=100)]
    """Change for the worse, a ratio."""
    reason: str = Field(min_length=1)
    until: datetime.date
    """The last day on which it holds."""
    approved_by: str = Field(min_length=1)

    @field_validator("metric")
    @classmethod
    def _known(cls, name: str) -> str:
        try:
            metric(name)
        except KeyError as error:
            raise ValueError(error.args[0]) from None
        return name


class Budget(BaseModel):
    """How long a campaign may take: wall-clock seconds, or GPU hours over all its GPUs."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    written: str
    seconds: float | None = None
    gpu_hours: float | None = None

    @classmethod
    def parse(cls, written: str) -> Budget:
        """``"30 min"`` or ``"6 GPUh"``. Raises ValueError that says so."""
        dimension = "GPUh" if written.rstrip().endswith("GPUh") else "s"
        try:
            quantity = parse_quantity(written, dimension)
        except ValueError:
            raise ValueError(f"{written!r} is no budget; write e.g. '30 min' or '6 GPUh'") from None
        if quantity.value <= 0:
            raise ValueError(f"{written!r} leaves no time; write e.g. '30 min' or '6 GPUh'")
        if dimension == "s":
            return cls(written=quantity.text, seconds=quantity.value)
        return cls(written=quantity.text, gpu_hours=quantity.value)


def _budget(written: object) -> object:
    return Budget.parse(str(written))


class Settings(BaseModel):
    """The configuration file. Servers stay raw tables until one is asked for, so that overrides see all keys."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    source: str = Field(exclude=True)
    """The file, for error messages."""
    default_server: str | None = None
    url: str | None = None
    api_key_env: str | None = None
    replays: int | None = Field(default=None, ge=1, le=100)
    clients: Clients = "auto"
    report: str = "llmperf-report"
    undecided: Literal["warn", "fail"] = "warn"
    baselines: str = "baselines"
    """Folder relative to the file, or URL of a store."""
    pool: str | None = Field(default=None, min_length=1)
    """Name of the set of interchangeable runners that this one belongs to."""
    prices: dict[str, Annotated[Price, BeforeValidator(_with_unit)]] = Field(default_factory=dict)
    """GPU as NVML names it → USD per hour of one."""
    ab: str | None = None
    """``key=value``, as ``--llmperf-ab`` takes it."""
    against: str | None = None
    allow: tuple[str, ...] = ()
    """Fields that may differ besides the one declared variable."""
    budget: Annotated[Budget | None, BeforeValidator(_budget)] = None
    accept: tuple[Accept, ...] = ()
    variants: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """Several keys of a server under one name: one declared variable."""
    workloads: tuple[str, ...] = ("perfsuites/workloads",)
    """Folders, relative to the file, that workload names are looked up in."""
    servers: dict[str, dict[str, Any]] = Field(default_factory=dict)
    workers: dict[str, WorkerDevices] = Field(default_factory=dict)
    benchmark_json: str | None = None
    """Where results go in the form of pytest-benchmark, relative to the file."""


class Overrides(BaseModel):
    """What the command line says; it wins over markers and file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    server: str | None = None
    url: str | None = None
    api_key_env: str | None = None
    assignments: tuple[str, ...] = ()
    """``key=value`` of ``--llmperf-set``, applied to every server of the run."""
