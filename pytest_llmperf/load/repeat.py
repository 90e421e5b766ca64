"""Events that differ from an earlier one of their response in nothing but the text and in digits.

Nearly every event of a stream is such a repetition, and to see that takes a twentieth of what decoding its JSON takes.
An event is never guessed: what is not letter for letter the learned one, apart from one string value and digit runs
that nobody reads, goes the long way.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import accumulate, islice
from typing import Final, NamedTuple

from pytest_llmperf.load.http1 import content_start

__all__ = ["Repetitions", "Template", "learn"]

_STRING: Final = rb'(?:[^"\\\x00-\x1f]++|\\(?:["\\/bfnrt]|u[0-9A-Fa-f]{4}))++'
_TEXT: Final = re.compile(rb'"(?:content|text|reasoning_content|reasoning)":[ ]?"(' + _STRING + rb')"')
_WHOLE: Final = re.compile(_STRING)
_COUNT: Final = re.compile(rb'"completion_tokens":[ ]?(\d{1,9})(?!\d)')
_READ: Final = re.compile(rb'"(?:index|prompt_tokens|cached_tokens)":[ ]?(\d+)')
_STRANGE: Final = re.compile(rb'"(?:predicted_n"|finish_reason":[ ]?"|error"|tool_calls")')
_RUN: Final = re.compile(rb"\d+")
_BACKSLASH: Final = ord("\\")
_ZEROS: Final = bytes.maketrans(b"123456789", b"0" * 9)


class Repetitions(NamedTuple):
    """What was new in repeated events that followed each other: three sequences of one length."""

    times: Sequence[int]
    texts: list[bytes]
    """The text that each bore as it stands in the JSON, never empty."""
    counts: list[int] | None
    """``completion_tokens`` of each, where the learned event had them."""


class _Form(NamedTuple):
    """Where the digits are in a tail, all of them written as 0."""

    counted: tuple[int, int]
    read: tuple[tuple[int, int, bytes], ...]
    """(start, end, digits) of other numbers that a reader takes from an event."""


class Template:
    """The learned event. ``framed``: it came as one HTTP chunk, and so must every repetition."""

    __slots__ = ("_counts", "_forms", "_framed", "_head", "_key", "_known", "_tail")

    def __init__(self, data: bytes, start: int, text: re.Match[bytes], framed: bool, counts: bool) -> None:
        """``data`` from ``start`` on is the event, ``text`` the match of its text with its key; ``counts``: what comes
        after it holds a running count."""
        begin = text.start(1)
        self._head, self._key, self._tail = data[start : text.start()], data[text.start() : begin], data[text.end(1) :]
        self._framed = framed
        self._counts = counts
        self._known = {len(data): data[:begin]}  # by the length of a read: how it began, up to its text
        self._forms: dict[bytes, _Form] = {}

    def take(self, stamps: Sequence[int], reads: Sequence[bytes], latest: int) -> Repetitions:
        """The repetitions at the start of ``reads``; ``stamps`` are their times, not to be earlier than ``latest``."""
        texts: list[bytes] = []
        counts: list[int] | None = [] if self._counts else None
        known, forms, tail, cut = self._known, self._forms, self._tail, -len(self._tail)
        for data in reads:
            begin = known.get(len(data))
            if begin is None or not data.startswith(begin):
                begin = self._begin(data)
                if begin is None:
                    break
            start = len(begin)
            if counts is None and data.endswith(tail):
                texts.append(data[start:cut])
                continue
            end = data.find(b'"', start)
            if data[end - 1] == _BACKSLASH and (text := _WHOLE.match(data, start)) is not None:
                end = text.end()
            rest = data[end:]
            form = forms.get(rest.translate(_ZEROS)) or self._form(rest)
            for low, high, digits in form.read if form else ():
                if rest[low:high] != digits:
                    form = None
            if form is None:
                break
            texts.append(data[start:end])
            if counts is not None:
                low, high = form.counted
                counts.append(int(rest[low:high]))
        # With a space between them: no escape holds one, so two texts cannot make up one that neither has whole.
        if not all(texts) or _WHOLE.fullmatch(b" ".join(texts)) is None:
            good = next((at for at, text in enumerate(texts) if _WHOLE.fullmatch(text) is None), 0)
            texts, counts = texts[:good], None if counts is None else counts[:good]
        return Repetitions(_in_order(stamps[: len(texts)], latest), texts, counts)

    def _begin(self, data: bytes) -> bytes | None:
        """All of ``data`` before its text, where that begins as the learned event and is one whole chunk."""
        start = content_start(data) if self._framed else 0
        at = data.find(self._key, start)
        if start < 0 or at < 0 or not _alike(data[start:at], self._head):
            return None
        begin = self._known[len(data)] = data[: at + len(self._key)]
        return begin

    def _form(self, rest: bytes) -> _Form | None:
        """The form of what follows a text, where that is as in the learned event."""
        counted = _COUNT.search(rest)
        if not _alike(rest, self._tail) or (self._counts and counted is None):
            return None
        read = tuple((*found.span(1), found[1]) for found in _READ.finditer(rest))
        form = self._forms[rest.translate(_ZEROS)] = _Form(counted.span(1) if counted else (0, 0), read)
        return form


def learn(data: bytes, framed: bool, counted: int | None) -> Template | None:
    """A template from one whole read, whose only event was found to be JSON that bears output and, unless None, says
    that ``counted`` tokens are out; None where it ended or failed, or a repetition could not be told for sure."""
    start = content_start(data) if framed else 0
    found = _TEXT.search(data, max(0, start))
    if start < 0 or found is None or _STRANGE.search(data) is not None:
        return None
    # In JSON a quote after no backslash, and before a letter, begins a string: then this is a key and its whole value.
    if data[found.start() - 1] == _BACKSLASH:
        return None
    line = data[start:].rstrip(b"\r\n")
    if not line.startswith(b"data:") or b"\n" in line or b"\r" in line:
        return None
    if counted is not None and (
        data.count(b'"completion_tokens"') != 1
        or (count := _COUNT.search(data, found.end())) is None
        or int(count[1]) != counted
    ):
        return None
    return Template(data, start, found, framed, counted is not None)


def _alike(part: bytes, learned: bytes) -> bool:
    """Whether they differ in digit runs alone, and not in a number that a reader takes from an event."""
    return part == learned or (
        _RUN.split(part) == _RUN.split(learned) and _READ.findall(part) == _READ.findall(learned)
    )


def _in_order(stamps: Sequence[int], latest: int) -> Sequence[int]:
    """``stamps``, none of them earlier than ``latest`` or the one before."""
    if not stamps or (stamps[0] >= latest and sorted(stamps) == list(stamps)):
        return stamps
    return list(islice(accumulate(stamps, max, initial=latest), 1, None))
