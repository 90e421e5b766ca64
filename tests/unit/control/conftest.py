"""A real embedded server for the whole folder, and small HTTP servers that answer as told."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from pytest_llmperf.plan import ServerSpec
from pytest_llmperf.server.launch import Launch, launch

Answers = dict[str, tuple[int, Any]]
"""Path → status and body (JSON, or text as it is)."""


@contextmanager
def http_server(answers: Answers, headers: dict[str, str] | None = None) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            length = int(self.headers.get("content-length") or 0)
            self.rfile.read(length)
            status, body = answers.get(self.path, (404, {"detail": "Not Found"}))
            data = (body if isinstance(body, str) else json.dumps(body)).encode()
            self.send_response(status)
            for name, value in (headers or {}).items():
                self.send_header(name, value)
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = answer  # noqa: N815 - the library's names

        def log_message(self, *_arguments: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def serve() -> Iterator[Callable[..., str]]:
    """``serve(answers, headers)`` → base URL of a server that lives as long as the test."""
    with ExitStack() as stack:
        yield lambda answers, headers=None: stack.enter_context(http_server(answers, headers))


@pytest.fixture(scope="session")
def embedded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launch]:
    spec = ServerSpec(name="embedded", engine="embedded", env={"MY_TOKEN": "secret-1", "MY_FLAG": "on"})
    with launch(spec, log_dir=tmp_path_factory.mktemp("logs")) as live:
        yield live
