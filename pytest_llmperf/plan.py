"""What a test asks for: server, workload, load, limits. Frozen, validated, storable; made before anything runs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from pytest_llmperf.catalog import metric
from pytest_llmperf.units import parse_quantity

__all__ = [
    "LAUNCH_ONLY",
    "Fixed",
    "Lengths",
    "LoadProfile",
    "Lognormal",
    "Plan",
    "ServerSpec",
    "SharedPrefix",
    "Sla",
    "Slo",
    "TimeLimits",
    "Uniform",
    "Workload",
]


def _seconds(written: object) -> object:
    return parse_quantity(written, "s").value if isinstance(written, str) else written


Seconds = Annotated[float, BeforeValidator(_seconds), Field(gt=0, allow_inf_nan=False)]
"""Written as ``"500 ms"``; a validated model holds seconds."""


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())


class Fixed(_Frozen):
    """Every length is ``tokens``."""

    kind: Literal["fixed"] = "fixed"
    tokens: int = Field(ge=1)


class Uniform(_Frozen):
    """Whole numbers from ``low`` to ``high``, both included, equally likely."""

    kind: Literal["uniform"] = "uniform"
    low: int = Field(ge=1)
    high: int

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.high < self.low:
            raise ValueError(f"high ({self.high}) is below low ({self.low})")
        return self


class Lognormal(_Frozen):
    """Lengths whose logarithm is normal: ``median`` tokens, ``sigma`` on the natural log scale, clipped."""

    kind: Literal["lognormal"] = "lognormal"
    median: float = Field(ge=1)
    sigma: float = Field(gt=0, le=3)
    low: int = Field(default=1, ge=1)
    high: int = Field(default=1_000_000, ge=1)

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.high < self.low:
            raise ValueError(f"high ({self.high}) is below low ({self.low})")
        return self


def _lengths(written: object) -> object:
    """``64`` is short for a fixed length; ``{uniform = [32, 128]}`` for a uniform one."""
    if isinstance(written, int) and not isinstance(written, bool):
        return {"kind": "fixed", "tokens": written}
    if isinstance(written, Mapping) and set(written) == {"uniform"}:
        bounds = written["uniform"]
        if not isinstance(bounds, list | tuple) or len(bounds) != 2:
            raise ValueError(f"uniform = {bounds!r}: write [low, high]")
        return {"kind": "uniform", "low": bounds[0], "high": bounds[1]}
    if isinstance(written, Mapping) and set(written) == {"lognormal"} and isinstance(written["lognormal"], Mapping):
        return {"kind": "lognormal", **written["lognormal"]}
    return written


Lengths = Annotated[Fixed | Uniform | Lognormal, Field(discriminator="kind"), BeforeValidator(_lengths)]


class SharedPrefix(_Frozen):
    """The first ``tokens`` tokens of a prompt are one of ``groups`` texts; the rest is unique."""

    groups: int = Field(ge=1)
    tokens: int = Field(ge=1)


class Workload(_Frozen):
    """Lengths and structure of the requests, independent of when they are sent."""

    name: str
    api: Literal["chat", "completions", "tgi", "llamacpp", "triton", "ollama-chat", "ollama-generate"] = "chat"
    input: Lengths
    output: Lengths
    shared_prefix: SharedPrefix | None = None
    sampling: dict[str, Any] = Field(default_factory=dict)
    """Merged into every request body, e.g. ``{"temperature": 0}``."""


class LoadProfile(_Frozen):
    """When requests are sent. Exactly one of ``concurrency`` (closed loop) and ``request_rate`` (open loop)."""

    concurrency: int | None = Field(default=None, ge=1, le=100_000)
    request_rate: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """Requests per second."""
    arrival: Literal["constant", "poisson"] | None = None
    requests: int | None = Field(default=None, ge=1)
    """Measured requests; exactly one of ``requests`` and ``duration``."""
    duration: Seconds | None = None
    """Length of the measured window in seconds."""
    warmup: int | None = Field(default=None, ge=0)
    """Requests before the window; default: twice the concurrency, or two seconds of the rate, at least 2."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if (self.concurrency is None) == (self.request_rate is None):
            raise ValueError("give exactly one of concurrency (closed loop) and request_rate (open loop)")
        if (self.requests is None) == (self.duration is None):
            raise ValueError("give exactly one of requests and duration")
        if self.arrival is not None and self.request_rate is None:
            raise ValueError("arrival belongs to request_rate (open loop), not to concurrency")
        return self

    @property
    def open_loop(self) -> bool:
        return self.request_rate is not None

    @property
    def warmup_requests(self) -> int:
        if self.warmup is not None:
            return self.warmup
        if self.concurrency is not None:
            return max(2, 2 * self.concurrency)
        assert self.request_rate is not None
        return max(2, math.ceil(2 * self.request_rate))


class TimeLimits(_Frozen):
    """Time-outs of one request, each a failure class of its own, and the limit of a whole run. Seconds."""

    connect: Seconds = 10.0
    first_token: Seconds = 120.0
    no_progress: Seconds = 60.0
    request: Seconds = 600.0
    run: Seconds = 3600.0


class Sla(_Frozen):
    """An absolute limit on one metric. Ceiling or floor follows from the metric."""

    metric: str
    limit: float
    """In the metric's base unit."""
    written: str
    confidence: float | None = Field(default=None, gt=0.5, lt=1)
    """None: the observed value decides. Else a percentile must be *shown* to hold with this confidence."""

    @property
    def ceiling(self) -> bool:
        return metric(self.metric).better == "lower"


class Slo(_Frozen):
    """Per-request limits in seconds: a request that meets all of them is good (goodput)."""

    limits: dict[str, float]
    """Family name (``ttft``, ``tpot``, ``e2e`` …) → ceiling."""


LAUNCH_ONLY = ("extra_args", "env", "port")
"""Fields of a server that only a launch can apply."""


class ServerSpec(_Frozen):
    """One server configuration. Equal specifications share launches."""

    name: str
    engine: str
    """A key of ``engines.ENGINES``."""
    url: str | None = None
    """A running server; then nothing is launched."""
    model: str | None = None
    """Path or name; None where the engine has a default or the running server has exactly one."""
    api_key_env: str | None = None
    """Name of the environment variable with the API key; never the key."""
    ca_file: Path | None = None
    """Certificates to trust besides the system's, for https URLs."""
    tokenizer: Path | None = None
    """``tokenizer.json`` of the model: counts whole texts, to check the server's counts or to stand in for them."""
    max_num_seqs: int | None = Field(default=None, ge=1)
    max_model_len: int | None = Field(default=None, ge=1)
    enable_prefix_caching: bool | None = None
    threads: int | None = Field(default=None, ge=1)
    """CPU threads of the engine, for engines that compute on the CPU."""
    extra_args: tuple[str, ...] = ()
    env: dict[str, str] = Field(default_factory=dict)
    gpus: tuple[int, ...] = ()
    port: int | None = Field(default=None, ge=1, le=65535)
    """None: a free port."""
    startup_timeout: Seconds = 900.0
    limits: TimeLimits = TimeLimits()

    @model_validator(mode="after")
    def _applicable(self) -> Self:
        for name in LAUNCH_ONLY if self.url is not None else ():
            if getattr(self, name) != type(self).model_fields[name].get_default(call_default_factory=True):
                raise ValueError(f"{name} cannot be applied to a server that is running already (url is set)")
        return self

    @property
    def targeted(self) -> bool:
        return self.url is not None


class Plan(_Frozen):
    """Everything one test asks for."""

    nodeid: str
    server: ServerSpec
    workload: Workload
    load: LoadProfile
    slas: tuple[Sla, ...] = ()
    slo: Slo | None = None
    replays: int = Field(default=1, ge=1, le=100)
    seed: int = 0
