"""The fixtures ``llmperf`` and ``llmperf_server``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pytest_llmperf.part import LiveServer, TestPart

__all__ = ["llmperf", "llmperf_server"]


@pytest.fixture
def llmperf(request: pytest.FixtureRequest) -> TestPart:
    """This test's part of the campaign: ``llmperf.run()`` drives the load and returns the ``Result``.

    Starts the server, or connects to it, when the first test of a campaign asks. Call ``run()`` exactly once; the
    gate is judged when the test ends.
    """
    from pytest_llmperf.session import session_of

    return session_of(request.config).part(request.node)


@pytest.fixture
def llmperf_server(llmperf: TestPart) -> LiveServer:
    """Endpoint and identity of the server that is live for this test, for checks of one's own."""
    return llmperf.server
