"""Events that differ from an earlier one of their response in nothing but the text and in digits.

Nearly every event of a stream is such a repetition, and to see that takes a tenth of what decoding its JSON takes. An
event is never guessed: what is not letter for letter the learned one, apart from one string value and digit runs, goes
the long way.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

__all__ = ["Repetitions", "Template", "learn"]

_TEXT: Final = re.compile(rb'"(?:content|text|reasoning_content|reasoning)":[ ]?"((?:[^"\\\x00-\x1f]|\\.)+)"')
_STRING: Final = re.compile(rb'(?:[^"\\]|\\.)*')
_COUNT: Final = re.compile(rb'"completion_tokens":[ ]?(\d{1,9})(?!\d)')
_CHOICE: Final = re.compile(rb'"index":[ ]?\d+')
_STRANGE: Final = (b'"predicted_n"', b'"finish_reason":"', b'"finish_reason": "', b'"error"', b'"tool_calls"')
_HEX: Final = re.compile(rb"[0-9A-Fa-f]{1,15}\Z")
_DIGITS: Final = b"0123456789"
_MARK: Final = "\N{SYMBOL FOR SUBSTITUTE}"


class Repetitions(NamedTuple):
    """What was new in repeated events that followed each other: three lists of one length."""

    times: list[int]
    texts: list[bytes]
    """The text that each bore as it stands in the JSON, never empty."""
    counts: list[int] | None
    """``completion_tokens`` of each, where the learned event had them."""


class Template:
    """The learned event. ``framed``: it came as one HTTP chunk, and so must every repetition."""

    __slots__ = ("_choices", "_counts", "_framed", "_head", "_head_bare", "_key", "_known", "_tail", "_tail_bare")

    def __init__(self, head: bytes, key: bytes, tail: bytes, framed: bool) -> None:
        self._head, self._key, self._tail, self._framed = head, key, tail, framed
        self._head_bare, self._tail_bare = head.translate(None, _DIGITS), tail.translate(None, _DIGITS)
        self._counts = _COUNT.search(tail) is not None
        self._choices = _CHOICE.findall(head), _CHOICE.findall(tail)
        self._known: dict[int, bytes] = {}  # by the length of a read: how it began, up to its text

    def take(self, stamps: Sequence[int], reads: Sequence[bytes], latest: int) -> Repetitions:
        """The repetitions at the start of ``reads``; ``stamps`` are their times, not to be earlier than ``latest``."""
        times: list[int] = []
        texts: list[bytes] = []
        counts: list[int] | None = [] if self._counts else None
        known, whole_tail, bare_tail = self._known, self._tail, self._tail_bare
        for at, data in zip(stamps, reads, strict=True):
            begin = known.get(len(data))
            if begin is None or not data.startswith(begin):
                begin = self._begin(data)
                if begin is None:
                    break
            start = len(begin)
            end = data.find(b'"', start)
            text = data[start:end]
            if b"\\" in text and (string := _STRING.match(data, start)) is not None:
                text, end = string[0], string.end()
            if not text:
                break
            tail = data[end:]
            if tail != whole_tail and tail.translate(None, _DIGITS) != bare_tail:
                break
            if counts is not None:
                found = _COUNT.search(tail)
                if found is None or (self._choices[1] and _CHOICE.findall(tail) != self._choices[1]):
                    break
                counts.append(int(found[1]))
            if at > latest:
                latest = at
            times.append(latest)
            texts.append(text)
        return Repetitions(times, texts, counts)

    def _begin(self, data: bytes) -> bytes | None:
        """All of ``data`` before its text, where that begins as the learned event and is one whole chunk."""
        start = 0
        if self._framed:
            start = data.find(b"\r\n", 1, 18)
            if start < 0 or not _HEX.match(data, 0, start) or int(data[:start], 16) != len(data) - start - 4:
                return None
        at = data.find(self._key, start)
        head = data[start:at]
        if at < 0 or (head != self._head and head.translate(None, _DIGITS) != self._head_bare):
            return None
        if self._choices[0] and _CHOICE.findall(head) != self._choices[0]:
            return None
        begin = data[: at + len(self._key)]
        if self._framed:
            self._known[len(data)] = begin
        return begin


def learn(data: bytes, framed: bool) -> Template | None:
    """A template from one whole read whose only event bore output, and neither ended nor failed; None where a
    repetition could not be told for sure."""
    start = data.find(b"\r\n", 1, 18) if framed else 0
    found = _TEXT.search(data, max(0, start))
    if start < 0 or found is None or any(word in data for word in _STRANGE):
        return None
    key = data[found.start() : found.start(1)]
    body = data[start : found.start(1)] + _MARK.encode() + data[found.end(1) :]
    line = body.strip().removeprefix(b"data:")
    try:
        if not _bears(json.loads(line)):
            return None
    except (ValueError, RecursionError):  # more than one line, no JSON, or too much of it
        return None
    return Template(data[start : found.start()], key, data[found.end(1) :], framed)


def _bears(value: Any) -> bool:
    """Whether the mark is a whole value somewhere."""
    if isinstance(value, dict):
        return any(map(_bears, value.values()))
    if isinstance(value, list):
        return any(map(_bears, value))
    return bool(value == _MARK)
