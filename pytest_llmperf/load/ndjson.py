"""Newline-delimited JSON out of bytes that may be cut anywhere. No I/O."""

from __future__ import annotations

from pytest_llmperf.load.lines import LineBuffer
from pytest_llmperf.load.sse import SseEvent

__all__ = ["LineDecoder"]


class LineDecoder:
    """Fed body bytes, returns the lines they complete as events without a name; empty lines are skipped.

    ``end`` gives a last line that has no newline: the end of the body ends it as well.
    """

    __slots__ = ("_lines",)

    def __init__(self) -> None:
        self._lines = LineBuffer()

    @property
    def between(self) -> bool:
        """The next byte begins an event."""
        return self._lines.between

    def sole(self, data: bytes, start: int, end: int) -> str | None:
        """The line that ``data[start:end]`` is, where it comes between lines: then it need not be fed; else None."""
        if not self.between or data.find(b"\n", start, end) != end - 1:
            return None
        return data[start : end - 1].decode("utf-8", "replace") if data[start:end].strip() else None

    def feed(self, data: bytes) -> list[SseEvent]:
        """The lines whose newline is in ``data``."""
        return [SseEvent("", line.decode("utf-8", "replace")) for line in self._lines.feed(data) if line.strip()]

    def end(self) -> list[SseEvent]:
        """What the end of the body completes."""
        return [] if self.between else self.feed(b"\n")
