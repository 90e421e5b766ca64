"""Data sets of real texts: JSON lines, or the JSON of ShareGPT.

A JSON line is an object with ``prompt`` (a text), ``messages`` (as of a chat) or ``input`` (either of the two), and
optionally ``output_tokens`` or ``max_tokens`` and ``sampling``. ShareGPT is a list of objects with ``conversations``, a
list of ``{"from": "human" | "gpt", "value": …}``; the answers become the history of later turns and, estimated from
their words, the length of the output.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from pytest_llmperf.errors import ConfigError
from pytest_llmperf.inputs.files import verify

__all__ = ["DataRow", "read_dataset"]

TOKENS_PER_WORD: Final = 1.3
_HUMAN: Final = ("human", "user")
_MODEL: Final = ("gpt", "chatgpt", "assistant", "bard", "bing", "model")
_TEXTS: Final = ("prompt", "messages", "input")


@dataclass(frozen=True, slots=True)
class DataRow:
    """One row: one request, or the exchanges of a conversation."""

    messages: tuple[Mapping[str, Any], ...] = ()
    """A single request of chat messages, sent as they are; empty where ``exchanges`` has the texts."""
    exchanges: tuple[tuple[str, str], ...] = ()
    """(what the user says, what the model answered; empty where that is not recorded)."""
    output_tokens: int | None = None
    """Of a single request; None: not told."""
    sampling: Mapping[str, Any] = field(default_factory=dict)

    def reply_tokens(self, turn: int) -> int | None:
        """Length of the recorded answer, estimated from its words; None where there is none."""
        reply = self.exchanges[turn][1] if self.exchanges else ""
        return max(1, round(TOKENS_PER_WORD * len(reply.split()))) if reply else None


@lru_cache(maxsize=4)
def read_dataset(path: str, digest: str, api: str) -> tuple[DataRow, ...]:
    """All rows. Raises ConfigError with file, line or row, and value."""
    verify(path, digest)
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(path, "", f"cannot be read: {error}") from None
    rows = _sharegpt(path, text) if text.lstrip().startswith("[") else _lines(path, text, api)
    if not rows:
        raise ConfigError(path, "", "has no request: no line with a prompt, no conversation with an answer")
    return rows


def _lines(path: str, text: str, api: str) -> tuple[DataRow, ...]:
    rows = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            rows.append(_row(json.loads(line), api))
        except ValueError as error:
            problem = f"not JSON: {error}" if isinstance(error, json.JSONDecodeError) else str(error)
            raise ConfigError(path, f"line {number}", problem) from None
    return tuple(rows)


def _row(row: object, api: str) -> DataRow:
    if not isinstance(row, Mapping):
        raise ValueError(f"{str(row)[:80]!r} is no object with prompt, messages or input")
    given = [name for name in _TEXTS if row.get(name) is not None]
    if len(given) != 1:
        raise ValueError(f"needs exactly one of prompt, messages and input; it has {', '.join(row) or 'nothing'}")
    sampling = row.get("sampling", {})
    if not isinstance(sampling, Mapping) or "stream" in sampling:
        raise ValueError(f"sampling {sampling!r} is no object of request fields other than stream")
    lengths = [row[name] for name in ("output_tokens", "max_tokens") if row.get(name) is not None]
    for length in lengths:
        if isinstance(length, bool) or not isinstance(length, int) or length < 1:
            raise ValueError(f"output_tokens {length!r} is no number of tokens")
    output_tokens = lengths[0] if lengths else None
    content = row[given[0]]
    if isinstance(content, str) and content and given[0] != "messages":
        return DataRow(exchanges=((content, ""),), output_tokens=output_tokens, sampling=dict(sampling))
    if given[0] == "prompt" or not _is_chat(content):
        wanted = "a text" if given[0] == "prompt" else "a list of {role, content}"
        raise ValueError(f"{given[0]} {str(content)[:80]!r} is not {wanted}")
    if api not in ("chat", "ollama-chat"):
        raise ValueError(f"{given[0]} is a chat, and the workload's api is {api!r}")
    return DataRow(messages=tuple(content), output_tokens=output_tokens, sampling=dict(sampling))


def _is_chat(content: object) -> bool:
    return (
        isinstance(content, list)
        and bool(content)
        and all(isinstance(message, dict) and isinstance(message.get("role"), str) for message in content)
    )


def _sharegpt(path: str, text: str) -> tuple[DataRow, ...]:
    try:
        given = json.loads(text)
    except ValueError as error:
        raise ConfigError(path, "", f"not JSON: {error}") from None
    rows = []
    for number, row in enumerate(given):
        talk = row.get("conversations", row.get("conversation")) if isinstance(row, Mapping) else None
        if not isinstance(talk, list):
            raise ConfigError(path, f"[{number}]", "has no list of conversations, as ShareGPT has")
        exchanges = _exchanges(talk)
        if exchanges:
            rows.append(DataRow(exchanges=exchanges))
    return tuple(rows)


def _exchanges(talk: list[Any]) -> tuple[tuple[str, str], ...]:
    """Question and answer in turn, from the first question on, as long as they alternate."""
    said = [(m.get("from"), m.get("value")) for m in talk if isinstance(m, Mapping)]
    while said and said[0][0] not in _HUMAN:
        said.pop(0)
    found = []
    for (asker, question), (answerer, answer) in zip(said[::2], said[1::2], strict=False):
        if asker not in _HUMAN or answerer not in _MODEL:
            break
        if not isinstance(question, str) or not isinstance(answer, str) or not question.strip() or not answer.strip():
            break
        found.append((question, answer))
    return tuple(found)
