"""A pytest plugin that gates builds on the measured performance of LLM inference servers.

One test run is a straight line (see ``runner``): marker → plan → server → schedule → records → metrics → verdict →
report. Names are resolved on first use, so that a test run without ``--llmperf`` imports none of the libraries
behind them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pytest_llmperf.errors import LlmperfError as LlmperfError
    from pytest_llmperf.identity import Identity as Identity
    from pytest_llmperf.plan import Plan as Plan
    from pytest_llmperf.records import RequestRecord as RequestRecord
    from pytest_llmperf.records import Trial as Trial
    from pytest_llmperf.result import Result as Result
    from pytest_llmperf.result import RunReport as RunReport

__all__ = ["Identity", "LlmperfError", "Plan", "RequestRecord", "Result", "RunReport", "Trial"]

_HOME: Final = {
    "Identity": "identity",
    "LlmperfError": "errors",
    "Plan": "plan",
    "RequestRecord": "records",
    "Result": "result",
    "RunReport": "result",
    "Trial": "records",
}


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
