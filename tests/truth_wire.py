"""The words of each API that the truth server speaks: requests in, events out. No I/O, no time."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from truth_server import Script

__all__ = ["Wire", "wire_of"]


class Wire:
    """One answer in one API; ``script`` says how it is written."""

    kind = "text/event-stream"
    whole = False
    """The path alone says that the answer is not to be streamed."""
    unasked = False
    """Streams where the request does not say."""

    def __init__(self, script: Script, body: dict[str, Any], model: str, prompt_tokens: int) -> None:
        self.script, self.body, self.model, self.prompt = script, body, model, prompt_tokens

    # --- the request

    @staticmethod
    def prompt_of(body: dict[str, Any]) -> str:
        return " ".join(message["content"] for message in body["messages"]) if "messages" in body else body["prompt"]

    @staticmethod
    def max_tokens(body: dict[str, Any]) -> int:
        return int(body.get("max_tokens") or 16)

    # --- events, each as text

    def role(self) -> list[str]:
        return []

    def output(self, index: int, tokens: int, done: int) -> list[str]:
        """Output chunk ``index`` of ``tokens``, with which ``done`` tokens are out."""
        raise NotImplementedError

    def tail(self, done: int) -> list[str]:
        raise NotImplementedError

    def error(self) -> list[str]:
        return [json.dumps({"error": self.script.message})]

    def reply(self) -> dict[str, Any]:
        """The answer as a whole."""
        raise NotImplementedError

    def line(self, text: str) -> bytes:
        """One event as it goes into the body."""
        ending = "\r\n" if self.script.crlf else "\n"
        return f"data: {text}{ending}{ending}".encode()

    def comment(self) -> bytes:
        return b": keep-alive\n\n"

    # --- what they have in common

    def text(self, index: int, tokens: int) -> str:
        script = self.script
        if index < script.blank:
            return ""
        if script.giant and index == 0:
            return "x" * script.giant
        return "".join(f" {script.word}{index}" for _ in range(tokens))

    def whole_text(self) -> str:
        sizes = [min(self.script.merge, self.script.n - at) for at in range(0, self.script.n, self.script.merge)]
        return "".join(self.text(index, size) for index, size in enumerate(sizes))

    def counted(self, done: int) -> int:
        """What the server claims."""
        return done + self.script.lie


class OpenAi(Wire):
    chat = True

    def usage(self, done: int) -> dict[str, Any]:
        completion = self.counted(done)
        usage: dict[str, Any] = {"prompt_tokens": self.prompt, "completion_tokens": completion}
        usage["total_tokens"] = self.prompt + completion
        if self.script.cached >= 0:
            usage["prompt_tokens_details"] = {"cached_tokens": self.script.cached}
        return usage

    def choice(self, delta: dict[str, Any], finish: str | None, done: int, index: int = 0) -> str:
        choice: dict[str, Any] = {"index": index, "finish_reason": finish}
        if self.chat:
            choice["delta"] = delta
        else:
            choice["text"] = delta.get("content", "")
        frame: dict[str, Any] = {"id": "truth", "object": "chunk", "model": "truth", "choices": [choice]}
        if self.script.continuous:
            frame["usage"] = self.usage(done)
        elif self.script.nulls:
            frame["usage"] = None
        return json.dumps(frame, ensure_ascii=False)

    def role(self) -> list[str]:
        return [self.choice({"role": "assistant", "content": ""}, None, 0)] if self.chat and self.script.role else []

    def output(self, index: int, tokens: int, done: int) -> list[str]:
        text, script = self.text(index, tokens), self.script
        delta: dict[str, Any] = {"content": text}
        if script.tools:
            delta = {"tool_calls": [{"index": 0, "function": {"arguments": text}}]}
        elif index < script.reasoning:
            delta = dict.fromkeys(script.spelling.split("+"), text)
        finish = "length" if script.inline and done == script.n else None
        events = [self.choice(delta, finish, done, choice) for choice in range(script.choices)]
        return [*events, '{"choices": []}'] if script.empty else events

    def tail(self, done: int) -> list[str]:
        script = self.script
        lines = []
        if script.finish and not script.inline:
            lines += [self.choice({}, "length", done, choice) for choice in range(script.choices)]
        if script.usage:
            total = self.usage(done * script.choices)
            lines.append(json.dumps({"id": "truth", "choices": [], "usage": total}))
        return [*lines, "[DONE]"] if script.done else lines

    def error(self) -> list[str]:
        message = self.script.message
        if self.script.badjson:  # as transformers builds it
            return ['{"error": "say "' + message + '" now"}']
        return [json.dumps({"error": {"message": message, "type": "server_error", "code": 500}}), "[DONE]"]

    def reply(self) -> dict[str, Any]:
        text, script = self.whole_text(), self.script
        choice: dict[str, Any] = {"index": 0, "finish_reason": "length"}
        choice |= {"message": {"role": "assistant", "content": text}} if self.chat else {"text": text}
        content: dict[str, Any] = {"id": "truth", "model": self.model, "choices": [choice]}
        return content | {"usage": self.usage(script.n)} if script.usage else content


class Completions(OpenAi):
    chat = False


class Tgi(Wire):
    unasked = True

    @staticmethod
    def prompt_of(body: dict[str, Any]) -> str:
        return str(body["inputs"])

    @staticmethod
    def max_tokens(body: dict[str, Any]) -> int:
        return int(body["parameters"].get("max_new_tokens") or 16)

    def output(self, index: int, tokens: int, done: int) -> list[str]:
        """One event a token, as it must be; the last one has the whole text and the details."""
        events = []
        for number in range(done - tokens + 1, done + 1):
            last = number == self.script.n
            token = {"id": number, "text": self.text(number - 1, 1), "logprob": -1.0, "special": False}
            text, details = (self.whole_text(), self.details()) if last and self.script.finish else (None, None)
            frame = {"index": number, "token": token, "generated_text": text, "details": details}
            events.append(json.dumps(frame, ensure_ascii=False))
        return events

    def details(self) -> dict[str, Any] | None:
        if not (self.script.usage and self.body["parameters"].get("details")):
            return None
        count = self.counted(self.script.n)
        return {"finish_reason": "length", "generated_tokens": count, "seed": None, "input_length": self.prompt}

    def tail(self, done: int) -> list[str]:
        return []

    def error(self) -> list[str]:
        return [json.dumps({"error": self.script.message, "error_type": "generation"})]

    def reply(self) -> dict[str, Any]:
        details = self.details()
        if details is not None:
            del details["input_length"]
            prefill = self.body["parameters"].get("decoder_input_details")
            details |= {"prefill": [{"id": 1, "text": "w"}] * self.prompt if prefill else [], "tokens": []}
        return {"generated_text": self.whole_text(), "details": details}


class TgiWhole(Tgi):
    whole = True


class LlamaCpp(Wire):
    @staticmethod
    def max_tokens(body: dict[str, Any]) -> int:
        return int(body.get("n_predict") or 16)

    def output(self, index: int, tokens: int, done: int) -> list[str]:
        frame: dict[str, Any] = {"index": 0, "content": self.text(index, tokens), "tokens": [1] * tokens, "stop": False}
        if self.script.usage:
            frame |= {"tokens_predicted": self.counted(done), "tokens_evaluated": self.prompt}
        return [json.dumps(frame, ensure_ascii=False)]

    def last(self, done: int, text: str) -> dict[str, Any]:
        frame: dict[str, Any] = {"index": 0, "content": text, "tokens": [], "stop": True, "stop_type": "limit"}
        if self.script.usage:
            timings = {"cache_n": max(0, self.script.cached), "predicted_n": self.counted(done)}
            frame |= {"tokens_predicted": self.counted(done), "tokens_evaluated": self.prompt, "timings": timings}
        return frame

    def tail(self, done: int) -> list[str]:
        return [json.dumps(self.last(done, ""))] if self.script.finish else []

    def error(self) -> list[str]:
        return [json.dumps({"error": {"code": 500, "message": self.script.message, "type": "server_error"}})]

    def reply(self) -> dict[str, Any]:
        return self.last(self.script.n, self.whole_text())


class Triton(Wire):
    unasked = True

    @staticmethod
    def prompt_of(body: dict[str, Any]) -> str:
        return str(body["text_input"])

    def frame(self, text: str, tokens: int) -> dict[str, Any]:
        frame: dict[str, Any] = {"model_name": self.model, "model_version": "1", "text_output": text}
        if self.script.usage and self.body.get("return_num_output_tokens"):
            frame |= {"num_output_tokens": tokens, "num_input_tokens": self.prompt}
        return frame

    def output(self, index: int, tokens: int, done: int) -> list[str]:
        return [json.dumps(self.frame(self.text(index, tokens), tokens), ensure_ascii=False)]

    def tail(self, done: int) -> list[str]:
        return []

    def reply(self) -> dict[str, Any]:
        return self.frame(self.whole_text(), self.script.n)


class TritonWhole(Triton):
    whole = True


class Ollama(Wire):
    kind = "application/x-ndjson"
    unasked = True
    chat = True

    @staticmethod
    def max_tokens(body: dict[str, Any]) -> int:
        return int(body.get("options", {}).get("num_predict") or 16)

    def frame(self, text: str, thinking: bool) -> dict[str, Any]:
        frame: dict[str, Any] = {"model": self.model, "created_at": "2026-12-01T00:00:00Z"}
        if self.chat:
            message = {"role": "assistant", "content": "" if thinking else text}
            return frame | {"message": message | ({"thinking": text} if thinking else {})}
        return frame | {"response": "" if thinking else text} | ({"thinking": text} if thinking else {})

    def output(self, index: int, tokens: int, done: int) -> list[str]:
        frame = self.frame(self.text(index, tokens), index < self.script.reasoning)
        return [json.dumps(frame | {"done": False}, ensure_ascii=False)]

    def last(self, done: int, text: str) -> dict[str, Any]:
        frame = self.frame(text, False) | {"done": True, "done_reason": "length"}
        if self.script.usage:
            frame |= {"prompt_eval_count": self.prompt, "eval_count": self.counted(done), "eval_duration": 1}
        return frame

    def tail(self, done: int) -> list[str]:
        return [json.dumps(self.last(done, ""))] if self.script.finish else []

    def reply(self) -> dict[str, Any]:
        return self.last(self.script.n, self.whole_text())

    def line(self, text: str) -> bytes:
        return f"{text}\n".encode()

    def comment(self) -> bytes:
        return b"\n"


class OllamaGenerate(Ollama):
    chat = False


_WIRES: dict[str, type[Wire]] = {
    "/v1/chat/completions": OpenAi,
    "/v1/completions": Completions,
    "/generate_stream": Tgi,
    "/generate": TgiWhole,
    "/completion": LlamaCpp,
    "/api/chat": Ollama,
    "/api/generate": OllamaGenerate,
}


def wire_of(path: str, model: str) -> type[Wire] | None:
    """What is spoken at ``path``; None where nothing is."""
    triton = {f"/v2/models/{model}/generate_stream": Triton, f"/v2/models/{model}/generate": TritonWhole}
    return (_WIRES | triton).get(path)
