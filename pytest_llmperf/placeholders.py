"""``{name}`` in the words of a command: what may stand there, and the command with the values in their places."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Final

__all__ = ["COMMAND", "VERSION", "beside", "filled", "placeholders", "require_filled", "require_version_place"]

COMMAND: Final = "{command}"
"""A word of its own, for several: the whole command line of the engine."""
VERSION: Final = "{version}"
"""Stands in paths and images for the version of the engine."""
_PLACED: Final = re.compile(r"(?<!\$)\{([a-z_]+)\}")
"""``${name}`` is the shell's, and other braces are the command's own."""


def beside(words: Sequence[str], folder: Path | None) -> tuple[str, ...]:
    """``words`` of a command with those that are relative paths made absolute, as seen from ``folder``.

    A program with a slash in it, and every further word that begins with ``./`` or ``../`` and has no blank: of others
    nobody knows whether they are paths (``deploy/server``, ``organisation/model``).
    """

    def placed(at: int, word: str) -> str:
        near = word.startswith(("./", "../")) and not any(map(str.isspace, word))
        program = at == 0 and "/" in word and not word.startswith(("/", "~", "{", "$"))
        return str(folder / word) if folder is not None and (near or program) else word

    return tuple(placed(at, word) for at, word in enumerate(words))


def placeholders(word: str) -> list[str]:
    """The names in ``word``."""
    return _PLACED.findall(word)


def require_filled(key: str, word: str, values: Mapping[str, object], also: Collection[str] = ()) -> None:
    """Raise ValueError where ``word`` of the field ``key`` names what is not in ``values`` or ``also``, or is None."""
    for name in placeholders(word):
        if name in also:
            continue
        if name not in values:
            known = (*values, *also)
            close = get_close_matches(name, known, n=1, cutoff=0.6)
            near = f"did you mean {{{close[0]}}}?" if close else f"known: {', '.join(f'{{{each}}}' for each in known)}"
            raise ValueError(f"{key} holds {{{name}}}, which stands for nothing; {near}")
        if values[name] is None:
            raise ValueError(f"{key} holds {{{name}}}, and {name} is not set")


def filled(words: Sequence[str], values: Mapping[str, object], command: Sequence[str] = ()) -> tuple[str, ...]:
    """``words`` with every placeholder filled from ``values``, and ``COMMAND`` by all words of ``command``."""

    def value(match: re.Match[str]) -> str:
        found = values[match[1]]
        return str(found).lower() if isinstance(found, bool) else str(found)

    found: list[str] = []
    for word in words:
        found += command if word == COMMAND else [_PLACED.sub(value, word)]
    return tuple(found)


def require_version_place(name: str, written: str, version: str | None) -> None:
    """Raise ValueError where ``{version}`` and ``version`` do not go together."""
    if re.search(r"[{}]", written.replace(VERSION, "")):
        raise ValueError(f"{name} = {written!r} may hold {VERSION} and no other braces")
    placed = VERSION in written
    if name == "image" and placed:
        raise ValueError(f"image = {written!r} is one image; with {VERSION} it is an image_template")
    if placed and version is None:
        raise ValueError(f"{name} = {written!r} needs version")
    if not placed and (version is not None or name == "image_template"):
        raise ValueError(f"{name} = {written!r} is the same for every version; write {VERSION} into it" + (
            "" if name == "image_template" else ", or leave out version"
        ))  # fmt: skip
