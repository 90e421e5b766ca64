"""The prompt of each planned request: a text, or the messages of a chat so far."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from pytest_llmperf.inputs.datasets import DataRow
from pytest_llmperf.load.prompts import Calibration, write_prompt, write_words
from pytest_llmperf.records import Arrival

__all__ = ["Prompt", "conversation", "prompt_of"]

Prompt = str | tuple[Mapping[str, Any], ...]


def prompt_of(
    arrival: Arrival, calibration: Calibration, seed: int, salt: str, rows: Sequence[DataRow] = (), *, chat: bool = True
) -> Prompt:
    """What ``arrival`` sends. ``rows``: the data set's, for arrivals with a ``row``.

    A later turn of a conversation holds everything said before, word for word, so that a prefix cache finds it. The
    model's part is a text of the requested length (or the recorded answer), not what the server really said: the plan
    is written before the load begins, and equal for every server that it is compared on.
    """
    if arrival.row is not None:
        row = rows[arrival.row]
        if row.messages:
            return row.messages
        said = [text for exchange in row.exchanges[: arrival.turn] for text in exchange]
        return conversation((*said, row.exchanges[arrival.turn][0]), chat)
    if not arrival.turn:
        return write_prompt(arrival, calibration, seed, salt)
    first = arrival.index - arrival.turn  # the turns follow each other in the plan
    opening = replace(arrival, index=first, input_tokens=arrival.history[0][0], turn=0)
    texts = [write_prompt(opening, calibration, seed, salt)]
    assert arrival.input_tokens is not None
    new = arrival.input_tokens - sum(map(sum, arrival.history))
    for turn, (asked, answered) in enumerate((*arrival.history, (new, 0))):
        if turn:
            texts.append(_words(asked - calibration.exchange_tokens, calibration, seed, f"{salt}/turn", first + turn))
        if turn < arrival.turn:
            texts.append(_words(answered, calibration, seed, f"{salt}/reply", first + turn))
    return conversation(texts, chat)


def _words(tokens: float, calibration: Calibration, seed: int, salt: str, index: int) -> str:
    """A text without what a template adds: that was counted with the first one."""
    return write_words(max(1, round(tokens / calibration.tokens_per_word)), seed, salt, index)


def conversation(texts: Sequence[str], chat: bool) -> Prompt:
    """User and model in turn; for an API without messages one text."""
    if len(texts) == 1:
        return texts[0]
    if not chat:
        return "\n".join(texts)
    roles = ("user", "assistant")
    return tuple({"role": roles[at % 2], "content": text} for at, text in enumerate(texts))
