"""One streamed answer of the truth server: what goes out when, in which pieces, and what is wrong with it."""

from __future__ import annotations

import time
import zlib
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

from truth_wire import Wire

if TYPE_CHECKING:
    from truth_server import Peer, Server

__all__ = ["Stream"]


class Stream:
    """One streamed answer: a generator of (due ns, chunk of bytes, tokens) that ``step`` works off."""

    def __init__(self, server: Server, peer: Peer, wire: Wire, start: int) -> None:
        self.server, self.peer, self.wire, self.script, self.start = server, peer, wire, wire.script, start
        self.packer = zlib.compressobj(wbits=31) if self.script.coding == "gzip" else None
        self.parts = self.plan()
        self.comment_due = start + round(self.script.comment * 1e6) if self.script.comment else 0
        if self.comment_due:
            server.at(self.comment_due, self.comment)

    def step(self) -> None:
        """Send what is due now, and come back for the rest."""
        for due, data, tokens in self.parts:
            if due > time.monotonic_ns():
                self.server.at(due, partial(self.late, data, tokens))
                return
            self.emit(data, tokens)
            if self.peer.gone:
                self.server.end(self.peer, keep=False)
                return

    def late(self, data: bytes, tokens: list[int]) -> None:
        if not self.peer.gone:
            self.emit(data, tokens)
            self.step()

    def emit(self, data: bytes, tokens: list[int]) -> None:
        log = self.peer.log
        before = time.monotonic_ns()
        self.server.send(self.peer, data)
        after = time.monotonic_ns()
        for count in tokens:
            log["sends"].append(before)
            log["after"].append(after)
            log["tokens"].append(count)

    def comment(self) -> None:
        if not self.peer.gone and self.peer.log:
            self.server.send(self.peer, self.frame(self.wire.comment()))
            self.comment_due += round(self.script.comment * 1e6)
            self.server.at(self.comment_due, self.comment)

    def frame(self, data: bytes) -> bytes:
        if self.packer is not None:
            data = self.packer.compress(data) + self.packer.flush(zlib.Z_SYNC_FLUSH)
        return data if self.script.framing == "close" or not data else b"%x\r\n%s\r\n" % (len(data), data)

    def events(self, texts: list[str], packed: bool = False) -> bytes:
        """Events in an HTTP chunk each, or ``packed`` into one."""
        lines = [self.wire.line(text) for text in texts]
        return self.frame(b"".join(lines)) if packed else b"".join(map(self.frame, lines))

    def head(self) -> Iterator[tuple[int, bytes, list[int]]]:
        script = self.script
        head = "HTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\n" * script.interim
        head += f"HTTP/1.1 200 OK\r\ncontent-type: {script.kind or self.wire.kind}\r\n"
        head += f"content-encoding: {script.coding}\r\n" if script.coding else ""
        head += "connection: close\r\n" if script.close or script.framing == "close" else ""
        head += "" if script.framing == "close" else "transfer-encoding: chunked\r\n"
        opening = (head + "\r\n").encode()
        if script.slow_head:
            size = len(opening) // 9
            for index in range(9):
                due = self.start + round(script.slow_head * 1e5 * index)
                yield due, opening[index * size : (index + 1) * size], []
            self.start += round(script.slow_head * 1e6)
            opening = opening[9 * size :]
        yield self.start, opening + self.events(self.wire.role()), []

    def pieces(self, due: int, data: bytes, tokens: list[int]) -> Iterator[tuple[int, bytes, list[int]]]:
        """``data`` cut into sends; it counts as sent with the last of them."""
        cuts = min(self.script.cuts, len(data))
        for index in range(cuts):
            part = data[index * len(data) // cuts : (index + 1) * len(data) // cuts]
            yield due + round(index * self.script.trickle * 1e6), part, tokens if index == cuts - 1 else []

    def broken(self) -> Iterator[tuple[int, bytes, list[int]]]:
        """What is no answer at all."""
        script, peer = self.script, self.peer
        if script.cut_after == -2:
            self.server.end(peer, keep=False)
        elif script.cut_after == -3:
            yield self.start, b"HTTP/1.1 200 OK\r\ncontent-ty", []
            self.server.end(peer, keep=False)
        elif script.raw == "garbage":
            yield self.start, b"SSH-2.0-OpenSSH_9.6\r\n", []
        elif script.raw == "json":
            self.server.plain(peer, 200, {"choices": [{"message": {"content": "not a stream"}}]})
        elif script.raw == "html":
            page = b"<html>the proxy's login page</html>"
            head = b"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: %d\r\n\r\n" % len(page)
            yield self.start, head + page, []
            self.server.end(peer, keep=True)

    def plan(self) -> Iterator[tuple[int, bytes, list[int]]]:
        script, peer, wire = self.script, self.peer, self.wire
        if script.cut_after in (-2, -3) or script.raw in ("garbage", "json", "html"):
            yield from self.broken()
            return
        yield from self.head()
        while script.raw == "endless" and not peer.gone:
            yield self.start, self.frame(b"x" * 65536), []
        while script.raw == "flood" and not peer.gone:
            yield self.start, self.events([*wire.output(0, 1, 1)] * 500, packed=True), []
        sizes = [min(script.merge, script.n - done) for done in range(0, script.n, script.merge)]
        first = self.start + round(script.ttft * 1e6)
        done, together = 0, script.joined * script.packed
        for index in range(0, len(sizes), together):
            due = first + round(index * script.gap * 1e6)
            if 0 <= script.error_after <= index:
                yield due, self.events(wire.error()) + self.end_mark(), []
                self.server.end(peer, keep=True)
                return
            if 0 <= script.cut_after <= index:
                yield due, b"", []
                self.server.end(peer, keep=False, reset=True)
                return
            if 0 <= script.stall_after <= index:
                return
            data, group = b"", sizes[index : index + together]
            for start in range(0, len(group), script.packed):
                texts = []
                for offset, size in enumerate(group[start : start + script.packed], start):
                    done += size
                    texts += wire.output(index + offset, size, done)
                data += self.events(texts, packed=script.packed > 1)
            yield from self.pieces(due, data, group)
        tail = self.events(wire.tail(done)) + self.end_mark()
        if script.framing == "pieces":
            yield self.start, tail[:-7], []
            for at in range(len(tail) - 7, len(tail)):
                yield time.monotonic_ns() + 2_000_000, tail[at : at + 1], []
        else:
            yield self.start, tail, []
        self.server.end(peer, keep=not (script.close or script.stale or script.framing == "close"))

    def end_mark(self) -> bytes:
        if self.script.framing == "trailer":
            return b"0\r\nx-trailer: yes\r\n\r\n"
        return b"" if self.script.framing == "close" else b"0\r\n\r\n"
