"""Command-line flags of a server: ``("--a", "1", "--b")`` as name → value, and one of them changed."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

__all__ = ["NO_FLAG", "flags_of", "set_flag"]

NO_FLAG: Final = "positional"
"""Name of what stands before the first flag."""
_NUMBER: Final = re.compile(r"-\.?\d")


def flags_of(arguments: Sequence[str]) -> dict[str, str]:
    """Flag → its values as one text; ``"set"`` for a switch. A flag given again adds to its values."""
    found: dict[str, list[str]] = {}
    for flag, values in _groups(arguments):
        found.setdefault(flag or NO_FLAG, []).append(" ".join(values) or "set")
    return {flag: ", ".join(values) for flag, values in found.items()}


def set_flag(arguments: Sequence[str], flag: str, value: str | bool) -> tuple[str, ...]:
    """``arguments`` with ``flag`` set to ``value``, in its old place if it has one.

    True: a switch without a value. False or the empty text: without the flag.
    """
    new: tuple[str, ...] = ()
    if value is True:
        new = (flag,)
    elif value:
        # A value that begins with a dash would be read as a flag.
        new = (f"{flag}={value}",) if value.startswith("-") else (flag, value)
    kept: list[tuple[str, ...]] = []
    placed = False
    for name, values in _groups(arguments):
        if name != flag:
            kept.append((*((name,) if name else ()), *values))
        elif not placed:
            placed = True
            kept.append(new)
    return tuple(word for group in (kept if placed else [*kept, new]) for word in group)


def _groups(arguments: Sequence[str]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Each flag with its values; the first flag is "" where the arguments begin with none."""
    flag: str = ""
    values: list[str] = []
    for word in arguments:
        if not word.startswith("-") or _NUMBER.match(word) or word == "-":
            values.append(word)
            continue
        if flag or values:
            yield flag, tuple(values)
        name, equals, value = word.partition("=")
        flag, values = name, [value] if equals else []
    if flag or values:
        yield flag, tuple(values)
