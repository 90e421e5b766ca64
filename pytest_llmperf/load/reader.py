"""What every reader of a response does alike: decode frames, note errors, credit output and tokens, judge the end."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

from pytest_llmperf.load.http1 import QUOTED, Head, ProtocolError
from pytest_llmperf.load.repeat import Repetitions
from pytest_llmperf.records import Ints, Outcome, TokenSource

__all__ = ["MAX_DETAIL", "Reader", "error_detail", "is_count", "no_stream", "presentable"]

MAX_DETAIL: Final = 300
"""Characters of a server's message that are kept."""

MOST_TOKENS: Final = 10**9
"""What is beyond is no count of tokens."""

_decode: Final = json.JSONDecoder().raw_decode


class Reader:
    """Fed the data of each event with its time, keeps what a record needs of one response.

    Output-bearing is an event with text, reasoning or tool-call arguments that are not empty. Where an event without
    any of them counts tokens (the text is held back), they belong to the next output-bearing chunk; after the last, to
    the last. A reply that was not streamed has no chunk times: it is given to ``take_whole`` instead.

    A dialect says in ``_read`` and ``_whole`` what its frames mean.
    """

    __slots__ = (
        "_counting",
        "_final_tokens",
        "_kept",
        "_last",
        "_running",
        "_stated",
        "_trusted",
        "_whole_output",
        "cached_tokens",
        "chunk_ns",
        "counted",
        "done",
        "error",
        "finish_reason",
        "first_answer_ns",
        "first_event_ns",
        "last_event_ns",
        "prompt_tokens",
        "tokens",
        "whole",
    )

    needs_end: bool = True
    """The dialect ends a stream with a finish reason or a terminator; one without has been cut."""
    end_mark: str = "[DONE]"
    """What the verdict on a stream without an end misses, besides a finish reason."""

    def __init__(self, *, keep_text: bool = False) -> None:
        self.chunk_ns = Ints("q")
        self.first_answer_ns: int | None = None
        self.first_event_ns: int | None = None
        self.last_event_ns: int | None = None
        """First and last event of the generation, output-bearing or not; usage and terminator are none of it."""
        self.finish_reason: str | None = None
        self.done = False
        """The terminator was seen; what follows is ignored."""
        self.error: str | None = None
        """Message of the first error frame."""
        self.whole = False
        """It was a reply that was not streamed."""
        self.counted: int | None = None
        """Output tokens so far by the last event of the generation; None where it said nothing of them."""
        self.prompt_tokens: int | None = None
        self.cached_tokens: int | None = None
        self.tokens: list[int] = []  # per output-bearing chunk, while every one so far had a count
        self._running: dict[int, int] = {}  # choice → output tokens that its chunks so far account for
        self._stated: dict[int, int] = {}  # choice → output tokens by its last event, whatever that bore
        self._last = (False, 0)  # whether the last output-bearing event bore more than reasoning, and its choice
        self._counting = True  # every event so far carried a count
        self._trusted = True  # every output-bearing chunk had a count that never went back
        self._final_tokens: int | None = None
        self._whole_output = False
        self._kept: dict[int, list[str]] | None = {} if keep_text else None

    # --- feeding

    def take(self, data: str, at: int) -> bool:
        """Read one event that was complete at ``at`` ns; whether it bore output. Raises ProtocolError."""
        if self.done:
            return False
        if data.startswith("[DONE]"):
            self.done = True
            return False
        try:
            frame, end = _decode(data)  # half the time of json.loads
        except (ValueError, RecursionError):
            frame, end = None, -1
        if end != len(data) or type(frame) is not dict or "error" in frame or frame.get("object") == "error":
            frame = self._frame(data)
            if frame is None:
                return False
        return self._read(frame, at)

    def take_error(self, data: str) -> bool:
        """Read an event that its name says is an error; never output."""
        if not self.done and self.error is None:
            self.error = _message(_loads(data)) or data or "error event without a message"
        return False

    def take_whole(self, data: str) -> None:
        """Read a reply that was not streamed. Raises ProtocolError."""
        self.whole = True
        frame = self._frame(data)
        if frame is not None:
            self._whole_output = self._whole(frame)
            self.done = True

    def _frame(self, data: str) -> dict[str, Any] | None:
        """The JSON object in ``data``; None for an error, which is noted."""
        try:
            frame = json.loads(data)
        except RecursionError:
            raise ProtocolError(f"the JSON of an event is nested too deeply: {data[:QUOTED]!r}") from None
        except ValueError:
            if not data.lstrip().startswith('{"error"'):  # some servers build error frames without quoting the text
                raise ProtocolError(f"an event is not JSON: {data[:QUOTED]!r}") from None
            frame = {"error": data}
        if not isinstance(frame, dict):
            raise ProtocolError(f"an event is not a JSON object: {data[:QUOTED]!r}")
        if frame.get("error") or frame.get("object") == "error":
            self.error = self.error or _message(frame) or "error frame without a message"
            return None
        return frame

    def _read(self, frame: dict[str, Any], at: int) -> bool:
        """Take one event of a stream; whether it bore output."""
        raise NotImplementedError

    def _whole(self, frame: dict[str, Any]) -> bool:
        """Take a whole reply; whether it bears output."""
        raise NotImplementedError

    # --- for dialects

    def _credit(self, at: int, answer: bool, reasoning: bool, counted: int | None, choice: int = 0) -> bool:
        """Take note of an event of the generation; whether it bore output.

        ``counted`` are the output tokens of ``choice`` so far, as the event itself states them.
        """
        self.last_event_ns, self.counted = at, counted
        if self.first_event_ns is None:
            self.first_event_ns = at
        output = answer or reasoning
        if counted is None:
            self._counting = False
            if not output:
                return False
            self._trusted = False
        else:
            if counted < self._stated.get(choice, 0):
                self._trusted = False
            self._stated[choice] = counted
            if not output:
                return False
            self.tokens.append(max(0, counted - self._running.get(choice, 0)))
            self._running[choice] = counted
        self._last = (answer, choice)
        self.chunk_ns.append(at)
        if answer and self.first_answer_ns is None:
            self.first_answer_ns = at
        return True

    def repeat(self, events: Repetitions) -> None:
        """Events like the one that ``take`` last said bore output, but for their text and running count."""
        answer, choice = self._last
        self.last_event_ns = events.times[-1]
        if answer and self.first_answer_ns is None:
            self.first_answer_ns = events.times[0]
        self.chunk_ns.extend(events.times)
        if events.counts is None:
            self._counting = self._trusted = False
            return
        before = self._stated.get(choice, 0)
        for counted in events.counts:
            if counted < before:
                self._trusted = False
            self.tokens.append(max(0, counted - before))
            before = counted
        self._running[choice] = self._stated[choice] = before
        self._final_tokens = sum(self._stated.values())

    def _keep(self, text: object, choice: int = 0) -> None:
        """Keep a piece of output for the tokenizer, where one was asked for."""
        if self._kept is not None and isinstance(text, str) and text:
            self._kept.setdefault(choice, []).append(text)

    # --- what came of it

    @property
    def chunk_tokens(self) -> tuple[int, ...] | None:
        """Tokens of each output-bearing chunk, where the server counted on every one; else None."""
        total = sum(self._stated.values())
        if not self._trusted or not self.tokens or total > min(self.output_tokens or 0, MOST_TOKENS):
            return None
        if len(self._stated) > 1 and total != self.output_tokens:
            return None  # the counts were none of single choices
        return (*self.tokens[:-1], self.tokens[-1] + total - sum(self._running.values()))

    @property
    def seen(self) -> bool:
        """Whether anything was understood: an event of the generation, a count, an error or the terminator."""
        return self.done or self.error is not None or self.first_event_ns is not None or self.output_tokens is not None

    @property
    def output_tokens(self) -> int | None:
        return self._final_tokens

    @property
    def token_source(self) -> TokenSource:
        if self.output_tokens is None:
            return TokenSource.UNKNOWN
        return TokenSource.USAGE if self.chunk_tokens is None else TokenSource.CONTINUOUS_USAGE

    @property
    def texts(self) -> tuple[str, ...] | None:
        """The whole output of each choice, reasoning and arguments included; None unless it was to be kept."""
        if self._kept is None:
            return None
        return tuple("".join(self._kept[choice]) for choice in sorted(self._kept))

    def verdict(self) -> tuple[Outcome, str | None]:
        """Outcome of a response whose framing ended well, with its detail."""
        if self.error is not None:
            return Outcome.STREAM_ERROR, self.error
        if self.finish_reason == "abort":
            return Outcome.STREAM_ERROR, "the server aborted the request: its finish reason is abort"
        if self.whole:
            return (Outcome.OK, None) if self._whole_output else (Outcome.NO_OUTPUT, "the reply bears no output")
        if self.needs_end and self.finish_reason is None and not self.done:
            return Outcome.TRUNCATED, f"the stream ended with neither a finish reason nor {self.end_mark}"
        if not self.chunk_ns:
            return Outcome.NO_OUTPUT, "the stream bore no text, reasoning or tool-call arguments"
        return Outcome.OK, None


def error_detail(status: int, reason: str, body: bytes, retry_after: str | None = None) -> str:
    """``HTTP 404 Not Found: message`` from a response that is no stream."""
    text = body.decode("utf-8", "replace")
    wait = f" (Retry-After: {retry_after})" if retry_after else ""
    return f"HTTP {status} {reason}".rstrip() + wait + f": {_message(_loads(text)) or text}".rstrip(": ")


def no_stream(head: Head, body: bytes) -> str:
    """What a body is and how it begins that should have been a stream."""
    kind = head.headers.get("content-type") or "a body of no content type"
    return f"not an event stream but {kind}: {body[:QUOTED]!r}"


def presentable(text: str, secrets: Sequence[str] = ()) -> str:
    """One line of at most ``MAX_DETAIL`` printable characters, without ``secrets``: a server may quote the key that it
    refuses. They go first, since a part of one that was cut could no longer be told."""
    for secret in secrets:
        for form in dict.fromkeys((secret, json.dumps(secret)[1:-1], repr(secret)[1:-1])):
            text = text.replace(form, "***")
    line = "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in " ".join(text.split()))
    return line if len(line) <= MAX_DETAIL else line[: MAX_DETAIL - 1] + "…"


def is_count(value: object) -> bool:
    """Whether ``value`` can be a number of tokens."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MOST_TOKENS


def _loads(text: str) -> object:
    """The JSON value of ``text``; None where it is none."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _message(frame: object) -> str | None:
    """The text of an error in the shapes of OpenAI, vLLM, SGLang, TensorRT-LLM, TGI, Triton, Ollama and FastAPI."""
    if not isinstance(frame, dict):
        return None
    error = frame.get("error")
    if isinstance(error, dict):
        return str(error.get("message") or json.dumps(error))
    text = error or frame.get("message") or frame.get("detail")
    return None if text is None else str(text)
