"""What the events of engines' own streams mean. None of them ends with ``[DONE]``: the last event says so itself."""

from __future__ import annotations

from typing import Any

from pytest_llmperf.load.http1 import QUOTED, ProtocolError
from pytest_llmperf.load.reader import Reader, is_count

__all__ = ["LlamaCppReader", "OllamaReader", "TgiReader", "TritonReader"]


class TgiReader(Reader):
    """TGI ``/generate_stream``: one event for every token, special ones included.

    The event names the token, so that its tokens are known per chunk; ``details`` on the last event, where they were
    asked for, have the count of the whole.
    """

    __slots__ = ()

    end_mark = "generated_text"

    def _read(self, frame: dict[str, Any], at: int) -> bool:
        token, details = _object(frame, "token"), frame.get("details")
        last = frame.get("generated_text") is not None or isinstance(details, dict)
        text = token.get("text")
        visible = bool(text) and not token.get("special")
        if visible:
            self._keep(text)
        counted = None if token.get("id") is None else self._stated.get(0, 0) + 1
        bore = self._credit(at, visible, False, counted)
        if last:
            self._details(details)
            if self._final_tokens is None and self._trusted and self.tokens:
                self._final_tokens = self._stated.get(0)
            self.finish_reason = self.finish_reason or "unknown"
            self.done = True
        return bore

    def _whole(self, frame: dict[str, Any]) -> bool:
        text = frame.get("generated_text")
        if not isinstance(text, str):
            raise ProtocolError(f"the reply holds no generated_text: {str(frame)[:QUOTED]!r}")
        self._keep(text)
        self._details(frame.get("details"))
        prefill = (frame.get("details") or {}).get("prefill")
        if isinstance(prefill, list) and prefill:
            self.prompt_tokens = len(prefill)
        return bool(text)

    def _details(self, details: object) -> None:
        if not isinstance(details, dict):
            return
        self._final_tokens = _count(details, "generated_tokens")
        self.prompt_tokens = _count(details, "input_length")
        self.finish_reason = str(details["finish_reason"]) if details.get("finish_reason") else None


class LlamaCppReader(Reader):
    """llama.cpp ``/completion``: ``tokens_predicted`` counts on every event, ``stop`` marks the last one."""

    __slots__ = ()

    end_mark = "stop"

    def _read(self, frame: dict[str, Any], at: int) -> bool:
        stop, text = frame.get("stop") is True, frame.get("content")
        counted = self._counts(frame, stop)
        self._keep(text)
        bore = self._credit(at, bool(text), False, counted)
        if counted is not None:
            self._final_tokens = counted
        self.done = stop
        return bore

    def _whole(self, frame: dict[str, Any]) -> bool:
        text = frame.get("content")
        if not isinstance(text, str):
            raise ProtocolError(f"the reply holds no content: {str(frame)[:QUOTED]!r}")
        self._keep(text)
        self._final_tokens = self._counts(frame, True)
        return bool(text)

    def _counts(self, frame: dict[str, Any], stop: bool) -> int | None:
        """Output tokens so far; what the frame says of the prompt and the end is noted."""
        timings = frame.get("timings")
        timings = timings if isinstance(timings, dict) else {}
        evaluated, cached = _count(frame, "tokens_evaluated"), _count(timings, "cache_n")
        self.prompt_tokens = self.prompt_tokens if evaluated is None else evaluated
        self.cached_tokens = self.cached_tokens if cached is None else cached
        if stop:
            self.finish_reason = str(frame.get("stop_type") or "unknown")
        counted = _count(frame, "tokens_predicted")
        return _count(timings, "predicted_n") if counted is None else counted


class TritonReader(Reader):
    """Triton ``generate_stream``: text in ``text_output``, nothing else that every model has.

    The stream just ends; counts and a finish reason exist where the model's backend has such outputs and the request
    asked for them (``return_num_output_tokens``: tokens of each response).
    """

    __slots__ = ()

    needs_end = False

    def _read(self, frame: dict[str, Any], at: int) -> bool:
        text, new = frame.get("text_output"), _count(frame, "num_output_tokens")
        self._note(frame)
        self._keep(text)
        counted = None if new is None else self._stated.get(0, 0) + new
        bore = self._credit(at, bool(text), False, counted)
        if counted is not None and self._counting:
            self._final_tokens = counted
        return bore

    def _whole(self, frame: dict[str, Any]) -> bool:
        if "text_output" not in frame:
            raise ProtocolError(f"the reply holds no text_output: {str(frame)[:QUOTED]!r}")
        self._keep(frame["text_output"])
        self._final_tokens = _count(frame, "num_output_tokens")
        self._note(frame)
        return bool(frame["text_output"])

    def _note(self, frame: dict[str, Any]) -> None:
        reason, prompt = frame.get("finish_reason"), _count(frame, "num_input_tokens")
        if reason and reason != "None":  # a backend in Python writes its None as text
            self.finish_reason = str(reason)
        self.prompt_tokens = self.prompt_tokens if prompt is None else prompt


class OllamaReader(Reader):
    """Ollama ``/api/chat`` and ``/api/generate``: one JSON object a line, the last one with ``done`` and the counts."""

    __slots__ = ()

    end_mark = "done"

    def _read(self, frame: dict[str, Any], at: int) -> bool:
        done = frame.get("done") is True
        answer, reasoning = self._output(frame)
        bore = self._credit(at, answer, reasoning, None)
        if done:
            self._end(frame)
        return bore

    def _whole(self, frame: dict[str, Any]) -> bool:
        if "message" not in frame and "response" not in frame:
            raise ProtocolError(f"the reply holds neither message nor response: {str(frame)[:QUOTED]!r}")
        self._end(frame)
        return any(self._output(frame))

    def _output(self, frame: dict[str, Any]) -> tuple[bool, bool]:
        message = frame.get("message")
        part = message if isinstance(message, dict) else frame
        answer, reasoning = part.get("content") or frame.get("response"), part.get("thinking")
        calls = part.get("tool_calls")
        called = isinstance(calls, list) and bool(calls)  # a call comes whole, its arguments as an object
        self._keep(reasoning)
        self._keep(answer)
        if called:
            self._kept = None  # the text that the model wrote for it is not known
        return bool(answer) or called, bool(reasoning)

    def _end(self, frame: dict[str, Any]) -> None:
        self.done = True
        self.finish_reason = str(frame.get("done_reason") or "unknown")
        self._final_tokens = _count(frame, "eval_count")
        self.prompt_tokens = _count(frame, "prompt_eval_count")  # absent where all of it was cached


def _object(frame: dict[str, Any], name: str) -> dict[str, Any]:
    value = frame.get(name)
    return value if isinstance(value, dict) else {}


def _count(counts: dict[str, Any], name: str) -> int | None:
    value = counts.get(name)
    return value if is_count(value) else None
