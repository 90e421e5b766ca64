"""What the requests of a plan hold, in the order of the plan: lengths, prefixes, turns, rows of files."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from random import Random

from pytest_llmperf.inputs.datasets import DataRow, read_dataset
from pytest_llmperf.inputs.traces import BLOCK_TOKENS, trace_rows
from pytest_llmperf.plan import Empirical, Fixed, Lengths, Lognormal, Normal, Part, Think, Uniform, Workload

__all__ = ["Content", "conversations", "rows_of"]

_NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Content:
    """One request without its place and time; fields as in ``records.Arrival``."""

    input_tokens: int | None
    output_tokens: int
    prefix_group: int | None = None
    prefix_tokens: int = 0
    blocks: tuple[int, ...] = ()
    history: tuple[tuple[int, int], ...] = ()
    think_ns: int = 0
    row: int | None = None
    part: int = 0
    stream: bool = True


def conversations(workload: Workload, seed: int) -> Iterator[tuple[Content, ...]]:
    """For ever: the turns of one conversation after the other; single requests are conversations of one.

    Every kind of draw has a generator of its own, so that none of them moves another.
    """
    if workload.trace is not None:
        return _traced(workload, seed)
    if workload.dataset is not None:
        return _recorded(workload, seed)
    return _drawn(workload, seed)


def rows_of(workload: Workload) -> tuple[DataRow, ...]:
    """The data set's rows; none without one."""
    data = workload.dataset
    return () if data is None else read_dataset(data.path, data.digest, workload.api)


def _drawn(workload: Workload, seed: int) -> Iterator[tuple[Content, ...]]:
    parts = workload.parts
    weights = [part.weight for part in parts]
    sources = [_Source(part, at, seed, f"/{at}" if at else "") for at, part in enumerate(parts)]
    choose = Random(f"{seed}/mixed")
    while True:
        at = choose.choices(range(len(parts)), weights)[0] if len(parts) > 1 else 0
        yield sources[at].conversation()


class _Source:
    """Draws the conversations of one part."""

    def __init__(self, part: Part, at: int, seed: int, name: str) -> None:
        assert part.input is not None
        assert part.output is not None
        self._part, self._at = part, at
        self._input = _lengths(part.input, Random(f"{seed}/input{name}"))
        self._output = _lengths(part.output, Random(f"{seed}/output{name}"))
        self._turns = _lengths(part.turns or Fixed(tokens=1), Random(f"{seed}/turns{name}"))
        self._think = _thinking(part.think_time, Random(f"{seed}/think{name}"))
        self._streams = _streaming(part.stream_share, Random(f"{seed}/stream{name}"))
        self._number = count()

    def conversation(self) -> tuple[Content, ...]:
        shared, number = self._part.shared_prefix, next(self._number)
        history: list[tuple[int, int]] = []
        found = []
        for turn in range(self._turns()):
            new, output = self._input(), self._output()
            total = sum(map(sum, history)) + new
            # At least one token of a prompt is its own.
            prefix = min(shared.tokens, (history[0][0] if history else new) - 1) if shared else 0
            found.append(
                Content(
                    input_tokens=total,
                    output_tokens=output,
                    # Groups take turns: every group is equally warm, and the plan stays even for any number.
                    prefix_group=number % shared.groups if shared else None,
                    prefix_tokens=prefix,
                    history=tuple(history),
                    think_ns=self._think() if turn else 0,
                    part=self._at,
                    stream=self._streams(),
                )
            )
            history.append((new, output))
        return tuple(found)


def _recorded(workload: Workload, seed: int) -> Iterator[tuple[Content, ...]]:
    """Rows of the data set in a random order, all of them before any comes again."""
    rows = rows_of(workload)
    shuffle = Random(f"{seed}/rows")
    draw_output = _lengths(workload.output, Random(f"{seed}/output")) if workload.output else None
    draw_turns = _lengths(workload.turns or Fixed(tokens=1), Random(f"{seed}/turns"))
    think, streams = (
        _thinking(workload.think_time, Random(f"{seed}/think")),
        _streaming(workload.stream_share, Random(f"{seed}/stream")),
    )
    while True:
        for number in shuffle.sample(range(len(rows)), len(rows)):
            row, turns, found = rows[number], draw_turns(), []
            for turn in range(min(turns, max(1, len(row.exchanges)))):
                output = draw_output() if draw_output else 0
                told = row.output_tokens or (None if draw_output else row.reply_tokens(turn))
                found.append(
                    Content(
                        input_tokens=None,
                        output_tokens=told or output,
                        history=((0, 0),) * turn,
                        think_ns=think() if turn else 0,
                        row=number,
                        stream=streams(),
                    )
                )
            yield tuple(found)


def _traced(workload: Workload, seed: int) -> Iterator[tuple[Content, ...]]:
    """Rows of the trace in their order, from the beginning again after the last."""
    assert workload.trace is not None
    streams = _streaming(workload.stream_share, Random(f"{seed}/stream"))
    while True:
        for row in trace_rows(workload.trace.path, workload.trace.digest):
            blocks = row.blocks[: math.ceil(row.input_tokens / BLOCK_TOKENS)]
            yield (Content(row.input_tokens, row.output_tokens, blocks=blocks, stream=streams()),)


def _lengths(lengths: Lengths, rng: Random) -> Callable[[], int]:
    """A source of lengths in tokens, each at least 1."""
    if isinstance(lengths, Fixed):
        return lambda: lengths.tokens
    if isinstance(lengths, Uniform):
        return lambda: rng.randint(lengths.low, lengths.high)
    if isinstance(lengths, Empirical):
        values, weights = lengths.values, lengths.weights
        return lambda: rng.choices(values, weights)[0]
    if isinstance(lengths, Normal):
        return lambda: min(lengths.high, max(lengths.low, round(rng.gauss(lengths.mean, lengths.sd))))
    assert isinstance(lengths, Lognormal)
    location = math.log(lengths.median)
    return lambda: min(lengths.high, max(lengths.low, round(rng.lognormvariate(location, lengths.sigma))))


def _thinking(think: Think | None, rng: Random) -> Callable[[], int]:
    """A source of think times in ns."""
    if think is None:
        return lambda: 0
    if think.kind == "uniform":
        return lambda: round(rng.uniform(think.low, think.high) * _NS)
    if think.kind == "exponential":
        return lambda: round(rng.expovariate(1 / think.mean) * _NS) if think.mean else 0
    return lambda: round(think.low * _NS)


def _streaming(share: float, rng: Random) -> Callable[[], bool]:
    return (lambda: True) if share >= 1 else (lambda: rng.random() < share)
