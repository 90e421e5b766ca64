"""A server of known truth: it streams on a timetable, in the API of the path, and logs when it really sent what.

Use from a test::

    with TruthServer(ttft=20, gap=5, n=16) as server:
        ...  # talk to server.url
        for served in server.log():
            ...

It runs in a process of its own, so its timing does not depend on the client's interpreter. Each request may change
the server's defaults by a directive anywhere in its body, e.g. ``[[truth id=7 ttft=100 gap=20 n=16]]``; see
``Script`` for the keys. Without ``n`` the request's ``max_tokens`` says how many tokens there are.

The log has one JSON object per request, written when it is over: see ``Served``.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import json
import random
import re
import selectors
import signal
import socket
import ssl
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from truth_stream import Stream
from truth_wire import Wire, wire_of

__all__ = ["Script", "Served", "TruthServer"]

OVERHEAD_TOKENS = 7
TOKENS_PER_WORD = 1.25
MESSAGE_TOKENS = 5
"""Of the template, for every message after the first."""


@dataclass(frozen=True)
class Script:
    """How one request is answered. Times in ms."""

    id: int = -1
    """Echoed in the log, to match requests."""
    ttft: float = 20.0
    """From the arrival of the request to the first output."""
    gap: float = 5.0
    n: int = 0
    """Output tokens; 0: the request's ``max_tokens``."""
    merge: int = 1
    """Tokens per output chunk."""
    joined: int = 1
    """Output chunks (each an HTTP chunk) per send."""
    reasoning: int = 0
    """The first so many output chunks are reasoning."""
    tools: bool = False
    """Output is tool-call arguments."""
    role: bool = True
    """Chat: a role chunk at once, before any output."""
    comment: float = 0.0
    """Keep-alive comments at this interval until the stream ends; 0: none."""
    usage: bool = True
    continuous: bool = False
    cached: int = -1
    """Cached prompt tokens in the usage; -1: not told."""
    finish: bool = True
    done: bool = True
    status: int = 200
    message: str = "scripted"
    error_after: int = -1
    """Error frame after so many output chunks."""
    cut_after: int = -1
    """Reset the connection after so many output chunks; -2: close without a byte; -3: in the header."""
    stall_after: int = -1
    """Send nothing more after so many output chunks, and stay open."""
    framing: str = "chunked"
    """``chunked``, ``close`` (until the connection ends), ``trailer`` (chunked with a trailer) or ``pieces`` (chunked,
    every byte of the last 7 in a send of its own)."""
    close: bool = False
    """``Connection: close``."""
    stale: bool = False
    """Promise keep-alive, then close right after the response."""
    raw: str = ""
    """``garbage``: no HTTP. ``endless``: one line that never ends. ``flood``: events that never end. ``json``: a JSON
    object instead of a stream. ``html``: a page instead of a stream."""
    word: str = "w"
    """What each token's text begins with."""
    blank: int = 0
    """The first so many output chunks have tokens but no text."""
    giant: int = 0
    """Letters of the first output chunk."""
    lie: int = 0
    """Tokens that the server counts beside those that it sent."""
    choices: int = 1
    """OpenAI: every output comes for so many choices, each with its own running count."""
    empty: bool = False
    """OpenAI: an event with ``choices: []`` after every output."""
    nulls: bool = False
    """OpenAI: ``usage: null`` on every chunk."""
    inline: bool = False
    """OpenAI: the finish reason rides on the last output."""
    spelling: str = "reasoning"
    """Name of the reasoning field; two of them with a plus between."""
    badjson: bool = False
    """The error frame is no JSON."""
    crlf: bool = False
    packed: int = 1
    """Output chunks in one HTTP chunk, as proxies do it."""
    cuts: int = 1
    """Sends that each output chunk is cut into; its time is that of the last one."""
    trickle: float = 0.0
    """Between those sends."""
    slow_head: float = 0.0
    """The header takes so long, in ten sends."""
    interim: int = 0
    """1xx responses before the real one."""
    kind: str = ""
    """Content type of the stream instead of the right one."""
    coding: str = ""
    """``gzip``: the stream is compressed, unasked."""
    retry_after: str = ""
    """With a status of refusal."""


@dataclass(frozen=True)
class Served:
    """One request as the server saw it; all times are CLOCK_MONOTONIC ns."""

    id: int
    path: str
    accepted_ns: int
    arrived_ns: int
    """First byte of the request, by the kernel where it stamps reads."""
    sends: list[int]
    """Just before the send of each output chunk."""
    after: list[int]
    """Just after it."""
    tokens: list[int]
    """Of each output chunk."""
    prompt_tokens: int
    ended_ns: int
    """End of the response, or when the client went away."""
    client_left: bool
    request_number: int
    """Of its connection, from 0."""
    headers: dict[str, str]
    body: dict[str, Any] = field(default_factory=dict)


class TruthServer:
    """Starts the server on a free port; ``defaults`` are fields of ``Script``, ``metrics`` the arguments of
    ``Server.metrics``: without them it has no such page."""

    def __init__(
        self,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        model: str = "truth",
        api_key: str | None = None,
        certificate: Path | None = None,
        slots: int = 0,
        prefix: str = "",
        metrics: dict[str, float] | None = None,
        **defaults: Any,
    ) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="truth-server-")
        self._log = Path(self._folder.name) / "log.jsonl"
        options = {
            "host": host,
            "port": port,
            "model": model,
            "api_key": api_key,
            "certificate": str(certificate) if certificate else None,
            "slots": slots,
            "prefix": prefix,
            "metrics": metrics,
            "log": str(self._log),
            "script": asdict(replace(Script(), **defaults)),
        }
        self.model, self.host, self._tls, self._prefix = model, host, certificate is not None, prefix
        self.process = subprocess.Popen(
            [sys.executable, "-S", __file__, json.dumps(options)], stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError("the truth server did not start")
        self.port = int(line)

    @property
    def url(self) -> str:
        """Base URL without ``/v1``."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self._tls else 'http'}://{host}:{self.port}{self._prefix}"

    def log(self) -> list[Served]:
        """Requests that are over, in the order of their end."""
        if not self._log.exists():
            return []
        lines = self._log.read_text().splitlines()
        return [Served(**json.loads(line)) for line in lines]

    def wait_log(self, count: int, timeout_s: float = 5.0) -> list[Served]:
        """The log once it has ``count`` entries; a client may be done a moment before the log is."""
        deadline = time.monotonic() + timeout_s
        while len(log := self.log()) < count and time.monotonic() < deadline:
            time.sleep(0.01)
        return log

    def kill(self) -> None:
        """Die as a crashed server does."""
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        self.process.terminate()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()
        self._folder.cleanup()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


# --- the server's own process ------------------------------------------------------------------------------------

_NS = 1_000_000_000
_DIRECTIVE = re.compile(rb"\[\[truth ([^\]]*)\]\]")
_TYPES = {f.name: f.type for f in fields(Script)}
_STAMP_OPTION = 35
_REASONS = {200: "OK", 400: "Bad Request", 401: "Unauthorized", 404: "Not Found", 429: "Too Many Requests"}


def read_script(default: Script, body: bytes) -> Script:
    """``default`` changed by the directive in ``body``, if there is one."""
    match = _DIRECTIVE.search(body)
    if match is None:
        return default
    changes: dict[str, Any] = {}
    for pair in match[1].decode().split():
        key, _, value = pair.partition("=")
        kind = _TYPES[key]
        changes[key] = value if kind == "str" else float(value) if kind == "float" else int(value or 1)
    return replace(default, **changes)


@dataclass
class Peer:
    """One connection."""

    sock: socket.socket
    accepted_ns: int
    buffer: bytes = b""
    first_ns: int = 0
    served: int = 0
    answering: bool = False
    gone: bool = False
    log: dict[str, Any] = field(default_factory=dict)


class Server:
    """One thread: a selector and a heap of timers."""

    def __init__(self, options: dict[str, Any]) -> None:
        self.options = options
        self.default = Script(**options["script"])
        self.out = Path(options["log"]).open("a", buffering=1)  # noqa: SIM115
        self.timers: list[tuple[int, int, Callable[[], None]]] = []
        self.order = itertools.count()
        self.selector = selectors.DefaultSelector()
        self.waiting: list[Callable[[], None]] = []
        self.busy = 0
        self.finished = self.prompted = 0
        family = socket.AF_INET6 if ":" in options["host"] else socket.AF_INET
        self.listener = socket.create_server((options["host"], options["port"]), family=family, backlog=4096)
        self.listener.setblocking(False)
        self.context: ssl.SSLContext | None = None
        if options["certificate"]:
            self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self.context.load_cert_chain(options["certificate"])
        self.selector.register(self.listener, selectors.EVENT_READ, None)
        self.offset = time.time_ns() - time.monotonic_ns()
        print(self.listener.getsockname()[1], flush=True)

    def run(self) -> None:
        refresh = 0
        while True:
            now = time.monotonic_ns()
            if now > refresh:
                self.offset, refresh = min(self.reading() for _ in range(5))[1], now + _NS // 10
            while self.timers and self.timers[0][0] <= now:
                heapq.heappop(self.timers)[2]()
            wait = (self.timers[0][0] - time.monotonic_ns()) / _NS if self.timers else 1.0
            # Python's epoll rounds up to a millisecond: poll for the last one.
            for key, _ in self.selector.select(max(0.0, min(wait - 0.001, 0.1)) if wait > 0.001 else 0):
                if key.data is None:
                    self.accept()
                else:
                    self.read(key.data)

    @staticmethod
    def reading() -> tuple[int, int]:
        before, real, after = time.monotonic_ns(), time.time_ns(), time.monotonic_ns()
        return after - before, real - (before + after) // 2

    def at(self, due: int, action: Callable[[], None]) -> None:
        heapq.heappush(self.timers, (due, next(self.order), action))

    def accept(self) -> None:
        for _ in range(64):
            try:
                sock, _ = self.listener.accept()
            except BlockingIOError:
                return
            accepted = time.monotonic_ns()
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if sys.platform == "linux":
                sock.setsockopt(socket.SOL_SOCKET, _STAMP_OPTION, 1)
            if self.context is not None:
                sock.settimeout(2)
                try:
                    sock = self.context.wrap_socket(sock, server_side=True)
                except OSError:
                    sock.close()
                    continue
            sock.setblocking(False)
            peer = Peer(sock, accepted)
            self.selector.register(sock, selectors.EVENT_READ, peer)
            if self.context is not None:
                self.read(peer)  # TLS may hold bytes that the selector does not see

    def read(self, peer: Peer) -> None:
        stamp = 0
        try:
            if isinstance(peer.sock, ssl.SSLSocket):
                data = peer.sock.recv(1 << 20)
            else:
                data, ancillary, _, _ = peer.sock.recvmsg(1 << 20, socket.CMSG_SPACE(16))
                for level, kind, raw in ancillary:
                    if level == socket.SOL_SOCKET and kind == _STAMP_OPTION:
                        seconds, ns = struct.unpack("qq", raw)
                        stamp = seconds * _NS + ns - self.offset
        except (BlockingIOError, ssl.SSLWantReadError):
            return
        except OSError:
            data = b""
        if not data:
            peer.gone = True
            self.end(peer, keep=False)
            return
        if not peer.buffer:
            peer.first_ns = stamp or time.monotonic_ns()
        peer.buffer += data
        self.parse(peer)

    def parse(self, peer: Peer) -> None:
        head, separator, rest = peer.buffer.partition(b"\r\n\r\n")
        if not separator or peer.answering:
            return
        request_line, *lines = head.decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        length = int(headers.get("content-length", "0"))
        if len(rest) < length:
            return
        body, peer.buffer = rest[:length], rest[length:]
        peer.answering = True
        method, path, _ = request_line.split(" ")
        self.answer(peer, method, path, headers, body)

    def choose_errors(self) -> None:
        """At the first request of a load: err if it is this launch's turn to."""
        file = Path(self.options["loads"])
        served = len(file.read_text()) if file.exists() else 0
        file.write_text("x" * (served + 1))
        self.options["fails"] = 300 if str(served) in self.options["errs_in"] else 0
        self.options["errs_in"] = []

    def answer(self, peer: Peer, method: str, path: str, headers: dict[str, str], raw: bytes) -> None:
        options = self.options
        path = path.removeprefix(options["prefix"])
        if path in ("/health", "/v2/health/ready"):
            self.plain(peer, 200, {"status": "ok"})
        elif options["api_key"] and headers.get("authorization") != f"Bearer {options['api_key']}":
            self.refuse(peer, 401, f"Incorrect API key provided: {headers.get('authorization')}")
        elif path == "/metrics" and options.get("metrics"):
            self.metrics(peer, **options["metrics"])
        elif path == "/v1/models":
            self.plain(peer, 200, {"object": "list", "data": [{"id": options["model"], "object": "model"}]})
        elif (wire := wire_of(path, options["model"])) is None or method != "POST":
            self.refuse(peer, 404, f"no such route: {path}")
        else:
            body = json.loads(raw)
            script = read_script(self.default, raw)
            script = replace(script, n=(script.n or wire.max_tokens(body)) + options.get("longer", 0))
            if body.get("stream") and options.get("errs_in"):
                self.choose_errors()
            if random.random() * 1000 < options.get("fails", 0):
                script = replace(script, status=500)
            further = MESSAGE_TOKENS * (len(body["messages"]) - 1) if "messages" in body else 0
            prompt_tokens = OVERHEAD_TOKENS + further + round(TOKENS_PER_WORD * len(wire.prompt_of(body).split()))
            answer = wire(script, body, options["model"], prompt_tokens)
            peer.log = {
                "id": script.id,
                "path": path,
                "accepted_ns": peer.accepted_ns,
                "arrived_ns": peer.first_ns,
                "sends": [],
                "after": [],
                "tokens": [],
                "prompt_tokens": prompt_tokens,
                "request_number": peer.served,
                "headers": headers,
                "body": body,
            }
            if body.get("model", options["model"]) != options["model"]:
                self.refuse(peer, 404, f"The model `{body['model']}` does not exist.")
            elif script.status != 200:
                self.refuse(peer, script.status, script.message.replace("_", " "), script.retry_after)
            elif wire.whole or not body.get("stream", wire.unasked):
                peer.log["tokens"] = [script.n]
                self.at(peer.first_ns + round(script.ttft * 1e6), partial(self.whole, peer, answer))
            elif options["slots"] and self.busy >= options["slots"]:
                self.waiting.append(lambda: self.begin(peer, answer, time.monotonic_ns()))
            else:
                self.begin(peer, answer, peer.first_ns)

    def begin(self, peer: Peer, wire: Wire, start: int) -> None:
        if peer.gone:
            return
        self.busy += 1
        peer.log["busy"] = True
        Stream(self, peer, wire, start).step()

    def whole(self, peer: Peer, wire: Wire) -> None:
        """An answer that is not streamed, at once."""
        if not peer.gone:
            self.plain(peer, 200, wire.reply())

    def refuse(self, peer: Peer, status: int, message: str, retry_after: str = "") -> None:
        content = {"error": {"message": message, "type": "invalid_request_error", "code": status}}
        self.plain(peer, status, content, f"retry-after: {retry_after}\r\n" if retry_after else "")

    def plain(self, peer: Peer, status: int, content: dict[str, Any], headers: str = "") -> None:
        data = json.dumps(content).encode()
        head = f"HTTP/1.1 {status} {_REASONS.get(status, 'Status')}\r\ncontent-type: application/json\r\n{headers}"
        if peer.log:
            peer.log["sends"] += [time.monotonic_ns()] * len(peer.log["tokens"])
        self.send(peer, f"{head}content-length: {len(data)}\r\n\r\n".encode() + data)
        if peer.log:
            peer.log["after"] += [time.monotonic_ns()] * len(peer.log["tokens"])
        self.end(peer, keep=True)

    def metrics(self, peer: Peer, foreign: float, hits: float, restart: int) -> None:
        """Counters of what was served, times 1 + ``foreign``; ``hits``: share of the prompts that was cached; counted
        anew from the request with the number ``restart`` on (0: never)."""
        begun = restart if restart and self.finished >= restart else 0
        requests, prompts = (1 + foreign) * (self.finished - begun), self.prompted * (0 if begun else 1)
        lines = [
            "# TYPE truth:requests_total counter",
            f'truth:requests_total{{reason="length"}} {requests}',
            f"truth:prompt_tokens_total {prompts}",
            f"truth:prefix_hits_total {hits * prompts}",
            f"truth:running {self.busy}",
            f"truth:usage {min(1, 0.25 * self.busy)}",
            f'truth:wait_seconds_bucket{{le="0.5"}} {requests / 2}',
            f'truth:wait_seconds_bucket{{le="1.0"}} {requests}',
            f'truth:wait_seconds_bucket{{le="+Inf"}} {requests}',
            f"truth:wait_seconds_sum {0.625 * requests}",
            f"truth:wait_seconds_count {requests}",
        ]
        data = "".join(f"{line}\n" for line in lines).encode()
        head = f"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: {len(data)}\r\n\r\n"
        self.send(peer, head.encode() + data)
        self.end(peer, keep=True)

    def send(self, peer: Peer, data: bytes) -> None:
        while data and not peer.gone:
            try:
                data = data[peer.sock.send(data) :]
            except (BlockingIOError, ssl.SSLWantWriteError):
                time.sleep(0.0005)
            except OSError:
                peer.gone = True

    def end(self, peer: Peer, *, keep: bool, reset: bool = False) -> None:
        """The response is over; with ``keep`` the connection takes the next request."""
        log, peer.log = peer.log, {}
        if log:
            busy = log.pop("busy", False)
            self.busy -= busy
            self.finished += 1
            self.prompted += log["prompt_tokens"]
            log |= {"ended_ns": time.monotonic_ns(), "client_left": peer.gone}
            self.out.write(json.dumps(log) + "\n")
            if busy and self.waiting:
                self.waiting.pop(0)()
        peer.served += 1
        peer.answering = False
        if keep and not peer.gone:
            if peer.buffer:
                peer.first_ns = time.monotonic_ns()
                self.parse(peer)
            return
        peer.gone = True
        try:
            self.selector.unregister(peer.sock)
        except (KeyError, ValueError):
            return
        if reset:
            peer.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        peer.sock.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("options", type=json.loads)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the test's Ctrl-C is not ours
    Server(parser.parse_args().options).run()
