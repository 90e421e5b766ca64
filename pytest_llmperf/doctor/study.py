"""One step after another: the load as a test would send it, against the null server, and how far each time is off."""

from __future__ import annotations

import json
import marshal
import os
import subprocess
import sys
import time
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Final, Self, final

from pytest_llmperf.errors import InfraError
from pytest_llmperf.load.driver import Stop, begin
from pytest_llmperf.load.request import PreparedRequest, encode
from pytest_llmperf.plan import LoadProfile, TimeLimits
from pytest_llmperf.records import Arrival, ClientStats, Endpoint, Outcome, Phase, RequestRecord

__all__ = ["NullServer", "Step", "Stepped", "run_step"]

_SERVER: Final = Path(__file__).with_name("nullserver.py")


@final
@dataclass(frozen=True, slots=True)
class Step:
    """One load: ``streams`` at once, each of ``rate`` tokens/s for ``seconds``."""

    streams: int
    rate: float
    seconds: float = 2.0
    random: bool = False
    """Gaps are drawn from an exponential distribution, else constant."""
    in_step: bool = False
    """All streams move at the same moments, as those of a batching engine do."""
    clients: int = 1

    @property
    def tokens(self) -> int:
        """Of each stream."""
        return max(2, round(self.rate * self.seconds))


@final
@dataclass(frozen=True, slots=True)
class Stepped:
    """What a step showed. Errors in seconds."""

    step: Step
    events: int
    seconds: float
    """From the first send of the server to its last."""
    failed: int
    ttft_p50: float
    ttft_p99: float
    icl_p50: float
    icl_p99: float
    icl_max: float
    shared: float
    """Share of chunks that came in a read with an earlier one."""
    unstamped: float
    """Share of reads without a kernel stamp, 1 where there are no stamps."""
    busiest: float
    """CPU share of the busiest client process while the load ran."""
    cpu_per_event: float
    """CPU seconds of the client processes, from start to end, for each event."""
    lag_p99: float | None
    start_s: float
    """From the call to the first request's arrival."""
    realtime: bool

    @property
    def events_per_s(self) -> float:
        return self.events / self.seconds if self.seconds > 0 else 0.0


class NullServer:
    """The null server in a process of its own, as a context manager."""

    def __init__(self, *, certificate: Path | None = None, socket: Path | None = None) -> None:
        self._asked = {
            "certificate": str(certificate) if certificate else None,
            "socket": str(socket) if socket else None,
        }
        self._process: subprocess.Popen[bytes] | None = None
        self.endpoint = Endpoint("", "127.0.0.1", 0, certificate is not None, "null", "openai")

    def __enter__(self) -> Self:
        command = [sys.executable, "-I", "-S", str(_SERVER)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
        self._say(json.dumps(self._asked).encode() + b"\n")
        assert self._process.stdout is not None
        line = b""
        while not line.endswith(b"\n"):
            piece = os.read(self._process.stdout.fileno(), 1)
            if not piece:
                self.__exit__()
                raise InfraError("the null server of the study did not start")
            line += piece
        tls, port = self._asked["certificate"] is not None, int(line)
        where = self._asked["socket"]
        host = "localhost" if where or tls else "127.0.0.1"
        url = f"{'https' if tls else 'http'}://{host}" + ("" if where else f":{port}")
        self.endpoint = Endpoint(url, host, port, tls, "null", "openai", {}, where)
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            for pipe in (self._process.stdin, self._process.stdout):
                if pipe is not None:
                    pipe.close()

    def sent(self) -> dict[int, array[int]]:
        """By request: when it arrived, and when each of its tokens left; since the last call."""
        self._say(b"\n")
        packed = self._read(int.from_bytes(self._read(8), "little"))
        return {number: array("q", raw) for number, raw in marshal.loads(packed).items()}  # noqa: S302 - ours

    def _say(self, data: bytes) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(data)

    def _read(self, size: int) -> bytes:
        assert self._process is not None
        assert self._process.stdout is not None
        found = bytearray()
        while len(found) < size:
            piece = os.read(self._process.stdout.fileno(), size - len(found))
            if not piece:
                raise InfraError("the null server of the study died")
            found += piece
        return bytes(found)


def run_step(server: NullServer, step: Step, *, ca_file: Path | None = None) -> Stepped:
    """Send ``step`` and compare every record with what the server logged."""
    stop = Stop()
    begun_ns = time.monotonic_ns()
    # The server spreads what it sends; a staggered start besides would make a slow ramp of a step of a few seconds.
    load = LoadProfile(concurrency=step.streams, requests=step.streams, warmup=0, stagger=0.0)
    try:
        requests = _requests(server.endpoint, step)
        drive = begin(
            server.endpoint, requests, load, TimeLimits(), stop=stop, ca_file=ca_file, clients=step.clients
        ).result()
    finally:
        stop.close()
    return _compare(step, drive.records, drive.client, server.sent(), begun_ns)


def _requests(endpoint: Endpoint, step: Step) -> Iterator[PreparedRequest]:
    gap = 1000 / step.rate
    for index in range(step.streams):
        # Starts are spread over one gap, as those of a running load are.
        how = f"id={index} n={step.tokens} ttft={100 + gap * index / step.streams:.3f} gap={gap:.6f}"
        how += f" grid={gap:.6f}" if step.in_step else ""
        how += f" seed={index + 1}" if step.random else ""
        fields = {"model": endpoint.model, "prompt": f"[[null {how}]]", "max_tokens": step.tokens, "stream": True}
        arrival = Arrival(index, Phase.MEASURED, None, 1, step.tokens)
        yield PreparedRequest(arrival, encode(endpoint, "completions", fields))


def _compare(
    step: Step, records: Sequence[RequestRecord], client: ClientStats, truth: dict[int, array[int]], begun_ns: int
) -> Stepped:
    ttft: list[int] = []
    icl: list[int] = []
    events = failed = 0
    for record in records:
        sent = truth.get(record.index)
        if record.outcome is not Outcome.OK or sent is None or len(record.chunk_ns) != len(sent) - 1:
            failed += 1
            continue
        assert record.sent_ns is not None
        events += len(record.chunk_ns)
        ttft.append(abs((record.chunk_ns[0] - record.sent_ns) - (sent[1] - sent[0])))
        ours, theirs = pairwise(record.chunk_ns), pairwise(sent[1:])
        icl += [abs((b - a) - (d - c)) for (a, b), (c, d) in zip(ours, theirs, strict=True)]
    ttft.sort()
    icl.sort()
    first = min((sent[0] for sent in truth.values()), default=begun_ns)
    tokens = [min((sent[1] for sent in truth.values()), default=0), max((s[-1] for s in truth.values()), default=0)]
    return Stepped(
        step=step,
        events=events,
        seconds=(tokens[1] - tokens[0]) / 1e9,
        failed=failed,
        ttft_p50=_at(ttft, 0.5),
        ttft_p99=_at(ttft, 0.99),
        icl_p50=_at(icl, 0.5),
        icl_p99=_at(icl, 0.99),
        icl_max=_at(icl, 1.0),
        shared=client.shared_reads / max(1, client.output_chunks),
        unstamped=1.0 if client.stamps == "user" else client.unstamped_reads / max(1, client.reads),
        busiest=client.busiest or client.cpu_seconds / max(1e-9, client.wall_seconds),
        cpu_per_event=(client.cpu_total_seconds or client.cpu_seconds) / max(1, client.output_chunks),
        lag_p99=None if client.wake_lag_p99_ns is None else client.wake_lag_p99_ns / 1e9,
        start_s=(first - begun_ns) / 1e9,
        realtime=client.realtime,
    )


def _at(ordered: Sequence[int], share: float) -> float:
    """A quantile of ns in seconds."""
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] / 1e9 if ordered else float("nan")
