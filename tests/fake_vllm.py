"""A program that answers what a launch asks of vLLM, and no more: ``fake_vllm.py serve MODEL --host H --port P``.

``FAKE_VLLM`` in its environment: ``ignore`` (SIGTERM), ``fail`` (end with 3 before it listens), ``never`` (be ready).
"""

import http.server
import json
import os
import signal
import sys
import time
from typing import Any

MODE = os.environ.get("FAKE_VLLM", "")
ARGUMENTS = sys.argv[2:]
ANSWERS: dict[str, Any] = {
    "/health": {},
    "/version": {"version": "0.33.0"},
    "/v1/models": {"object": "list", "data": [{"id": ARGUMENTS[0], "owned_by": "vllm", "max_model_len": 1024}]},
}


def goodbye(_number: int, _frame: object) -> None:
    print("bye", flush=True)
    os._exit(0)


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.answer(ANSWERS.get(self.path))

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        choice = {"text": "hi", "index": 0, "finish_reason": "length"}
        self.answer({"choices": [choice], "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}})

    def answer(self, body: Any) -> None:
        data = json.dumps(body).encode()
        self.send_response(404 if body is None else 200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        return


def main() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN if MODE == "ignore" else goodbye)
    print("serving", *ARGUMENTS, flush=True)
    if MODE == "fail":
        print("no CUDA device; key", os.environ.get("API_KEY"), flush=True)
        sys.exit(3)
    if MODE == "never":
        time.sleep(600)
    host, port = (ARGUMENTS[ARGUMENTS.index(flag) + 1] for flag in ("--host", "--port"))
    http.server.ThreadingHTTPServer((host, int(port)), Handler).serve_forever()


if __name__ == "__main__":
    main()
