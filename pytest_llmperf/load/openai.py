"""What the events of an OpenAI-compatible stream mean: output, token counts, end, error."""

from __future__ import annotations

import json
from typing import Any, Final

from pytest_llmperf.load.http1 import ProtocolError
from pytest_llmperf.load.repeat import Repetitions
from pytest_llmperf.records import Ints, Outcome, TokenSource

__all__ = ["MAX_DETAIL", "StreamReader", "error_detail"]

MAX_DETAIL: Final = 300
"""Characters of a server's message that are kept."""

_decode: Final = json.JSONDecoder().raw_decode


class StreamReader:
    """Fed the data of each event with its time, keeps what a record needs of one response.

    Output-bearing is an event with text, reasoning or tool-call arguments that are not empty; and one without text
    whose own token count grew, where the server counts on every event (the text is held back, the token is there).
    Role events, ``choices: []`` and progress events bear no output.
    """

    __slots__ = (
        "_answers",
        "_counting",
        "_final_tokens",
        "_running",
        "_trusted",
        "_usage",
        "chunk_ns",
        "done",
        "error",
        "finish_reason",
        "first_answer_ns",
        "tokens",
    )

    def __init__(self) -> None:
        self.chunk_ns = Ints("q")
        self.first_answer_ns: int | None = None
        self.finish_reason: str | None = None
        self.done = False
        """``[DONE]`` was seen; what follows is ignored."""
        self.error: str | None = None
        """Message of the first error frame."""
        self.tokens: list[int] = []  # per output-bearing chunk, while every one so far had a usage
        self._running = 0  # completion tokens that the chunks so far account for
        self._counting: bool | None = None  # events with choices carry a usage; None until the first of them
        self._trusted = True  # every output-bearing chunk had a usage that never went back
        self._usage: dict[str, Any] | None = None
        self._answers = True  # the last output-bearing event bore more than reasoning
        self._final_tokens: int | None = None

    def take(self, data: str, at: int) -> bool:
        """Read one event that was complete at ``at`` ns; whether it bore output. Raises ProtocolError."""
        if self.done:
            return False
        if data.startswith("[DONE]"):
            self.done = True
            return False
        try:
            frame, end = _decode(data)  # half the time of json.loads
            if end != len(data):
                frame = json.loads(data)
        except ValueError:
            if not data.lstrip().startswith('{"error"'):  # some servers build error frames without quoting the text
                raise ProtocolError(f"an event is not JSON: {data[:80]!r}") from None
            frame = {"error": data}
        if not isinstance(frame, dict):
            raise ProtocolError(f"an event is not a JSON object: {data[:80]!r}")
        if frame.get("error"):
            self.error = self.error or _message(frame) or "error frame without a message"
            return False
        return self._read(frame, at)

    def _read(self, frame: dict[str, Any], at: int) -> bool:
        usage = frame.get("usage")
        counted = usage.get("completion_tokens") if isinstance(usage, dict) else None
        if isinstance(usage, dict):
            self._usage = usage
        if not _is_count(counted):
            counted = None
        else:
            self._final_tokens = counted
        choices = frame.get("choices")
        if not isinstance(choices, list) or not choices:
            return False
        answer = reasoning = finished = False
        for choice in choices:
            if not isinstance(choice, dict):
                raise ProtocolError(f"a choice is not a JSON object: {str(choice)[:80]!r}")
            in_answer, in_reasoning = _output(choice)
            answer, reasoning = answer or in_answer, reasoning or in_reasoning
            if choice.get("finish_reason"):  # TGI writes "" where others write null
                self.finish_reason, finished = str(choice["finish_reason"]), True
        if self._counting is None:
            # A usage that comes first on the finishing event is the final one, not a running count.
            self._counting = counted is not None and (answer or reasoning or not finished)
        elif counted is None:
            self._counting = False
        grew = bool(self._counting) and counted is not None and counted > self._running
        if not (answer or reasoning or grew):
            return False
        self._answers = answer or not reasoning
        self._credit(at, counted)
        return True

    def repeat(self, events: Repetitions) -> None:
        """Events like the one that ``take`` last said bore output, but for their text and running count."""
        if events.counts is not None:
            for at, counted in zip(events.times, events.counts, strict=True):
                self._final_tokens = counted
                self._credit(at, counted)
            return
        self._counting = False
        self._credit(events.times[0], None)
        self.chunk_ns.extend(events.times[1:])

    def _credit(self, at: int, counted: int | None) -> None:
        self.chunk_ns.append(at)
        if self.first_answer_ns is None and self._answers:
            self.first_answer_ns = at
        if counted is None or counted < self._running:
            self._trusted = False
        else:
            self.tokens.append(counted - self._running)
            self._running = counted

    @property
    def chunk_tokens(self) -> tuple[int, ...] | None:
        """Tokens of each output-bearing chunk, where the server counted on every one; else None."""
        if not self._trusted or not self.tokens or self._running > (self.output_tokens or 0):
            return None
        return tuple(self.tokens)

    @property
    def output_tokens(self) -> int | None:
        return self._final_tokens

    @property
    def prompt_tokens(self) -> int | None:
        counted = self._usage.get("prompt_tokens") if self._usage else None
        return counted if _is_count(counted) else None

    @property
    def cached_tokens(self) -> int | None:
        details = self._usage.get("prompt_tokens_details") if self._usage else None
        counted = details.get("cached_tokens") if isinstance(details, dict) else None
        return counted if _is_count(counted) else None

    @property
    def token_source(self) -> TokenSource:
        if self.output_tokens is None:
            return TokenSource.UNKNOWN
        return TokenSource.USAGE if self.chunk_tokens is None else TokenSource.CONTINUOUS_USAGE

    def verdict(self) -> tuple[Outcome, str | None]:
        """Outcome of a response whose framing ended well, with its detail."""
        if self.error is not None:
            return Outcome.STREAM_ERROR, shorten(self.error)
        if self.finish_reason is None and not self.done:
            return Outcome.TRUNCATED, "the stream ended with neither a finish reason nor [DONE]"
        if not self.chunk_ns:
            return Outcome.NO_OUTPUT, "the stream bore no text, reasoning or tool-call arguments"
        return Outcome.OK, None


def error_detail(status: int, reason: str, body: bytes) -> str:
    """``HTTP 404 Not Found: message`` from a response that is no stream; at most ``MAX_DETAIL`` characters."""
    text = body.decode("utf-8", "replace")
    try:
        message = _message(json.loads(text))
    except ValueError:
        message = None
    return shorten(f"HTTP {status} {reason}".rstrip() + f": {message or text}".rstrip(": "))


def shorten(text: str) -> str:
    """One line of at most ``MAX_DETAIL`` printable characters."""
    line = "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in " ".join(text.split()))
    return line if len(line) <= MAX_DETAIL else line[: MAX_DETAIL - 1] + "…"


def _output(choice: dict[str, Any]) -> tuple[bool, bool]:
    """Whether a choice bears text or tool-call arguments, and whether it bears reasoning."""
    if choice.get("text"):
        return True, False
    delta = choice.get("delta")
    if not isinstance(delta, dict):
        return False, False
    calls = delta.get("tool_calls")
    answer = delta.get("content") or delta.get("refusal") or (isinstance(calls, list) and any(map(_arguments, calls)))
    # The same text under two names where both are present.
    return bool(answer), bool(delta.get("reasoning_content") or delta.get("reasoning"))


def _arguments(call: object) -> bool:
    function = call.get("function") if isinstance(call, dict) else None
    return isinstance(function, dict) and bool(function.get("arguments"))


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _message(frame: object) -> str | None:
    """The text of an error in the shapes of OpenAI, vLLM, SGLang, TensorRT-LLM, TGI and FastAPI."""
    if not isinstance(frame, dict):
        return None
    error = frame.get("error")
    if isinstance(error, dict):
        return str(error.get("message") or json.dumps(error))
    text = error or frame.get("message") or frame.get("detail")
    return None if text is None else str(text)
