"""Lines of a server's log as a reader at a terminal would have seen them last."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

__all__ = ["plain", "plain_lines"]

# ECMA-48: control sequences; strings (titles, device control), which BEL or ST ends; other escapes. C1 controls may be
# one character as well as ESC and a letter.
_SEQUENCES: Final = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]?"
    r"|(?:\x1b[\]PX^_]|[\x9d\x90\x98\x9e\x9f])[^\x07\x1b\x9c\n]*(?:\x07|\x1b\\|\x9c)?"
    r"|\x1b[ -/]*[0-~]?"
)
# All other controls but tab and the ends of lines, and what turns the direction of text about.
_CONTROLS: Final = re.compile(
    r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ufffe\uffff]"
)


def plain_lines(text: str) -> Iterator[str]:
    """Lines that are not empty, as ``plain`` text; of a line that a progress bar rewrites the last state."""
    for line in plain(text).split("\n"):
        shown = line.rstrip("\r").rpartition("\r")[2].rstrip()
        if shown:
            yield shown


def plain(text: str) -> str:
    """``text`` without colours, titles and whatever else a terminal would obey but tabs and ends of lines."""
    return _CONTROLS.sub("", _SEQUENCES.sub("", text))
