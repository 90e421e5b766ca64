"""A program that answers what a launch asks of any engine, started by the engine's own command line, and checks that
every file which that names is there. It listens where ``--host`` and ``--port``, or ``OLLAMA_HOST``, say."""

import http.server
import json
import os
import sys
from pathlib import Path
from typing import Any

WORDS = sys.argv[1:]
MODEL = next((word for word in WORDS if word != "serve" and not word.startswith("-")), "m")
CHOICE = {"text": "hi", "index": 0, "finish_reason": "length", "message": {"role": "assistant", "content": "hi"}}
USAGE = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
ANSWERS: dict[str, Any] = {
    "/health": {},
    "/version": {"version": "1.0"},
    "/api/version": {"version": "1.0"},
    "/v1/models": {"object": "list", "data": [{"id": MODEL, "owned_by": "library", "max_model_len": 1024}]},
}


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.answer(ANSWERS.get(self.path))

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.answer({"choices": [CHOICE], "usage": USAGE})

    def answer(self, body: Any) -> None:
        data = json.dumps(body).encode()
        self.send_response(404 if body is None else 200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        return


def main() -> None:
    for word in WORDS:
        if word.endswith((".yaml", ".jinja")):
            Path(word.rpartition("=")[2]).read_text()
    if "--port" in WORDS:
        host, port = (WORDS[WORDS.index(flag) + 1] for flag in ("--host", "--port"))
    else:
        host, _, port = os.environ["OLLAMA_HOST"].rpartition(":")
    http.server.ThreadingHTTPServer((host, int(port)), Handler).serve_forever()


if __name__ == "__main__":
    main()
