"""What is observed of a server beside its load: how it started, memory, GPUs, the engine's own figures. Frozen.

A quantity that a source does not tell is None or absent, never 0. All ``t_ns`` are of the run's one monotonic clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, get_args

__all__ = [
    "COUNTERS",
    "GPU_LOST",
    "HISTOGRAMS",
    "Buckets",
    "Counter",
    "EngineSample",
    "Gauge",
    "GpuSample",
    "Histogram",
    "HostSample",
    "Quantity",
    "StartUp",
    "Telemetry",
]

Gauge = Literal[
    "running", "waiting", "kv_usage", "kv_capacity_tokens", "acceptance_length",
    "prompt_throughput", "generation_throughput",
]  # fmt: skip
"""Requests that run and wait, ratio in 0..1 (KV usage), tokens (capacity; mean accepted and own ones per verification
step), tokens per second."""
Counter = Literal[
    "preemptions", "prefix_queries", "prefix_hits", "prompt_tokens", "requests", "drafts", "accepted_tokens"
]  # fmt: skip
"""Tokens (prefix cache queries and hits, prompt, accepted of drafts), requests finished well, counts (preemptions,
drafts: verification steps of speculative decoding)."""
Histogram = Literal["ttft", "queue_wait", "prefill_time", "decode_time", "e2e"]
"""In seconds."""
Quantity = Literal[Gauge, Counter, Histogram]
"""What engines state of themselves, under one name each."""

COUNTERS: Final[frozenset[Counter]] = frozenset(get_args(Counter))
"""Only their growth means something; a fall is a restart of the server. Absent until they first count, with some
engines."""
HISTOGRAMS: Final[frozenset[Histogram]] = frozenset(get_args(Histogram))
"""As counters; all other quantities are single numbers."""

GPU_LOST: Final = "GPU lost"
"""How a note of the telemetry begins that says that a GPU failed: trouble of the machine, no measurement."""


@dataclass(frozen=True, slots=True)
class StartUp:
    """What a launch showed until it was ready; of a server that ran already only what it tells."""

    time_to_ready_s: float | None = None
    """From the start of the process to its first answer."""
    cold: bool = False
    """Whether it had to compile what later launches find in a cache."""
    memory_bytes: int | None = None
    """Largest memory of the server's processes until then: of its GPUs, on the CPU resident."""
    compile_s: float | None = None
    """As its log states it."""
    kv_capacity_tokens: float | None = None
    max_concurrency: float | None = None
    """Requests of the greatest length that its KV cache holds at once, as its log states it."""
    whole_gpus: bool = False
    """Whether ``memory_bytes`` is that of whole GPUs: the driver did not tell the server's processes apart."""


@dataclass(frozen=True, slots=True)
class HostSample:
    """Memory and CPU of the server's process tree at one time."""

    t_ns: int
    rss_bytes: int
    cpu_seconds: float
    processes: int


@dataclass(frozen=True, slots=True)
class GpuSample:
    """One GPU at one time. Fields that cost the driver more are read more seldom, and None in between."""

    t_ns: int
    gpu: int
    """NVML index."""
    used_bytes: int
    server_bytes: int | None
    """Memory of the server's own processes; None where the driver does not tell."""
    foreign_pids: tuple[int, ...] | None = None
    """Processes that compute on it and are not the server's; None where that cannot be told."""
    utilization: float | None = None
    """Share of the driver's sampling period in which a kernel ran: 1 says nothing of how much of the GPU it used."""
    power_w: float | None = None
    energy_j: float | None = None
    """Since the driver was loaded."""
    temperature_c: float | None = None
    sm_clock_mhz: int | None = None
    memory_clock_mhz: int | None = None
    throttle: int | None = None
    """NVML's clock event reasons, a bit mask."""
    sm_activity: float | None = None
    """Share of time and of multiprocessors with a warp on them (GPM), since the sample before."""
    dram_activity: float | None = None
    """Share of the peak memory bandwidth in use (GPM), since the sample before."""


@dataclass(frozen=True, slots=True)
class Buckets:
    """A Prometheus histogram at one time: counts since the server began."""

    count: float
    total: float
    """Sum of the observations, in seconds."""
    bounds: tuple[float, ...] = ()
    """Upper bounds, rising; the last may be infinite."""
    counts: tuple[float, ...] = ()
    """Observations up to each bound (cumulative)."""


@dataclass(frozen=True, slots=True)
class EngineSample:
    """What the engine's page of metrics, or a line of its log, said at one time, under our names."""

    t_ns: int
    """Half-way between asking and the answer; of a line, the first look at the log that found it."""
    values: Mapping[Quantity, float]
    histograms: Mapping[Quantity, Buckets] = field(default_factory=dict)
    logged: bool = False
    """Whether it is a line of the log."""
    pages: tuple[EngineSample, ...] = ()
    """Of a server whose processes have pages of their own: each of them, always in the same order."""
    untold: Mapping[Quantity, str] = field(default_factory=dict)
    """What the page states as something that it cannot be (negative, no number, a share over 1), and how."""


@dataclass(frozen=True, slots=True)
class Telemetry:
    """Samples taken beside the load. An empty tuple means "not measured", never 0."""

    host: tuple[HostSample, ...] = ()
    gpu: tuple[GpuSample, ...] = ()
    gpus: tuple[int, ...] | None = None
    """The GPUs that hold the server's memory, as far as known; None: it computes on the CPU, in host memory."""
    notes: tuple[str, ...] = ()
    """Why a source is absent, gaps of the sampler itself."""
    engine: tuple[EngineSample, ...] = ()
    preemption_warnings: int | None = None
    """Requests preempted while the load ran, as the server's log counts them; None: it does not, or may not have."""
    log_errors: tuple[str, ...] = ()
    """Lines of the server's log, written while the load ran, that report an error; the first few, without secrets."""
