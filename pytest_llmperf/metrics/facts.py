"""What a load was asked to be, for the judgement of what came of it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from pytest_llmperf.metrics.gpu_validity import GpuFacts

__all__ = ["LoadFacts"]


@dataclass(frozen=True, slots=True)
class LoadFacts:
    """What was asked for, as far as it decides what a trial must look like."""

    request_rate: float | None = None
    """Requests per second in open loop; None in closed loop."""
    concurrency: int | None = None
    """Requests in flight in closed loop; None in open loop."""
    targeted: bool = False
    """Whether the server ran already: then several may answer at its address."""
    shared_prefix: bool = False
    """Whether the workload asks for prompts with a common beginning."""
    recorded: bool = False
    """Whether its texts are a data set's: what these have in common is the user's to know."""
    template_tokens: float = 0.0
    """Prompt tokens that every request has in common whatever its text: start of text, chat template."""
    asked: Collection[str] = field(default_factory=tuple)
    """Metrics that limits were set on."""
    stationary: bool = True
    """False where the plan itself changes the load inside the window (ramp, trace): no steady state to check."""
    gpu: GpuFacts = field(default_factory=GpuFacts)
