"""Lines of a server's log as a reader at a terminal would have seen them last."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

__all__ = ["plain_lines"]

_ANSI: Final = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")


def plain_lines(text: str) -> Iterator[str]:
    """Lines that are not empty, without colours; of a line that a progress bar rewrites the last state."""
    for line in _ANSI.sub("", text).split("\n"):
        shown = line.rstrip("\r").rpartition("\r")[2].rstrip()
        if shown:
            yield shown
