"""Secrets kept out of what is shown and stored: commands, environments, log lines."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

__all__ = ["HIDDEN", "redact", "secret_name", "secrets"]

HIDDEN: Final = "***"

_WORD: Final = r"(?:api[-_]?key|access[-_]?key|token|secret|password|passwd|credentials?|bearer)"
# The secret word must end the name: --hf-token holds one, --max-num-batched-tokens and --tokenizer do not.
_FLAG: Final = re.compile(rf"--?(?:[\w-]+[-_])?{_WORD}\Z", re.IGNORECASE)
_MANY: Final = re.compile(r"--api[-_]key\Z")
_ASSIGNED: Final = re.compile(rf"(?P<name>(?:--?)?(?:\w[\w-]*[-_])?{_WORD})(?P<sign>=)(?P<value>.+)\Z", re.IGNORECASE)
_JSON: Final = re.compile(rf'("(?:[\w-]+[-_])?{_WORD}"\s*:\s*")((?:[^"\\]|\\.)+)(")', re.IGNORECASE)
_URL: Final = re.compile(r"(?<=://)([^/\s:@]*:)([^/\s@]+)(?=@)")
_HEADER: Final = re.compile(r"(authorization\s*:\s*(?:bearer |basic )?)(\S+)", re.IGNORECASE)
_NAME: Final = re.compile(rf"(?:^|_){_WORD}$|(?:^|_)(?:KEY|AUTH|PASS|DSN|PAT|COOKIE)$|_PWD$", re.IGNORECASE)
_SHORTEST: Final = 6
"""A shorter secret isn't searched for in other text: it would hide half of it."""


def redact(command: Sequence[str]) -> tuple[str, ...]:
    """``command`` with the values of secret flags, assignments, JSON members, headers and URLs replaced."""
    return tuple(shown for shown, _ in map(_split, command, _following(command)))


def secrets(command: Sequence[str], env: Mapping[str, str]) -> frozenset[str]:
    """The secret values in ``command`` and ``env`` that are long enough to be searched for in a log."""
    found = {value for _, values in map(_split, command, _following(command)) for value in values}
    found |= {value for name, value in env.items() if secret_name(name)}
    return frozenset(value for value in found if len(value) >= _SHORTEST)


def secret_name(name: str) -> bool:
    """Whether an environment variable called ``name`` holds a secret, as far as its name tells."""
    return _NAME.search(name) is not None


def _following(command: Sequence[str]) -> list[bool]:
    """For each argument, whether it is the value of a secret flag; ``--api-key`` (vLLM) takes several values."""
    marks: list[bool] = []
    for index, argument in enumerate(command):
        flag = next((earlier for earlier in reversed(command[:index]) if earlier.startswith("-")), "")
        first = index > 0 and _FLAG.match(command[index - 1]) is not None and not argument.startswith("--")
        more = _MANY.match(flag) is not None and not argument.startswith("-")
        marks.append(first or more)
    return marks


def _split(argument: str, secret: bool) -> tuple[str, list[str]]:
    """What to show of ``argument``, and the secrets in it."""
    if secret:
        return HIDDEN, [argument]
    found: list[str] = []

    def hide(match: re.Match[str], value: int | str) -> str:
        found.append(match[value])
        start, end = match.start(value) - match.start(), match.end(value) - match.start()
        return match[0][:start] + HIDDEN + match[0][end:]

    shown = _ASSIGNED.sub(lambda match: hide(match, "value"), argument)
    if not found:
        for pattern in (_JSON, _URL, _HEADER):
            shown = pattern.sub(lambda match: hide(match, 2), shown)
    return shown, found
