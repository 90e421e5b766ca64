"""The APIs that a load can speak: path, request body, framing and reader of each, in one explicit dict."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol, final

from pytest_llmperf.load.native import LlamaCppReader, OllamaReader, TgiReader, TritonReader
from pytest_llmperf.load.ndjson import LineDecoder
from pytest_llmperf.load.openai import StreamReader
from pytest_llmperf.load.reader import Reader
from pytest_llmperf.load.sse import SseDecoder, SseEvent
from pytest_llmperf.records import Api

if TYPE_CHECKING:
    from pytest_llmperf.load.texts import Prompt

__all__ = ["DIALECTS", "Decoder", "Dialect"]


class Decoder(Protocol):
    """Bytes of a body, cut anywhere, to events."""

    @property
    def between(self) -> bool:
        """The next byte begins an event."""

    def sole(self, data: bytes, start: int, end: int) -> str | None:
        """The data of the nameless event that ``data[start:end]`` is, where it comes between events: then it need not
        be fed; else None."""

    def feed(self, data: bytes) -> list[SseEvent]:
        """The events that ``data`` completes."""

    def end(self) -> list[SseEvent]:
        """What the end of the body completes."""


Fields = dict[str, Any]


@final
@dataclass(frozen=True, slots=True)
class Dialect:
    """How one API is asked and understood."""

    name: Api
    path: str
    """Of a streamed request; ``{model}`` where the model is in the path."""
    fields: Callable[[str, Prompt, int, bool], Fields]
    """``(model, prompt, output tokens, stream)`` → the request's JSON object."""
    reader: type[Reader]
    decoder: Callable[[], Decoder] = SseDecoder
    accept: str = "text/event-stream"
    whole_path: str | None = None
    """Of a request that is not streamed, where it has a path of its own."""
    options: str | None = None
    """The object within the body that takes sampling fields; None: the body itself."""
    openai: bool = False
    """Takes ``stream_options`` and the engine's further fields for the OpenAI API."""

    def route(self, model: str, *, stream: bool) -> str:
        """The path of a request."""
        from urllib.parse import quote  # a client process has no use for it

        path = self.path if stream or self.whole_path is None else self.whole_path
        return path.replace("{model}", quote(model, safe=""))

    def body(
        self,
        model: str,
        prompt: Prompt,
        max_tokens: int,
        *,
        stream: bool = True,
        extras: Mapping[str, Any] | None = None,
        sampling: Mapping[str, Any] | None = None,
    ) -> Fields:
        """The JSON object of one request.

        ``extras`` are the engine's own fields; a mapping among them is merged into the one it meets. ``sampling``
        comes last, where the API has such fields, and replaces whatever it names.
        """
        fields = self.fields(model, prompt, max_tokens, stream)
        for key, value in (extras or {}).items():
            old = fields.get(key)
            if key == "stream_options" and not (stream and self.openai):
                continue
            fields[key] = {**old, **value} if isinstance(old, dict) and isinstance(value, Mapping) else value
        if self.options is None:
            return fields | dict(sampling or {})
        return fields | {self.options: {**fields[self.options], **(sampling or {})}}


def _openai(fields: Fields, max_tokens: int, stream: bool) -> Fields:
    fields |= {"max_tokens": max_tokens, "stream": stream}
    return fields | {"stream_options": {"include_usage": True}} if stream else fields


def _messages(prompt: Prompt) -> list[Mapping[str, Any]]:
    return [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(prompt)


def _chat(model: str, prompt: Prompt, max_tokens: int, stream: bool) -> Fields:
    return _openai({"model": model, "messages": _messages(prompt)}, max_tokens, stream)


def _completions(model: str, prompt: Prompt, max_tokens: int, stream: bool) -> Fields:
    return _openai({"model": model, "prompt": prompt}, max_tokens, stream)


def _tgi(_model: str, prompt: Prompt, max_tokens: int, _stream: bool) -> Fields:
    # Without details there is no token count and no finish reason.
    return {"inputs": prompt, "parameters": {"max_new_tokens": max_tokens, "details": True}}


def _llamacpp(_model: str, prompt: Prompt, max_tokens: int, stream: bool) -> Fields:
    return {"prompt": prompt, "n_predict": max_tokens, "stream": stream}


def _triton(_model: str, prompt: Prompt, max_tokens: int, stream: bool) -> Fields:
    # Keys that are no input of the model become parameters of the request: that serves vLLM and TensorRT-LLM models.
    return {"text_input": prompt, "max_tokens": max_tokens, "stream": stream}


def _ollama_chat(model: str, prompt: Prompt, max_tokens: int, stream: bool) -> Fields:
    return {"model": model, "messages": _messages(prompt), "stream": stream, "options": {"num_predict": max_tokens}}


def _ollama_generate(model: str, prompt: Prompt, max_tokens: int, stream: bool) -> Fields:
    return {"model": model, "prompt": prompt, "stream": stream, "options": {"num_predict": max_tokens}}


_LINES: Final = "application/x-ndjson"

DIALECTS: Final[Mapping[Api, Dialect]] = {
    dialect.name: dialect
    for dialect in (
        Dialect("chat", "/v1/chat/completions", _chat, StreamReader, openai=True),
        Dialect("completions", "/v1/completions", _completions, StreamReader, openai=True),
        Dialect("tgi", "/generate_stream", _tgi, TgiReader, whole_path="/generate", options="parameters"),
        Dialect("llamacpp", "/completion", _llamacpp, LlamaCppReader),
        Dialect(
            "triton",
            "/v2/models/{model}/generate_stream",
            _triton,
            TritonReader,
            whole_path="/v2/models/{model}/generate",
        ),
        Dialect("ollama-chat", "/api/chat", _ollama_chat, OllamaReader, LineDecoder, _LINES, options="options"),
        Dialect(
            "ollama-generate", "/api/generate", _ollama_generate, OllamaReader, LineDecoder, _LINES, None, "options"
        ),
    )
}
