"""A server of known truth: streams tokens on a timetable and keeps the time of every send. Standard library only.

Started as a file by ``study``. One line of JSON on standard input says where to listen, the port is the answer; each
further empty line asks for what was sent since. A request's body names its timetable, as
``[[null id=3 n=64 ttft=100 gap=20 grid=0 seed=]]`` (ms; a grid moves all streams in step; a seed draws exponential
gaps).
"""

from __future__ import annotations

import heapq
import json
import marshal
import os
import re
import resource
import select
import socket
import struct
import sys
import time
from array import array
from contextlib import suppress
from random import Random
from typing import Any, Final

_STAMP: Final = 35  # SO_TIMESTAMPNS of Linux
_MS: Final = 1_000_000
_DIRECTIVE: Final = re.compile(rb"\[\[null ([^\]]*)\]\]")
_HEAD: Final = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
_LENGTH: Final = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def event(identity: int, text: str, finish: str = "null") -> bytes:
    choice = f'{{"index":0,"text":"{text}","logprobs":null,"finish_reason":{finish}}}'
    return chunk(f'data: {{"id":"cmpl-{identity:08x}","object":"text_completion","choices":[{choice}]}}\n\n'.encode())


class Stream:
    """One response on its way: the due times of its tokens and the times at which they left."""

    def __init__(self, sock: Any, fields: dict[str, str], arrived_ns: int) -> None:
        self.sock, self.sent = sock, array("q", [arrived_ns])
        self.id, self.left = int(fields["id"]), int(fields.get("n", "64"))
        self.tokens = self.left
        self.grid_ns = round(float(fields.get("grid", "0")) * _MS)
        self._gap_ns = float(fields.get("gap", "20")) * _MS
        self._random = Random(fields["seed"]) if fields.get("seed") else None
        self._due_ns = arrived_ns + round(float(fields.get("ttft", "100")) * _MS)
        self.token = event(self.id, " word")
        self.pending = b""

    def due(self) -> int:
        """When the next token is due; on the grid where there is one."""
        if self.grid_ns:
            return -(-self._due_ns // self.grid_ns) * self.grid_ns
        return self._due_ns

    def send(self) -> bool:
        """Send the next token; False after the last, with which the end goes out."""
        data = self.token if len(self.sent) > 1 else _HEAD + self.token
        self.sent.append(time.monotonic_ns())
        self.left -= 1
        if not self.left:
            usage = f'data: {{"choices":[],"usage":{{"prompt_tokens":1,"completion_tokens":{self.tokens}}}}}\n\n'
            data += event(self.id, "", '"length"') + chunk(usage.encode()) + chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"
        self.write(data)
        self._due_ns += round(self._random.expovariate(1 / self._gap_ns) if self._random else self._gap_ns)
        return self.left > 0

    def write(self, data: bytes) -> None:
        data = self.pending + data
        while data:
            try:
                data = data[self.sock.send(data) :]
            except OSError:  # full, or gone: the rest goes with the next token
                break
        self.pending = data


def serve(listener: socket.socket, tls: Any) -> None:
    """Answer until standard input ends."""
    poll = select.epoll() if hasattr(select, "epoll") else None
    assert poll is not None, "the null server needs epoll"
    listener.setblocking(False)
    poll.register(listener.fileno(), select.EPOLLIN)
    poll.register(0, select.EPOLLIN)
    socks: dict[int, Any] = {}
    partial: dict[int, bytes] = {}
    heap: list[tuple[int, int, Stream]] = []
    log: dict[int, bytes] = {}
    order = 0
    while True:
        now = time.monotonic_ns()
        while heap and heap[0][0] <= now:
            _, _, stream = heap[0]
            if stream.send():
                order += 1
                heapq.heapreplace(heap, (stream.due(), order, stream))
            else:
                heapq.heappop(heap)
                log[stream.id] = stream.sent.tobytes()
            now = time.monotonic_ns()
        wait = (heap[0][0] - now) / 1e9 if heap else 1.0
        if 0 < wait < 0.002:
            select.select((poll,), (), (), wait)
            wait = 0
        for fd, _ in poll.poll(max(0.0, wait - 0.001), 256):
            if fd == 0:
                if not os.read(0, 4096):
                    return
                packed = marshal.dumps(log)
                log.clear()
                sys.stdout.buffer.write(len(packed).to_bytes(8, "little") + packed)
                sys.stdout.buffer.flush()
            elif fd == listener.fileno():
                accept(listener, tls, socks, poll)
            else:
                order += 1
                read(fd, socks, partial, heap, poll, order)


def accept(listener: socket.socket, tls: Any, socks: dict[int, Any], poll: Any) -> None:
    try:
        while True:
            sock, _ = listener.accept()
            if sock.family != getattr(socket, "AF_UNIX", None):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                if sys.platform == "linux":
                    sock.setsockopt(socket.SOL_SOCKET, _STAMP, 1)
            if tls is not None:
                sock.settimeout(5)
                sock = tls.wrap_socket(sock, server_side=True)
            sock.setblocking(False)
            socks[sock.fileno()] = sock
            poll.register(sock.fileno(), select.EPOLLIN)
    except OSError:
        return


def read(fd: int, socks: dict[int, Any], partial: dict[int, bytes], heap: list[Any], poll: Any, order: int) -> None:
    arrived_ns = time.monotonic_ns()
    try:
        if hasattr(socks[fd], "context"):  # TLS
            data = socks[fd].recv(65536)
        else:
            data, ancillary, _, _ = socks[fd].recvmsg(65536, socket.CMSG_SPACE(16))
            if ancillary and ancillary[0][1] == _STAMP:
                seconds, ns = struct.unpack("qq", ancillary[0][2])
                offset = time.time_ns() - time.monotonic_ns()
                arrived_ns = min(arrived_ns, seconds * 1_000_000_000 + ns - offset)
    except BlockingIOError:
        return
    except OSError as error:
        if type(error).__name__ in ("SSLWantReadError", "SSLWantWriteError"):
            return
        data = b""
    if not data:
        poll.unregister(fd)
        socks.pop(fd).close()
        partial.pop(fd, None)
        return
    data = partial.pop(fd, b"") + data
    head, mark, body = data.partition(b"\r\n\r\n")
    length = _LENGTH.search(head)
    if not mark or len(body) < (int(length[1]) if length else 0):
        partial[fd] = data
        return
    directive = _DIRECTIVE.search(body)
    if directive is None:
        answer(socks[fd], head, body)
        return
    fields = dict(part.split("=", 1) for part in directive[1].decode().split())
    stream = Stream(socks[fd], fields, arrived_ns)
    heapq.heappush(heap, (stream.due(), order, stream))


def answer(sock: Any, head: bytes, body: bytes) -> None:
    """Whatever else a client asks before its load."""
    found: dict[str, Any] = {"object": "list", "data": [{"id": "null", "object": "model", "owned_by": "llmperf"}]}
    if head.startswith(b"POST"):
        words = len(body.split())
        found = {"choices": [{"index": 0, "text": " word", "finish_reason": "length"}],
                 "usage": {"prompt_tokens": words, "completion_tokens": 1}}  # fmt: skip
    packed = json.dumps(found).encode()
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    sock.sendall(head % len(packed) + packed)


def main() -> None:
    line = b""
    while not line.endswith(b"\n"):  # not a byte more: the loop reads the rest from the descriptor itself
        line += os.read(0, 1)
    asked = json.loads(line)
    tls = None
    if asked.get("certificate"):
        import ssl

        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(asked["certificate"])
    if asked.get("socket"):
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(asked["socket"])
        listener.listen(4096)
        port = 0
    else:
        listener = socket.create_server(("127.0.0.1", 0), backlog=4096)
        port = listener.getsockname()[1]
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    sys.stdout.write(f"{port}\n")
    sys.stdout.flush()
    with suppress(AttributeError, OSError):  # else its own lateness is in its log, and no error of the client's
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(2))
    serve(listener, tls)


if __name__ == "__main__":
    main()
