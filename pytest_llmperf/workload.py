"""What is sent: lengths, texts and structure of the requests, independent of when they are sent."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from pytest_llmperf.fields import Frozen, GivenFile, Pause
from pytest_llmperf.lengths import Fixed, Lengths

__all__ = ["Part", "SharedPrefix", "Think", "Workload"]


RESERVED: Final = ("model", "messages", "prompt", "stream_options", "max_tokens", "n")
"""Request fields that ``sampling`` may not set: the measurement rests on them."""


class SharedPrefix(Frozen):
    """The first ``tokens`` tokens of a prompt are one of ``groups`` texts; the rest is unique."""

    groups: int = Field(ge=1)
    tokens: int = Field(ge=1)


class Think(Frozen):
    """Time between an answer and the next turn, in seconds; a mean of 0 is none."""

    kind: Literal["fixed", "uniform", "exponential"] = "fixed"
    low: Pause = 0.0
    """Fixed: the time. Uniform: the least."""
    high: Pause = 0.0
    """Uniform: the most."""
    mean: Pause = 0.0
    """Exponential."""


def _think(written: object) -> object:
    """``"2 s"``, ``{uniform = ["1 s", "3 s"]}`` or ``{exponential = "2 s"}``."""
    if isinstance(written, str):
        return {"kind": "fixed", "low": written}
    if isinstance(written, Mapping) and set(written) == {"uniform"}:
        bounds = written["uniform"]
        if not isinstance(bounds, list | tuple) or len(bounds) != 2:
            raise ValueError(f"uniform = {bounds!r}: write ['1 s', '3 s']")
        return {"kind": "uniform", "low": bounds[0], "high": bounds[1]}
    if isinstance(written, Mapping) and set(written) == {"exponential"}:
        return {"kind": "exponential", "mean": written["exponential"]}
    if isinstance(written, int | float):
        raise ValueError(f"{written!r} has no unit; write e.g. '2 s'")
    return written


class Part(Frozen):
    """One kind of request (or conversation)."""

    weight: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    """Share of this part among those of ``mixed``, relative to the others."""
    input: Lengths | None = None
    """Tokens of a prompt; in a conversation of what each turn adds."""
    output: Lengths | None = None
    shared_prefix: SharedPrefix | None = None
    turns: Lengths | None = None
    """Requests of a conversation: each prompt holds all before it. None: single requests."""
    think_time: Annotated[Think, BeforeValidator(_think)] | None = None
    """From the end of an answer to the next turn."""
    stream_share: float = Field(default=1.0, ge=0, le=1)
    """Share of streamed requests; the others ask for the whole reply at once and have no TTFT."""
    sampling: dict[str, Any] = Field(default_factory=dict)
    """Merged into every request body, e.g. ``{"temperature": 0}``."""

    @model_validator(mode="after")
    def _part_consistent(self) -> Self:
        if self.think_time is not None and self.turns is None:
            raise ValueError("think_time is the time between turns, and turns is not given")
        if "stream" in self.sampling:
            raise ValueError("sampling: stream is not a sampling parameter; write stream_share = 0 for whole replies")
        for key in RESERVED:
            if key in self.sampling:
                raise ValueError(f"sampling: {key!r} is set by the load itself")
        try:
            json.dumps(self.sampling, allow_nan=False).encode()
        except (TypeError, ValueError) as error:
            raise ValueError(f"sampling: cannot be sent as JSON: {error}") from None
        return self

    @property
    def constant(self) -> bool:
        """Every request is as long as any other."""
        return isinstance(self.input, Fixed) and isinstance(self.output, Fixed) and self.turns is None


class Workload(Part):
    """A workload is one part, or ``mixed`` of several; lengths may come from a ``dataset`` or a ``trace``."""

    name: str
    api: Literal["chat", "completions", "tgi", "llamacpp", "triton", "ollama-chat", "ollama-generate"] = "chat"
    mixed: tuple[Part, ...] = ()
    dataset: GivenFile | None = None
    """JSON lines or ShareGPT: real texts. ``output`` is for rows that do not say how long their output is."""
    trace: GivenFile | None = None
    """A timed trace: its lengths, and where the load has no level of its own its times."""
    time_scale: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """Of the trace's times, where they make the load."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        sources = [name for name in ("mixed", "dataset", "trace") if getattr(self, name)]
        if len(sources) > 1:
            raise ValueError(f"give only one of {' and '.join(sources)}")
        if self.weight != 1:
            raise ValueError("weight belongs to the parts of mixed")
        if self.time_scale is not None and self.trace is None:
            raise ValueError("time_scale belongs to trace")
        parts = [(f"mixed[{at}]: ", part) for at, part in enumerate(self.mixed)] or [("", self)]
        source = sources[0] if sources else None
        for where, part in parts:
            missing = [name for name in ("input", "output") if getattr(part, name) is None]
            if source in (None, "mixed") and missing:
                raise ValueError(f"{where}{' and '.join(missing)}: is required (or dataset, or trace)")
        if source is not None:
            surplus = {
                "mixed": ("input", "output", "shared_prefix", "turns"),
                "dataset": ("input", "shared_prefix"),
                "trace": ("input", "output", "shared_prefix", "turns"),
            }[source]
            given = [name for name in surplus if getattr(self, name) is not None]
            if given:
                raise ValueError(f"{given[0]} cannot stand beside {source}, which says that itself")
        return self

    @property
    def parts(self) -> tuple[Part, ...]:
        return self.mixed or (self,)

    def sampling_of(self, part: int) -> dict[str, Any]:
        """Sampling parameters of a part; its own win over the workload's."""
        return {**self.sampling, **self.mixed[part].sampling} if self.mixed else self.sampling

    @property
    def shares(self) -> bool:
        """Prompts have beginnings in common by intent: a prefix cache may serve them."""
        return self.trace is not None or any(part.shared_prefix or part.turns for part in self.parts)
