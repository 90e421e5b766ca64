"""pytest hooks. Without ``--llmperf`` nothing but this module, ``options``, ``fixtures`` and, where there are suites,
``suite`` is ever imported."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from pytest_llmperf import options
from pytest_llmperf.fixtures import SKIPPED, llmperf, llmperf_server

if TYPE_CHECKING:
    from pytest_llmperf.suite import SuiteFile

__all__ = ["llmperf", "llmperf_server"]

MARKERS: Final = (
    "llmperf(workload, concurrency | request_rate, requests | duration, ...): drive a load and measure the server",
    "sla(ttft_p95='500 ms', output_throughput='3000 tok/s', ..., confidence=None): absolute limits on metrics",
    "regression(ttft_p50='3 %', ..., metrics=None): compare with a baseline; tolerated changes, gated metrics",
)
SUITE_SUFFIX: Final = ".llmperf.toml"


def pytest_addoption(parser: pytest.Parser) -> None:
    options.add_options(parser)


def pytest_configure(config: pytest.Config) -> None:
    for marker in MARKERS:
        config.addinivalue_line("markers", marker)
    if options.enabled(config):
        from pytest_llmperf.session import register

        register(config)


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> SuiteFile | None:
    if not file_path.name.endswith(SUITE_SUFFIX):
        return None
    from pytest_llmperf.suite import SuiteFile

    return SuiteFile.from_parent(parent, path=file_path)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not options.enabled(config):
        for item in items:
            # A marker of the module does not make a performance test of everything in it.
            if "llmperf" in getattr(item, "fixturenames", ()) or any(
                mark.name == "llmperf" for mark in item.own_markers
            ):
                item.add_marker(pytest.mark.skip(reason=SKIPPED))
