"""Fields of a server that go into command lines and environments, refused where they can't be passed on."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator

__all__ = ["Variables", "Word", "Words"]


def _words(words: tuple[str, ...]) -> tuple[str, ...]:
    for place, word in enumerate(words, 1):
        if "\0" in word:
            raise ValueError(f"word {place} holds a NUL character, which no command line can")
    return words


def _word(word: str) -> str:
    if "\0" in word:
        raise ValueError(f"{word!r} holds a NUL character, which no command line can")
    return word


def _variables(env: dict[str, str]) -> dict[str, str]:
    for name, value in env.items():
        shown = name if "=" not in name else f"{name.partition('=')[0]}=…"  # what follows may be a secret
        if not name or "=" in name or "\0" in name:
            raise ValueError(f"{shown!r} can't be the name of a variable")
        if "\0" in value:
            raise ValueError(f"the value of {name} holds a NUL character, which no variable can")
    return env


Word = Annotated[str, AfterValidator(_word)]
Words = Annotated[tuple[str, ...], AfterValidator(_words)]
Variables = Annotated[dict[str, str], AfterValidator(_variables)]
