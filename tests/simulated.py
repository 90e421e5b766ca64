"""A batching server as a simulation of known truth, for the steady-state check: stationary unless told to slow down.

Every step of the server takes prompt tokens (up to a budget) and gives each running request one token; its time is
base + per sequence + per prompt token, times noise, times ``slow`` of the share of measured requests sent so far.
Run as a script it prints false-alarm and detection rates: ``python tests/simulated.py [runs]``.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from made import MS, record, trial

from pytest_llmperf.metrics.steady import steadiness
from pytest_llmperf.records import Phase, Trial, Window

BUDGET = 2048


@dataclass(frozen=True)
class Load:
    """``rate`` requests per second, Poisson, or ``concurrency`` in closed loop; uniform lengths."""

    n: int
    concurrency: int = 16
    rate: float | None = None
    output: tuple[int, int] = (64, 192)
    prompt: tuple[int, int] = (200, 800)
    lognormal: bool = False
    noise: float = 0.02
    stalls: float = 0.0
    """Chance of a stall of 100 ms on average per step."""
    slots: int = 256


def serve(load: Load, seed: int, slow: Callable[[float], float] = lambda share: 1.0) -> Trial:
    rng = Random(seed)
    warmup = 2 * load.concurrency if load.rate is None else int(2 * load.rate)
    total = warmup + load.n
    prompts = [_length(rng, load, load.prompt) for _ in range(total)]
    outputs = [_length(rng, load, load.output) for _ in range(total)]
    now, due = 0.0, 0.0
    sent: list[float] = []
    dues = []
    for _ in range(total if load.rate else 0):
        due += rng.expovariate(load.rate or 1)
        dues.append(due)
    if load.rate is None:
        sent = [i * 0.001 for i in range(load.concurrency)]
    waiting = deque(range(len(sent)))
    left: dict[int, int] = {}
    prefill: list[int] | None = None  # [request, prompt tokens left]
    first: dict[int, int] = {}
    steps: list[float] = []
    done = 0
    while done < total:
        while load.rate and len(sent) < total and dues[len(sent)] <= now:
            waiting.append(len(sent))
            sent.append(dues[len(sent)])
        if not waiting and not left and prefill is None:
            now = dues[len(sent)]
            continue
        budget, begun = BUDGET, []
        while budget and (prefill or (waiting and len(left) + len(begun) < load.slots)):
            prefill = prefill or [waiting[0], prompts[waiting.popleft()]]
            used = min(budget, prefill[1])
            budget -= used
            prefill[1] -= used
            if not prefill[1]:
                begun.append(prefill[0])
                prefill = None
        took = 0.005 + 0.00002 * (len(left) + len(begun) + BUDGET - budget)
        now += took * rng.lognormvariate(0, load.noise) * slow(max(0, len(sent) - warmup) / load.n)
        if rng.random() < load.stalls:
            now += rng.expovariate(10)
        ended = [j for j in left if left[j] == 1]
        left = {j: tokens - 1 for j, tokens in left.items() if tokens > 1}
        first |= dict.fromkeys(begun, len(steps))
        left |= {j: outputs[j] - 1 for j in begun}
        steps.append(now)
        done += len(ended)
        for _ in ended if load.rate is None else ():
            if len(sent) < total:
                waiting.append(len(sent))
                sent.append(now + 0.0003)
    return _trial(sent, first, outputs, steps, warmup)


def _length(rng: Random, load: Load, bounds: tuple[int, int]) -> int:
    if load.lognormal:
        return min(2048, max(8, round(rng.lognormvariate(0, 0.6) * sum(bounds) / 2)))
    return max(2, rng.randint(*bounds))


def _trial(sent: list[float], first: dict[int, int], outputs: list[int], steps: list[float], warmup: int) -> Trial:
    ms = [1000 * step for step in steps]
    records = [
        record(
            i,
            sent_ms=1000 * at,
            chunks_ms=[t - 1000 * at for t in ms[first[i] : first[i] + outputs[i]]],
            phase=Phase.WARMUP if i < warmup else Phase.MEASURED,
        )
        for i, at in enumerate(sent)
    ]
    end = max(r.last_output_ns or 0 for r in records)
    return trial(records, window=Window(round(1000 * sent[warmup] * MS), end))


LOADS = {
    "closed 16, equal lengths, 200": Load(200, output=(128, 128), prompt=(512, 512)),
    "closed 16, uniform, 600": Load(600),
    "closed 16, lognormal, 200": Load(200, lognormal=True),
    "closed 4, uniform, 200": Load(200, concurrency=4),
    "closed 16, noise 30 %, stalls, 300": Load(300, noise=0.3, stalls=0.005),
    "Poisson, a quarter of capacity, 400": Load(400, rate=6),
    "Poisson, near capacity (20 slots), 600": Load(600, rate=18, slots=20),
    "Poisson, busy, 600": Load(600, rate=20),
    "Poisson, twice the capacity, 600": Load(600, rate=40, slots=20),
}
CHANGES: dict[str, Callable[[float], float]] = {
    "none": lambda share: 1.0,
    "leak 20 %": lambda share: 1 + 0.25 * share,
    "step 20 % at 1/2": lambda share: 1.25 if share >= 0.5 else 1.0,
    "step 20 % at 3/10": lambda share: 1.25 if share >= 0.3 else 1.0,
    "first fifth twice as slow": lambda share: 2.0 if share < 0.2 else 1.0,
}
"""A fifth of the rate is a quarter more time."""


def main(runs: int) -> None:
    for name, load in LOADS.items():
        row = []
        for change, slow in CHANGES.items():
            many = runs if change == "none" else max(5, runs // 5)
            found = [steadiness(serve(load, seed, slow), load.rate is not None) for seed in range(many)]
            flagged = sum(one.unsettled is not None for one in found)
            checked = sum(one.checked for one in found)
            row.append(f"{change}: {flagged}/{many}" + (f" ({checked} checked)" if checked < many else ""))
        print(f"{name:42} {' | '.join(row)}", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 20)
