"""What analysing a trial costs: ``python tests/bench_analysis.py [chunks ...]`` prints seconds and memory.

No test: figures depend on the machine. The trial is a closed loop of 64 streams with 128 chunks each, chunk times in
arrays as the load generator keeps them, as tuples with ``--tuples``, with token counts per chunk with ``--tokens``.
"""

from __future__ import annotations

import resource
import sys
import time
from array import array
from collections.abc import Callable
from typing import Any

from made import client, record, trial

from pytest_llmperf.gate import judge
from pytest_llmperf.metrics import MEASURED, LoadFacts, assess, in_flight, measure
from pytest_llmperf.metrics.invariants import check_invariants
from pytest_llmperf.metrics.steady import steadiness
from pytest_llmperf.metrics.trial import counts
from pytest_llmperf.plan import Sla
from pytest_llmperf.records import Trial

STREAMS, CHUNKS, STEP_NS, TTFT_NS = 64, 128, 8_000_000, 90_000_000
SLO = {"ttft": 0.5, "icl": 0.05}
SLAS = [Sla(metric=f"{name}_p99", limit=0.02, written="20 ms", confidence=0.95) for name in ("icl", "ttft")]


def made(total: int, tuples: bool, tokens: bool) -> Trial:
    span = TTFT_NS + (CHUNKS - 1) * STEP_NS
    records = []
    for i in range(total // CHUNKS):
        sent = (i // STREAMS) * (span + 300_000) + (i % STREAMS) * 1_000_003
        first = sent + TTFT_NS + 37 * i % 1_000_000
        stamps: Any = array("q", (first + k * STEP_NS + (i * 7919 + k * 104729) % 1_000_000 for k in range(CHUNKS)))
        changes: dict[str, Any] = {
            "sent_ns": sent,
            "first_byte_ns": stamps[0],
            "first_output_ns": stamps[0],
            "first_answer_ns": stamps[0],
            "last_output_ns": stamps[-1],
            "closed_ns": stamps[-1],
            "chunk_ns": tuple(stamps) if tuples else stamps,
            "chunk_tokens": (1,) * CHUNKS if tokens else None,
            "output_tokens": CHUNKS,
            "requested_output_tokens": CHUNKS,
        }
        records.append(record(i, chunks_ms=(), **changes))
    return trial(records, end_ms=max(r.last_output_ns or 0 for r in records) / 1e6, client=client())


def timed(what: str, call: Callable[[], Any]) -> Any:
    begun, cpu = time.perf_counter(), time.process_time()
    found = call()
    print(f"  {what:34} {time.perf_counter() - begun:8.3f} s ({time.process_time() - cpu:.3f} s CPU)", flush=True)
    return found


def main(sizes: list[int], tuples: bool, tokens: bool) -> None:
    # Imports of numpy and scipy are paid once.
    judge(SLAS, measure([made(10_000, tuples, tokens)], SLO), invalid=(), ok=1, failed=0)
    for size in sizes:
        one = made(size, tuples, tokens)
        facts = LoadFacts(asked=MEASURED)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        print(f"{size:,} chunks in {len(one.records):,} requests")
        begun = time.perf_counter()
        found = timed("measure, all metrics", lambda one=one: measure([one], SLO))
        validity = timed("assess, invariants, steady state", lambda one=one, facts=facts: assess(one, facts))
        timed("in_flight and counts", lambda one=one: (in_flight(one), counts(one)))
        timed("judge two percentile limits", lambda found=found: judge(SLAS, found, invalid=(), ok=1, failed=0))
        total = time.perf_counter() - begun
        more = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
        print(f"  {'together':34} {total:8.3f} s, {1e6 * total / size:.2f} µs per chunk, at most {more:.0f} MiB more")
        timed("of assess: invariants", lambda one=one: check_invariants(one))
        timed("of assess: steady state", lambda one=one: steadiness(one, False))
        assert validity.valid, validity


if __name__ == "__main__":
    asked = [int(float(word)) for word in sys.argv[1:] if not word.startswith("--")]
    main(asked or [100_000, 1_000_000, 10_000_000], "--tuples" in sys.argv, "--tokens" in sys.argv)
