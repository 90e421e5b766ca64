"""Where progress may draw: outside of pytest's capture, on a line of its own."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import pytest

__all__ = ["around_drawing"]


def around_drawing(config: pytest.Config) -> Callable[[bool], AbstractContextManager[None]]:
    """What must surround drawing: capture off, and on demand the cursor on a line of its own."""

    def surround(fresh_line: bool) -> AbstractContextManager[None]:
        reporter = config.pluginmanager.get_plugin("terminalreporter")
        capture = config.pluginmanager.get_plugin("capturemanager")
        context = capture.global_and_fixture_disabled() if capture is not None else nullcontext()
        if fresh_line and reporter is not None:
            reporter.ensure_newline()
        return context

    return surround
