"""The fixtures ``llmperf`` and ``llmperf_server``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

if TYPE_CHECKING:
    from pytest_llmperf.part import LiveServer, TestPart

__all__ = ["SKIPPED", "llmperf", "llmperf_server"]

SKIPPED: Final = "performance test: run with --llmperf"


@pytest.fixture
def llmperf(request: pytest.FixtureRequest) -> TestPart:
    """This test's part of the campaign: ``llmperf.run()`` drives the load and returns the ``Result``.

    Starts the server, or connects to it, when the first test of a campaign asks. Call ``run()`` exactly once; the
    gate is judged when the test ends.
    """
    if not request.config.getoption("llmperf"):
        pytest.skip(SKIPPED)
    from pytest_llmperf.session import session_of

    return session_of(request.config).part(request.node)


@pytest.fixture
def llmperf_server(llmperf: TestPart) -> LiveServer:
    """Endpoint and identity of the server that is live for this test, for checks of one's own."""
    return llmperf.server
