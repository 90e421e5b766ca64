"""Time and memory of the client by recorded chunks: 1e5, 1e6 and 1e7 of them, as a Markdown table.

    python tests/fidelity/chunks.py [--tokens 64,1000]

Parsing, packing for the way back and unpacking are those of a load; the raw reads are made beforehand, each load in a
process of its own so that its peak memory is its own.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import time

from pytest_llmperf.load.client import Exchange
from pytest_llmperf.load.job import pack_record, unpack_record
from pytest_llmperf.load.request import PreparedRequest
from pytest_llmperf.metrics import measure
from pytest_llmperf.records import Arrival, ClientStats, Phase, Trial, Window
from pytest_llmperf.samples import Telemetry

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def framed(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def response(number: int, tokens: int) -> list[bytes]:
    """The reads of one answer; each token comes in an event, a chunk and a read of its own."""
    begin = f'data: {{"id":"cmpl-{number:08x}","object":"text_completion","created":1,"model":"m","choices":['
    events = [
        f'{begin}{{"index":0,"text":" w{at:03d}","logprobs":null,"finish_reason":null}}]}}' for at in range(tokens)
    ]
    events += [f'{begin}{{"index":0,"text":"","finish_reason":"length"}}]}}']
    events += [f'data: {{"choices":[],"usage":{{"prompt_tokens":9,"completion_tokens":{tokens}}}}}', "data: [DONE]"]
    return [HEAD, *(framed(f"{each}\n\n".encode()) for each in events), b"0\r\n\r\n"]


def one(chunks: int, tokens: int) -> None:
    count = chunks // tokens
    parse = way = 0.0
    records = []
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for number in range(count):
        reads = response(number, tokens)
        made = Exchange(PreparedRequest(Arrival(number, Phase.MEASURED, None, 9, tokens), b""), None, held=False)
        made.sent_ns = start = 1_000_000 * number
        for at, data in enumerate(reads):
            made.take(start + 20_000 * at, data)
        made.closed_ns = start + 20_000 * len(reads)
        begun = time.process_time()
        record = made.record()
        parsed = time.process_time()
        records.append(unpack_record(pack_record(record)))
        parse, way = parse + parsed - begun, way + time.process_time() - parsed
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    stats = ClientStats("kernel", 1, 0, 0, 1, 0.0, 1.0, None, None, 10)
    window = Window(records[0].sent_ns or 0, records[-1].last_output_ns or 1)
    trial = Trial(0, 0, tuple(records), count, window, stats, Telemetry(), 0.0, 0)
    begun = time.process_time()
    measure([trial], None)
    metrics = time.process_time() - begun
    per = 1e6 / (count * tokens)
    print(f"| {count * tokens:,} | {tokens} | {parse:.2f} | {parse * per:.2f} | {way:.2f} | {metrics:.2f} "
          f"| {(parse + way + metrics) * per:.2f} | {(peak - before) / 1024 * per:.1f} |", flush=True)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", default="64,1000")
    parser.add_argument("--chunks", default="100000,1000000,10000000")
    parser.add_argument("--one", nargs=2, type=int)
    arguments = parser.parse_args()
    if arguments.one:
        one(*arguments.one)
        return
    print(
        "| chunks | in a request | parsing s | us/chunk | to and fro s | all metrics s | us/chunk in all "
        "| MB per 1e6 chunks |"
    )
    print("|---|---|---|---|---|---|---|---|", flush=True)
    for tokens in arguments.tokens.split(","):
        for chunks in arguments.chunks.split(","):
            subprocess.run([sys.executable, __file__, "--one", chunks, tokens], check=True)


if __name__ == "__main__":
    main()
