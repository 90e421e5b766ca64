"""Secrets kept out of what is shown and stored: commands, environments, log lines."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final
from urllib.parse import quote

from pytest_llmperf.plan import ServerSpec

__all__ = ["HIDDEN", "forms", "hide", "public_env", "redact", "secret_name", "secrets", "spec_secrets"]

HIDDEN: Final = "***"

_WORDS: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
# Whatever else the name says: VLLM_API_KEY_1, PASSWD_FILE_CONTENT, S3_SECRET_ACCESS_KEY.
_SURE: Final = re.compile(
    r"SECRET|PASSW(?:OR)?D|PASSPHRASE|CREDENTIAL|BEARER"
    r"|(?:API|ACCESS|PRIVATE|SIGNING|ENCRYPTION|ADMIN|MASTER)_?KEYS?(?:_|$)"
)
# A word of its own, or the end of one (APITOKEN); TOKENIZER and KEYFILE are other words.
_LIKELY: Final = re.compile(r"TOKENS?(?:_|$)|(?:^|_)KEYS?(?:_|$)|(?:^|_)(?:AUTH|AUTHORIZATION|CREDS?)(?:_|$)")
_AT_THE_END: Final = re.compile(r"(?:^|_)(?:PASS|DSN|PAT|COOKIE)(?:_\d+)?$|_PWD(?:_\d+)?$")
# Tokens of a text and keys of attention are counted, named and mapped; and a switch is no secret.
_COUNTED: Final = re.compile(
    r"(?:^|_)(?:MAX|MIN|MOST|NUM|N|PER|BATCHED|PREFILL|DRAFT|SPEC|SPECULATIVE|RETURN|SKIP|(?:DIS|EN)ABLED?)(?:_|$)"
    r"|TOKENS?_(?:IDS?|MAP|NUM|COUNT|SIZE|LEN|LENGTH|LIMIT|THRESHOLD|RATIO|PER|BUDGET|TIMEOUT|INTERVAL|ONLY|DETAILS)(?:_|$)"
    r"|(?:^|_)(?:BOS|EOS|PAD|UNK|STOP|SPECIAL|IMAGE|AUDIO|VIDEO)_TOKENS?(?:_|$)"
    r"|KEY_(?:VALUE_)?(?:CACHE|HEADS?|DIM|DTYPE|NORM|SCALE)(?:_|$)|AUTH_TYPE$"
)
_SWITCH: Final = re.compile(r"(?:true|false|on|off|yes|no|none|auto|\d{1,5})\Z", re.IGNORECASE)
_PLACE: Final = re.compile(r"_(?:FILE|PATH|DIR|SOCK)$")
"""The secret is in the file, and the name of the file is none."""

_NAMED: Final = r"[A-Za-z_][\w.-]*"
_FLAG: Final = re.compile(rf"--?({_NAMED})\Z")
_MANY: Final = re.compile(r"--api[-_]keys?\Z")
_ASSIGNED: Final = re.compile(rf"(?:--?)?(?P<name>{_NAMED})=(?P<value>.+)\Z", re.DOTALL)
_JSON: Final = re.compile(rf'"(?P<name>{_NAMED})"\s*:\s*"(?P<value>(?:[^"\\]|\\.)+)"')
_URL: Final = re.compile(r"(?<=://)[^/\s:@]*:(?P<value>[^/\s@]+)(?=@)")
_HEADER: Final = re.compile(r"(?:authorization|api-key)\s*:\s*(?:bearer |basic )?(?P<value>\S+)", re.IGNORECASE)
_SHORTEST: Final = 6
"""A shorter secret isn't searched for in other text: it would hide half of it."""


def redact(command: Sequence[str]) -> tuple[str, ...]:
    """``command`` with the values of secret flags, assignments, JSON members, headers and URLs replaced."""
    return tuple(shown for shown, _ in map(_split, command, _following(command)))


def secrets(command: Sequence[str], env: Mapping[str, str]) -> frozenset[str]:
    """The secret values in ``command`` and ``env`` that are long enough to be searched for in a log."""
    found = {value for _, values in map(_split, command, _following(command)) for value in values}
    for name, value in env.items():
        found |= {value} if secret_name(name, value) else {*_split(value, False)[1]}
    return frozenset(value for value in found if len(value) >= _SHORTEST)


def spec_secrets(spec: ServerSpec, environment: Mapping[str, str]) -> frozenset[str]:
    """What a server of ``spec`` is told that nobody else may see: of its arguments, its variables, and its API key,
    whatever the variable is called that holds it."""
    named = {environment.get(spec.api_key_env, ""), spec.env.get(spec.api_key_env, "")} if spec.api_key_env else set()
    keys = {form for value in named for form in (value, value.strip())}
    return frozenset(key for key in keys if len(key) >= _SHORTEST) | secrets(spec.extra_args, spec.env)


def public_env(spec: ServerSpec) -> dict[str, str]:
    """The variables that ``spec`` sets, without secrets."""
    return {
        name: HIDDEN if secret_name(name, value) or name == spec.api_key_env else redact([value])[0]
        for name, value in spec.env.items()
    }


def secret_name(name: str, value: str = "") -> bool:
    """Whether a variable, flag or member called ``name`` holds a secret, as far as its name tells.

    A ``value`` that is a switch or a small number tells, too: SGLANG_LOG_DECODE_GRAPH_KEY=true.
    """
    words = "_".join(_WORDS.findall(name)).upper()
    if _PLACE.search(words):
        return False
    if _SURE.search(words) or _AT_THE_END.search(words):
        return True
    return _LIKELY.search(words) is not None and not (_COUNTED.search(words) or _SWITCH.match(value))


def hide(text: str, values: Iterable[str]) -> str:
    """``text`` without the secret ``values``, also where they are quoted."""
    for form in sorted({form for value in values for form in forms(value)}, key=len, reverse=True):
        text = text.replace(form, HIDDEN)
    return text


def forms(secret: str) -> frozenset[str]:
    """``secret`` as texts hold it: as it is, and as JSON, Python and URLs write it."""
    return frozenset((secret, json.dumps(secret)[1:-1], repr(secret)[1:-1], quote(secret, "", errors="replace")))


def _following(command: Sequence[str]) -> list[bool]:
    """For each argument, whether it is the value of a secret flag; ``--api-key`` (vLLM) takes several values."""
    marks: list[bool] = []
    for index, argument in enumerate(command):
        flag = next((earlier for earlier in reversed(command[:index]) if earlier.startswith("-")), "")
        before = _FLAG.match(command[index - 1]) if index > 0 else None
        first = before is not None and secret_name(before[1], argument) and not argument.startswith("--")
        more = _MANY.match(flag) is not None and not argument.startswith("-")
        marks.append(first or more)
    return marks


def _split(argument: str, secret: bool) -> tuple[str, list[str]]:
    """What to show of ``argument``, and the secrets in it."""
    if secret:
        return HIDDEN, [argument]
    found: list[str] = []

    def hidden(match: re.Match[str]) -> str:
        name = match.groupdict().get("name")
        # "key" alone is the name of much in JSON that is none.
        if name is not None and (
            not secret_name(name, match["value"]) or (match.re is _JSON and name.lower() in ("key", "keys"))
        ):
            return match[0]
        found.append(match["value"])
        start, end = match.start("value") - match.start(), match.end("value") - match.start()
        return match[0][:start] + HIDDEN + match[0][end:]

    shown = _ASSIGNED.sub(hidden, argument)
    if not found:
        for pattern in (_JSON, _URL, _HEADER):
            shown = pattern.sub(hidden, shown)
        words = shown.split()
        if len(words) > 1:  # of a shell: sh -c "serve --api-key …"
            for word in (each.strip("'\"") for each, marked in zip(words, _following(words), strict=True) if marked):
                found.append(word)
                shown = shown.replace(word, HIDDEN)
    return shown, found
