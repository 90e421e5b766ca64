"""Recorded pages of engines' metrics, read as the engines' own tables say."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from made import SECOND

from pytest_llmperf.engines import ENGINES
from pytest_llmperf.samples import EngineSample, Quantity
from pytest_llmperf.telemetry.prometheus import Page

PAGES: Final = Path(__file__).parent / "fixtures" / "metrics"
VLLM: Final = ENGINES["vllm"].series
LLAMA: Final = ENGINES["llamacpp"].series


def read(page: bytes | str, series: Mapping[Quantity, tuple[str, ...]], t_ns: int = 7) -> EngineSample:
    reader = Page(series)
    lines = reader.wanted(page.encode() if isinstance(page, str) else page)
    assert lines is not None
    return reader.read(t_ns, lines)


def recorded(name: str, second: float) -> EngineSample:
    """A page of vLLM 0.26.0 under load, as if it had been asked for at that time."""
    return read((PAGES / f"vllm-0.26.0-llama8b-{name}.txt").read_bytes(), VLLM, round(second * SECOND))
