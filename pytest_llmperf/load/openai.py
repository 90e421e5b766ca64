"""What the events of an OpenAI-compatible stream mean: output, token counts, end."""

from __future__ import annotations

from typing import Any

from pytest_llmperf.load.http1 import QUOTED, ProtocolError
from pytest_llmperf.load.reader import MAX_DETAIL, Reader, error_detail, is_count

__all__ = ["MAX_DETAIL", "StreamReader", "error_detail"]


class StreamReader(Reader):
    """Chat and text completions, streamed or whole.

    Role events, ``choices: []`` and progress events bear no output. Running counts are the ``usage`` of an event
    (``continuous_usage_stats``) or llama.cpp's ``timings.predicted_n`` (``timings_per_token``).
    """

    __slots__ = ()

    def _read(self, frame: dict[str, Any], at: int) -> bool:
        counted = None if frame.get("usage") is None else self._count(frame)
        choices = frame.get("choices")
        if not isinstance(choices, list) or not choices:
            self._final_tokens = self._final_tokens if counted is None else counted
            return False
        if counted is None and "timings" in frame:
            counted = _number(frame["timings"], "predicted_n")
        answer = reasoning = False
        for choice in choices:
            if not isinstance(choice, dict):
                raise ProtocolError(f"a choice is not a JSON object: {str(choice)[:QUOTED]!r}")
            in_answer, in_reasoning = self._output(choice, choice.get("delta"))
            answer, reasoning = answer or in_answer, reasoning or in_reasoning
            if choice.get("finish_reason"):  # TGI writes "" where others write null
                self.finish_reason = _reason(choice["finish_reason"])
        if counted is None:
            return self._credit(at, answer, reasoning, None)
        bore = self._credit(at, answer, reasoning, counted, _index(choices[0]) if len(choices) == 1 else 0)
        # Where several choices count apart, the request has their sum until a usage of its own says it.
        self._final_tokens = counted if len(self._stated) < 2 else sum(self._stated.values())
        return bore

    def _whole(self, frame: dict[str, Any]) -> bool:
        self._final_tokens = self._count(frame)
        choices = frame.get("choices")
        if not isinstance(choices, list):
            raise ProtocolError(f"the reply holds no choices: {str(frame)[:QUOTED]!r}")
        bore = False
        for choice in choices:
            if not isinstance(choice, dict):
                raise ProtocolError(f"a choice is not a JSON object: {str(choice)[:QUOTED]!r}")
            bore = any(self._output(choice, choice.get("message"))) or bore
            if choice.get("finish_reason"):
                self.finish_reason = _reason(choice["finish_reason"])
        return bore

    def _count(self, frame: dict[str, Any]) -> int | None:
        """Output tokens by the frame's usage; its other counts are noted."""
        usage = frame.get("usage")
        if not isinstance(usage, dict):  # null on every chunk of some servers
            return None
        if (prompt := _number(usage, "prompt_tokens")) is not None:
            self.prompt_tokens = prompt
        if (cached := _number(usage.get("prompt_tokens_details"), "cached_tokens")) is not None:
            self.cached_tokens = cached
        return _number(usage, "completion_tokens")

    def _output(self, choice: dict[str, Any], part: object) -> tuple[bool, bool]:
        """Whether a choice bears text or tool-call arguments, and whether it bears reasoning."""
        if text := choice.get("text"):
            self._keep(text, _index(choice))
            return True, False
        if not isinstance(part, dict):
            return False, False
        answer = part.get("content") or part.get("refusal")
        # The same text under two names where both are present.
        reasoning = part.get("reasoning_content") or part.get("reasoning")
        calls = part.get("tool_calls")
        arguments = list(filter(None, map(_arguments, calls))) if isinstance(calls, list) else None
        if self._kept is not None:
            for piece in (reasoning, answer, *(arguments or ())):
                self._keep(piece, _index(choice))
        return bool(answer or arguments), bool(reasoning)


def _reason(reason: object) -> str:
    """A finish reason; SGLang may write an object with its type."""
    return str(reason.get("type") or reason) if isinstance(reason, dict) else str(reason)


def _arguments(call: object) -> object:
    function = call.get("function") if isinstance(call, dict) else None
    return function.get("arguments") if isinstance(function, dict) else None


def _index(choice: dict[str, Any]) -> int:
    index = choice.get("index")
    return index if isinstance(index, int) else 0


def _number(counts: object, name: str) -> int | None:
    value = counts.get(name) if isinstance(counts, dict) else None
    return value if is_count(value) else None
