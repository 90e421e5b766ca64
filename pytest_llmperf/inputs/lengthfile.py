"""A list of lengths: one a line, or a length and its weight."""

from __future__ import annotations

import re
from pathlib import Path

__all__ = ["read_lengths"]


def read_lengths(path: Path) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """The different lengths in ascending order, and the weight of each.

    A line is ``LENGTH`` (weight 1) or ``LENGTH,WEIGHT``; blank lines, ``#`` comments and a first line of words are
    skipped. Raises ValueError with file and line.
    """
    found: dict[int, float] = {}
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from None
    for number, line in enumerate(lines, 1):
        words = re.split(r"[,;\s]+", line.partition("#")[0].strip())
        if words == [""] or (number == 1 and not any(character.isdigit() for character in line)):
            continue
        try:
            length, weight = int(words[0]), float(words[1]) if len(words) == 2 else 1.0
            if len(words) > 2 or length < 1 or not 0 <= weight < float("inf"):
                raise ValueError
        except ValueError:
            raise ValueError(f"{path}, line {number}: {line!r} is no length (from 1) with an optional weight") from None
        found[length] = found.get(length, 0.0) + weight
    if not found:
        raise ValueError(f"{path} has no lengths")
    values = tuple(sorted(found))
    return values, tuple(found[value] for value in values)
