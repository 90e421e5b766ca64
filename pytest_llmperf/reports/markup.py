"""GitHub-flavoured Markdown made from text of others: names stay names, whatever they hold, and length has a limit.

Entities are used for escaping, since no reader takes an entity for structure: a backslash before a pipe is read in two
ways inside tables.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

__all__ = ["Block", "assemble", "code", "fenced", "plain"]

LONGEST_NAME: Final = 160
LONGEST_TEXT: Final = 400
NOTE_ROOM: Final = 600
"""Characters kept for the note on what was cut."""

_UNPRINTABLE: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]+")
_ENTITIES: Final = {ord(sign): f"&#{ord(sign)};" for sign in "&<>|`*[]\\~$"}
_EMPHASIS: Final = re.compile(r"(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")
_REFERENCE: Final = re.compile(r"@|#(?=\d)|(?<=[A-Za-z]):(?=//)|(?<=\bwww)\.")


@dataclass(frozen=True, slots=True)
class Block:
    """Lines that belong together: ``rows`` may be cut from the end, ``before`` and ``after`` only with all of them."""

    name: str
    rows: tuple[str, ...]
    before: str = ""
    after: str = ""


def plain(text: str, longest: int = LONGEST_TEXT) -> str:
    """``text`` as one line of running text or a table cell; mentions, references and links are broken up."""
    shown = _REFERENCE.sub(lambda found: f"{found[0]}\u200b", _short(_one_line(text), longest))
    return _EMPHASIS.sub("&#95;", shown.translate(_ENTITIES))


def code(text: str, longest: int = LONGEST_NAME) -> str:
    """``text`` as a code span, for a table cell too; escaped text where a code span cannot hold it."""
    shown = _short(_one_line(text), longest)
    return plain(shown, longest) if not shown or re.search(r"[`|\\]", shown) else f"`{shown}`"


def fenced(text: str, language: str = "") -> str:
    """A block of code that no run of backticks in ``text`` can end."""
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", text)), default=0))
    return f"{fence}{language}\n{text}\n{fence}"


def assemble(blocks: Iterable[Block], limit: int) -> str:
    """The blocks, an empty line between them, in at most ``limit`` characters; what had to be cut is said."""
    found, cut = [], []
    room = limit - NOTE_ROOM
    for block in blocks:
        rows: list[str] = []
        left = room - len(block.before) - len(block.after) - 4
        for row in block.rows:
            left -= len(row) + 1
            if left < 0:
                break
            rows.append(row)
        if len(rows) < len(block.rows):
            cut.append(f"{len(block.rows) - len(rows)} of {len(block.rows)} lines of “{block.name}”")
        if rows:
            text = "\n".join(part for part in (block.before, *rows, block.after) if part)
            room -= len(text) + 2
            found.append(text)
    if cut:
        found.append(f"Cut for length: {_listed(cut)}. Everything is in report.json.")
    return "\n\n".join(found) + "\n"


def _listed(cut: Sequence[str]) -> str:
    return _short(", ".join(cut), NOTE_ROOM // 2)


def _one_line(text: str) -> str:
    return " ".join(_UNPRINTABLE.sub(" ", text).split())


def _short(text: str, longest: int) -> str:
    return text if len(text) <= longest else f"{text[: longest - 1]}…"
