"""``vllm bench serve``'s figures follow from our records by its definitions, and every difference has its reason."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from truth_server import Script
from truth_wire import Wire, wire_of
from vllm_bench import VllmBench, convert, explain, ours, reference, total

from pytest_llmperf.load.client import Exchange
from pytest_llmperf.load.request import PreparedRequest
from pytest_llmperf.recordfile import read_records, write_records
from pytest_llmperf.records import Arrival, Outcome, Phase, RequestRecord

MS = 1_000_000
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
SENT = 1_000 * MS


def streams(path: str, *, role_ms: int = 0, first_ms: int = 50, gap_ms: int = 10, **script: Any) -> list[list[Any]]:
    """(ms, events) of each read: role, outputs, finish and usage, as a server of this script would write them."""
    found = wire_of(path, "m")
    assert found is not None
    made: Wire = found(Script(**{"n": 6, **script}), {}, "m", 5)
    reads: list[list[Any]] = [[role_ms, made.role()]] if made.role() else []
    n, merge, at, done = made.script.n, made.script.merge, first_ms, 0
    for index in range(-(-n // merge)):
        size = min(merge, n - done)
        done += size
        reads.append([at, made.output(index, size, done)])
        at += gap_ms
    return [*reads, [at, made.tail(n)]]


def both(reads: list[list[Any]], scheduled_ms: int | None = None) -> tuple[RequestRecord, VllmBench]:
    """The record that our client makes of the reads, and what theirs would have measured."""
    scheduled = None if scheduled_ms is None else SENT + scheduled_ms * MS
    exchange = Exchange(PreparedRequest(Arrival(0, Phase.MEASURED, None, 5, 6), b""), scheduled, held=False)
    exchange.sent_ns = SENT
    exchange.take(SENT, HEAD)
    for ms, events in reads:
        lines = b"".join(f"data: {event}\n\n".encode() for event in events)
        exchange.take(SENT + ms * MS, b"%x\r\n%s\r\n" % (len(lines), lines))
    exchange.closed_ns = SENT + reads[-1][0] * MS
    exchange.take(exchange.closed_ns, b"0\r\n\r\n")
    parsed = [
        (SENT + ms * MS, event if event == "[DONE]" else json.loads(event)) for ms, events in reads for event in events
    ]
    record = exchange.record()
    assert record.outcome is Outcome.OK
    return record, reference(SENT, parsed)


CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
CASES = {
    # vLLM: the role rides with the first token, the finish reason on the last one
    "vllm": streams(CHAT, role_ms=50, inline=True),
    "vllm completions": streams(TEXT, inline=True),
    # transformers: the role comes before prefill; SGLang and llama.cpp: the finish reason comes after the last token
    "early role": streams(CHAT, role_ms=1),
    "late finish": streams(CHAT, role_ms=50),
    # speculative decoding: three tokens a chunk, counted on each
    "speculative": streams(CHAT, role_ms=50, n=9, merge=3, continuous=True, inline=True),
    "held back": streams(TEXT, blank=2),
    "one token": streams(CHAT, role_ms=50, n=1, inline=True),
}


@pytest.mark.parametrize("name", CASES)
def test_their_figures_follow_from_the_record(name: str, tmp_path: Path) -> None:
    record, theirs = both(CASES[name])
    write_records(tmp_path / "r.jsonl.gz", [record])
    (stored,) = read_records(tmp_path / "r.jsonl.gz")
    found = convert(stored)
    assert found.ttft == pytest.approx(theirs.ttft)
    assert found.e2el == pytest.approx(theirs.e2el)
    assert found.tpot == (None if theirs.tpot is None else pytest.approx(theirs.tpot))
    assert sum(found.itl) == pytest.approx(sum(theirs.itl))
    if name != "held back":  # there, two events without output between the first and the outputs are joined to one gap
        assert found.itl == pytest.approx([gap for gap in theirs.itl if gap])


@pytest.mark.parametrize("scheduled_ms", [None, -30])
@pytest.mark.parametrize("name", CASES)
def test_every_difference_has_a_reason(name: str, scheduled_ms: int | None) -> None:
    record, theirs = both(CASES[name], scheduled_ms)
    why = explain(record)
    their = {"ttft": theirs.ttft, "e2e": theirs.e2el, "tpot": theirs.tpot, "sum of gaps": sum(theirs.itl)}
    for figure, value in ours(record).items():
        if value is not None:
            assert their[figure] == pytest.approx(value + total(why, figure)), figure


def test_the_differences_in_numbers() -> None:
    def reasons(name: str, scheduled_ms: int | None = None) -> list[tuple[str, float]]:
        record, _ = both(CASES[name], scheduled_ms)
        return [(difference.figure, round(difference.seconds * 1e3, 6)) for difference in explain(record)]

    assert reasons("vllm") == []  # on vLLM's own streams the two agree
    assert reasons("vllm completions") == []
    assert reasons("vllm", -30) == [("ttft", -30), ("e2e", -30)]  # ours has the wait for the slot in it
    # 49 ms of prefill are no TTFT but the first ITL; with the 10 ms to the finish event they raise TPOT by 59 / 5
    assert reasons("early role") == [("ttft", -49), ("e2e", 10), ("sum of gaps", 59), ("tpot", 11.8)]
    assert reasons("late finish") == [("e2e", 10), ("sum of gaps", 10), ("tpot", 2)]
    # 20 ms over 6 tokens after the first chunk are 3.33 ms; over 8 they look like 2.5
    assert reasons("speculative") == [("tpot", pytest.approx(-0.833333))]
    assert reasons("one token") == []


def test_a_single_token_has_no_tpot_in_either() -> None:
    record, theirs = both(CASES["one token"])
    assert (theirs.tpot, convert(record).tpot, ours(record)["tpot"]) == (None, None, None)


def test_without_usage_they_count_again_and_we_do_not_know() -> None:
    record, _ = both(streams(CHAT, role_ms=50, usage=False))
    assert record.output_tokens is None
    assert convert(record).tpot is None  # theirs would come from a tokenizer, which the record does not hide
    counted = replace(record, output_tokens=6, tokenizer_tokens=6)
    assert convert(counted).tpot == pytest.approx(0.012)
