"""A pytest plugin that gates builds on the measured performance of LLM inference servers.

One test run is a straight line (see ``runner``): marker → plan → server → schedule → records → metrics → verdict →
report. Names are resolved on first use, so that a test run without ``--llmperf`` imports none of the libraries
behind them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pytest_llmperf.engines.engine import Engine as Engine
    from pytest_llmperf.engines.engine import LiveFacts as LiveFacts
    from pytest_llmperf.engines.parameters import Flag as Flag
    from pytest_llmperf.engines.registry import register_engine as register_engine
    from pytest_llmperf.errors import LlmperfError as LlmperfError
    from pytest_llmperf.identity import Identity as Identity
    from pytest_llmperf.plan import Plan as Plan
    from pytest_llmperf.records import RequestRecord as RequestRecord
    from pytest_llmperf.records import Trial as Trial
    from pytest_llmperf.result import Result as Result
    from pytest_llmperf.result import RunReport as RunReport
    from pytest_llmperf.stats.interleaved import judge_interleaved as judge_interleaved
    from pytest_llmperf.stats.launches import GateConfig as GateConfig
    from pytest_llmperf.stats.launches import Judgement as Judgement
    from pytest_llmperf.stats.launches import LaunchValues as LaunchValues
    from pytest_llmperf.stats.prior import Prior as Prior
    from pytest_llmperf.stats.stored import judge_stored as judge_stored

__all__ = [
    "Engine",
    "Flag",
    "GateConfig",
    "Identity",
    "Judgement",
    "LaunchValues",
    "LiveFacts",
    "LlmperfError",
    "Plan",
    "Prior",
    "RequestRecord",
    "Result",
    "RunReport",
    "Trial",
    "judge_interleaved",
    "judge_stored",
    "register_engine",
]

_HOME: Final = {
    "Engine": "engines.engine",
    "Flag": "engines.parameters",
    "GateConfig": "stats.launches",
    "Identity": "identity",
    "Judgement": "stats.launches",
    "LaunchValues": "stats.launches",
    "LiveFacts": "engines.engine",
    "LlmperfError": "errors",
    "Plan": "plan",
    "Prior": "stats.prior",
    "RequestRecord": "records",
    "Result": "result",
    "RunReport": "result",
    "Trial": "records",
    "judge_interleaved": "stats.interleaved",
    "judge_stored": "stats.stored",
    "register_engine": "engines.registry",
}


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
