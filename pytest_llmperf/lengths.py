"""Distributions of whole numbers: tokens of prompts and outputs, turns of a conversation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, Self

from pydantic import BeforeValidator, Field, ValidationInfo, model_validator

from pytest_llmperf.fields import Frozen, find_file
from pytest_llmperf.inputs.lengthfile import read_lengths

__all__ = ["KINDS", "Empirical", "Fixed", "Lengths", "Lognormal", "Normal", "Uniform"]


class Fixed(Frozen):
    """Every length is ``tokens``."""

    kind: Literal["fixed"] = "fixed"
    tokens: int = Field(ge=1)


class _Bounded(Frozen):
    low: int = Field(default=1, ge=1)
    high: int = Field(default=1_000_000, ge=1)

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.high < self.low:
            raise ValueError(f"high ({self.high}) is below low ({self.low})")
        return self


class Uniform(_Bounded):
    """Whole numbers from ``low`` to ``high``, both included, equally likely."""

    kind: Literal["uniform"] = "uniform"
    low: int = Field(ge=1)
    high: int


class Lognormal(_Bounded):
    """Lengths whose logarithm is normal: ``median`` tokens, ``sigma`` on the natural log scale, clipped."""

    kind: Literal["lognormal"] = "lognormal"
    median: float = Field(ge=1)
    sigma: float = Field(gt=0, le=3)


class Normal(_Bounded):
    """Normal lengths of ``mean`` and standard deviation ``sd`` tokens, rounded, then clipped to the bounds."""

    kind: Literal["normal"] = "normal"
    mean: float = Field(ge=1, allow_inf_nan=False)
    sd: float = Field(gt=0, allow_inf_nan=False)


class Empirical(Frozen):
    """One of ``values``, each as likely as its weight says (default: equally likely)."""

    kind: Literal["empirical"] = "empirical"
    values: tuple[Annotated[int, Field(ge=1)], ...] = Field(min_length=1)
    weights: tuple[Annotated[float, Field(ge=0, allow_inf_nan=False)], ...] | None = None
    file: str | None = None
    """Name of the file that the values are from."""

    @model_validator(mode="after")
    def _weighted(self) -> Self:
        if self.weights is not None and len(self.weights) != len(self.values):
            raise ValueError(f"{len(self.weights)} weights for {len(self.values)} values")
        if self.weights is not None and sum(self.weights) <= 0:
            raise ValueError("the weights add up to nothing")
        return self


KINDS: Final = ("fixed", "uniform", "lognormal", "normal", "empirical")


def _lengths(written: object, info: ValidationInfo) -> object:
    """``64`` is short for a fixed length; ``{uniform = [32, 128]}`` for a uniform one; and so on."""
    if isinstance(written, int) and not isinstance(written, bool):
        return {"kind": "fixed", "tokens": written}
    if not isinstance(written, Mapping) or "kind" in written or len(written) != 1:
        if isinstance(written, Mapping) and "kind" not in written:
            raise ValueError(
                f"{dict(written)!r}: write a number or one of {', '.join(f'{{{k} = …}}' for k in KINDS[1:])}"
            )
        return written
    ((kind, given),) = written.items()
    if kind == "uniform":
        if not isinstance(given, list | tuple) or len(given) != 2:
            raise ValueError(f"uniform = {given!r}: write [low, high]")
        return {"kind": "uniform", "low": given[0], "high": given[1]}
    if kind == "empirical":
        return _empirical(given, info)
    if kind in ("lognormal", "normal"):
        if not isinstance(given, Mapping):
            example = "{ median = 128, sigma = 0.6 }" if kind == "lognormal" else "{ mean = 128, sd = 32 }"
            raise ValueError(f"{kind} = {given!r}: write {example}")
        return {"kind": kind, **given}
    raise ValueError(f"unknown distribution {kind!r}; allowed: a number, {', '.join(KINDS[1:])}")


def _empirical(given: object, info: ValidationInfo) -> dict[str, Any]:
    """``[10, 20]``, ``{values = [10, 20], weights = [1, 3]}``, or a file of lengths."""
    if isinstance(given, list | tuple):
        return {"kind": "empirical", "values": given}
    if isinstance(given, Mapping) and set(given) <= {"values", "weights"}:
        return {"kind": "empirical", **given}
    if isinstance(given, str):
        path = find_file(given, info)
        values, weights = read_lengths(path)
        return {"kind": "empirical", "values": values, "weights": weights, "file": path.name}
    raise ValueError(f"empirical = {given!r}: write a list of lengths, {{values, weights}} or the path of a file")


Lengths = Annotated[
    Fixed | Uniform | Lognormal | Normal | Empirical, Field(discriminator="kind"), BeforeValidator(_lengths)
]
