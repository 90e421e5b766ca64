"""Arrivals, lengths and texts of every load shape, against closed forms and the files they come from."""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import replace
from itertools import islice, pairwise
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

import pytest

from pytest_llmperf.errors import ConfigError
from pytest_llmperf.load.arrivals import schedule
from pytest_llmperf.load.contents import rows_of
from pytest_llmperf.load.curves import rate_curve
from pytest_llmperf.load.job import Load
from pytest_llmperf.load.prompts import Calibration
from pytest_llmperf.load.texts import prompt_of
from pytest_llmperf.plan import LoadProfile, Workload
from pytest_llmperf.planning import complete
from pytest_llmperf.records import Arrival, Phase

WORDS = Calibration(tokens_per_word=1.25, overhead_tokens=7)
SINGLE = {"input": {"uniform": [20, 60]}, "output": {"uniform": [8, 32]}}


def workload(folder: Path | None = None, **fields: Any) -> Workload:
    return Workload.model_validate({"name": "w", **fields}, context={"folders": (folder,)} if folder else None)


def profile(folder: Path | None = None, **fields: Any) -> LoadProfile:
    return LoadProfile.model_validate(fields, context={"folders": (folder,)} if folder else None)


def offsets(load: LoadProfile, seed: int = 0) -> list[float]:
    plan = schedule(workload(**SINGLE), load, seed)
    return [arrival.offset_ns / 1e9 for arrival in plan if arrival.offset_ns is not None]


@pytest.mark.parametrize("shape", [0.25, 1.0, 4.0])
def test_gamma_gaps_have_the_rate_and_the_burstiness(shape: float) -> None:
    n, rate = 20_000, 50.0
    times = offsets(profile(request_rate=rate, burstiness=shape, requests=n, warmup=0), seed=7)
    gaps = [b - a for a, b in pairwise([0.0, *times])]
    # mean 1/rate, coefficient of variation 1/sqrt(shape); five standard errors
    assert fmean(gaps) == pytest.approx(1 / rate, rel=5 / math.sqrt(shape * n))
    cv_error = math.sqrt((1 + 3 / shape) / (2 * n))
    assert pstdev(gaps) * rate == pytest.approx(1 / math.sqrt(shape), rel=5 * cv_error)


def test_constant_arrivals_of_a_linear_ramp_are_as_dense_as_its_integral() -> None:
    """From 2 to 10 req/s over 8 s: 2t + t²/2 arrivals by t, then 10 more each second."""
    times = offsets(
        profile(request_rate=10, arrival="constant", ramp={"from": 2, "over": "8 s"}, duration="12 s", warmup=0)
    )
    for number, at in enumerate(times):
        expected = 2 * at + at * at / 2 if at < 8 else 48 + 10 * (at - 8)
        assert expected == pytest.approx(number, abs=1e-6)
    assert len(times) == 48 + 40


def test_poisson_arrivals_follow_steps_and_a_pause() -> None:
    load = profile(request_rate=200, ramp=[[50, "20 s"], [0, "5 s"]], duration="40 s", warmup=0)
    times = offsets(load, seed=3)
    first = [at for at in times if at < 20]
    assert len(first) == pytest.approx(1000, abs=5 * math.sqrt(1000))
    assert not [at for at in times if 20.0001 < at < 25]
    assert len([at for at in times if 25 <= at < 35]) == pytest.approx(2000, abs=5 * math.sqrt(2000))


def test_the_inverse_of_a_rate_undoes_its_integral() -> None:
    for load in (
        profile(request_rate=3, ramp={"from": 0, "over": "4 s"}, requests=1),
        profile(request_rate=3, ramp={"from": 9, "over": "4 s"}, requests=1),
        profile(request_rate=3, ramp=[[1, "2 s"], [7, "3 s"]], requests=1),
    ):
        curve = rate_curve(load)
        for amount in (0.0, 0.1, 1.0, 5.9, 6.0, 23.9, 100.0):
            assert curve.integral(curve.inverse(amount)) == pytest.approx(amount, abs=1e-9)


def test_levels_of_a_concurrency_ramp_cross_at_the_halves() -> None:
    up = profile(concurrency=5, ramp={"from": 1, "over": "8 s"}, requests=9)
    assert up.levels == ((0, 1), (10**9, 2), (3 * 10**9, 3), (5 * 10**9, 4), (7 * 10**9, 5))
    down = profile(concurrency=1, ramp={"from": 3, "over": "4 s"}, requests=9)
    assert down.levels == ((0, 3), (10**9, 2), (3 * 10**9, 1))
    assert down.peak_concurrency == 3
    steps = profile(concurrency=2, ramp=[[1, "1 s"], [8, "2 s"]], requests=9)
    assert steps.levels == ((0, 1), (10**9, 8), (3 * 10**9, 2))


@pytest.mark.parametrize("parts", [1, 2, 3, 5])
def test_processes_share_levels_and_cap_without_rest(parts: int) -> None:
    load = Load.of(profile(concurrency=7, ramp=[[1, "1 s"], [6, "2 s"]], requests=9))
    shares = [Load(**load.share(part, parts)) for part in range(parts)]
    for at, level in enumerate(level for _, level in load.levels):
        assert sum(share.levels[at][1] for share in shares) == level
    capped = Load.of(profile(request_rate=7, max_concurrency=8, requests=9))
    assert sum(capped.share(part, parts)["max_concurrency"] for part in range(parts)) == 8


def test_a_given_schedule_is_kept_and_split_into_warm_up_and_window() -> None:
    load, notes = complete(workload(**SINGLE), profile(schedule=[0, 0.25, "500 ms", 2.0], warmup=1))
    plan = list(schedule(workload(**SINGLE), load, 0))
    assert [arrival.offset_ns for arrival in plan] == [0, 250_000_000, 500_000_000, 2_000_000_000]
    assert [arrival.phase for arrival in plan] == [Phase.WARMUP, *[Phase.MEASURED] * 3]
    assert (load.requests, notes) == (3, ())


def test_lengths_are_normal_or_empirical(tmp_path: Path) -> None:
    normal = workload(input={"normal": {"mean": 200, "sd": 20}}, output={"normal": {"mean": 3, "sd": 50, "high": 9}})
    plan = list(schedule(normal, profile(concurrency=1, requests=10_000, warmup=0), 1))
    inputs = [arrival.input_tokens or 0 for arrival in plan]
    assert fmean(inputs) == pytest.approx(200, abs=5 * 20 / 100)
    assert pstdev(inputs) == pytest.approx(20, rel=5 / math.sqrt(2 * 10_000))
    assert {1, 9} <= {arrival.output_tokens for arrival in plan} <= set(range(1, 10))
    (tmp_path / "lengths.csv").write_text("length,weight\n10,1\n40,3 # common\n\n10\n")
    mixed = workload(tmp_path, input={"empirical": "lengths.csv"}, output={"empirical": {"values": [5, 7]}})
    assert mixed.input is not None
    assert (mixed.input.values, mixed.input.weights) == ((10, 40), (2.0, 3.0))  # type: ignore[union-attr]
    plan = list(schedule(mixed, profile(concurrency=1, requests=5000, warmup=0), 1))
    counted = Counter(arrival.input_tokens for arrival in plan)
    assert counted[40] / 5000 == pytest.approx(0.6, abs=5 * math.sqrt(0.24 / 5000))


def test_a_mix_has_the_shares_of_its_weights_and_parts_do_not_move_each_other() -> None:
    long = {"weight": 1, "input": {"uniform": [900, 999]}, "output": 9, "sampling": {"temperature": 1}}
    short = {"weight": 3, "input": {"uniform": [10, 99]}, "output": 3}
    load = profile(concurrency=2, requests=4000, warmup=0)
    mix = workload(mixed=[short, long], sampling={"top_p": 1, "temperature": 0})
    plan = list(schedule(mix, load, 5))
    assert sum(arrival.part == 1 for arrival in plan) / 4000 == pytest.approx(0.25, abs=5 * math.sqrt(0.1875 / 4000))
    assert all((arrival.input_tokens or 0) >= 900 for arrival in plan if arrival.part)
    other = list(schedule(workload(mixed=[short, {**long, "input": 5}]), load, 5))
    assert [a.input_tokens for a in plan if not a.part] == [a.input_tokens for a in other if not a.part]
    assert mix.sampling_of(0) == {"top_p": 1, "temperature": 0}
    assert mix.sampling_of(1) == {"top_p": 1, "temperature": 1}


def test_a_share_of_requests_is_not_streamed_and_nothing_else_changes() -> None:
    load = profile(request_rate=5, requests=4000, warmup=0)
    some = list(schedule(workload(**SINGLE, stream_share=0.9), load, 2))
    every = list(schedule(workload(**SINGLE), load, 2))
    assert sum(arrival.stream for arrival in some) / 4000 == pytest.approx(0.9, abs=5 * math.sqrt(0.09 / 4000))
    assert [(a.offset_ns, a.input_tokens, a.output_tokens) for a in some] == [
        (a.offset_ns, a.input_tokens, a.output_tokens) for a in every
    ]


def test_turns_of_a_conversation_follow_each_other_and_prompts_grow_by_what_was_said() -> None:
    talk = workload(**SINGLE, turns={"uniform": [1, 4]}, think_time={"uniform": ["1 s", "2 s"]})
    load = profile(concurrency=3, requests=40, warmup=2)
    plan = list(schedule(talk, load, 0))
    assert [arrival.index for arrival in plan] == list(range(len(plan)))
    assert sum(arrival.phase is Phase.MEASURED for arrival in plan) == 40
    by_talk: dict[int, list[Arrival]] = {}
    for arrival in plan:
        by_talk.setdefault(arrival.conversation, []).append(arrival)
    assert {arrival.phase for number in (0, 1) for arrival in by_talk[number]} == {Phase.WARMUP}
    for turns in by_talk.values():
        assert [(arrival.turn, arrival.follows) for arrival in turns] == [
            (at, len(turns) - 1 - at) for at in range(len(turns))
        ]
        assert all(10**9 <= arrival.think_ns <= 2 * 10**9 for arrival in turns[1:])
        texts = [prompt_of(arrival, WORDS, 0, "s") for arrival in turns]
        assert isinstance(texts[0], str)
        messages = [[{"role": "user", "content": texts[0]}], *map(list, texts[1:])]
        for before, after in pairwise(messages):
            assert after[: len(before)] == before
            assert [m["role"] for m in after[len(before) :]] == ["assistant", "user"]
        for arrival, said in zip(turns, messages, strict=True):
            words = sum(len(str(message["content"]).split()) for message in said)
            assert 7 + 1.25 * words == pytest.approx(arrival.input_tokens, abs=1.25 * len(said))
    templated = replace(WORDS, exchange_tokens=10)
    for arrival in plan:
        said = prompt_of(arrival, templated, 0, "s")
        words = len((said if isinstance(said, str) else " ".join(message["content"] for message in said)).split())
        tokens = 7 + 10 * arrival.turn + 1.25 * words
        assert tokens == pytest.approx(arrival.input_tokens, abs=1.25 * (2 * arrival.turn + 1))
    spoken = [prompt_of(arrival, WORDS, 0, "s") for arrival in plan if not arrival.turn]
    assert len(set(map(str, spoken))) == len(spoken)
    as_text = prompt_of(next(a for a in plan if a.turn == 1), WORDS, 0, "s", chat=False)
    assert isinstance(as_text, str)


AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:17:03.9799600,120,10
2023-11-16 18:17:04.0319600,35,7
2023-11-16 18:17:09.9799601,800,1
"""
BURSTGPT = """Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type
100.0,a-1,3,GPT-4,60,12,72,Conversation log
101.5,a-2,0,ChatGPT,70,0,70,API log
103.0,a-1,2,GPT-4,90,5,95,Conversation log
"""
BURSTGPT_1 = """Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
5,ChatGPT,472,18,490,Conversation log
45,ChatGPT,1087,230,1317,Conversation log
"""
MOONCAKE = """{"timestamp": 27000, "input_length": 1300, "output_length": 40, "hash_ids": [7, 8, 9]}
{"timestamp": 27500, "input_length": 1100, "output_length": 3, "hash_ids": [7, 8, 12]}
{"timestamp": 30000, "input_length": 600, "output_length": 5, "hash_ids": [7, 13]}
"""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (AZURE, [(0, 120, 10), (52_000_000, 35, 7), (6_000_000_100, 800, 1)]),
        (AZURE.replace(".9799600", "+00:00").replace("04.0319600", "04+00:00").replace(".9799601", "+00:00"),
         [(0, 120, 10), (10**9, 35, 7), (6 * 10**9, 800, 1)]),
        (BURSTGPT, [(0, 60, 12), (3 * 10**9, 90, 5)]),
        (BURSTGPT_1, [(0, 472, 18), (40 * 10**9, 1087, 230)]),
        (MOONCAKE, [(0, 1300, 40), (500_000_000, 1100, 3), (3 * 10**9, 600, 5)]),
    ],
    ids=["azure-2023", "azure-2024", "burstgpt", "burstgpt-1", "mooncake"],
)  # fmt: skip
def test_a_trace_is_replayed_at_its_times_and_lengths(
    tmp_path: Path, text: str, expected: list[tuple[int, int, int]]
) -> None:
    (tmp_path / "t.trace").write_text(text)
    replay = workload(tmp_path, trace="t.trace")
    for scale in (None, 0.5, 3.0):
        load, _ = complete(replay, profile(tmp_path, trace="t.trace", time_scale=scale, warmup=0))
        plan = list(schedule(replay, load, 0))
        assert [(a.input_tokens, a.output_tokens) for a in plan] == [(inp, out) for _, inp, out in expected]
        assert [a.offset_ns for a in plan] == [round(at * (scale or 1)) for at, _, _ in expected]
        assert load.requests == len(expected)
    limited, _ = complete(replay, profile(tmp_path, trace="t.trace", warmup=0, duration="1 s"))
    assert len(list(schedule(replay, limited, 0))) == sum(at < 10**9 for at, _, _ in expected)
    closed = list(islice(schedule(replay, profile(concurrency=1, duration="1 s", warmup=0), 0), 2 * len(expected)))
    assert [a.input_tokens for a in closed] == 2 * [inp for _, inp, _ in expected]


def test_rows_without_tokens_are_left_out_and_said(tmp_path: Path) -> None:
    (tmp_path / "b.csv").write_text(BURSTGPT)
    _, notes = complete(workload(tmp_path, trace="b.csv"), profile(tmp_path, trace="b.csv", warmup=0))
    assert notes == ("trace b.csv: 1 requests without prompt or output tokens are left out",)


def test_equal_blocks_of_a_trace_are_equal_text(tmp_path: Path) -> None:
    (tmp_path / "m.jsonl").write_text(MOONCAKE)
    replay = workload(tmp_path, trace="m.jsonl")
    plan = list(schedule(replay, profile(tmp_path, trace="m.jsonl", warmup=0, requests=3), 0))
    texts = [str(prompt_of(arrival, WORDS, 0, "s")).split() for arrival in plan]
    assert [len(words) for words in texts] == [WORDS.words(a.input_tokens or 0) for a in plan]
    common = WORDS.words(2 * 512)
    assert texts[0][:common] == texts[1][:common]
    assert texts[0][common:][:2] != texts[1][common:][:2]
    one = WORDS.words(512)
    assert texts[2][:one] == texts[0][:one]
    assert texts[2][one:][:2] != texts[0][one:][:2]
    assert replay.shares


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a,b,c\n1,2,3\n", "line 1: 'a,b,c': expected a CSV with the columns TIMESTAMP"),
        (AZURE + "2023-11-16 18:17:01,5,5\n", "line 5: its time is before that of the line above"),
        (AZURE + "yesterday,5,5\n", "line 5: 'yesterday' is no date and time"),
        (AZURE + "2023-11-16 18:17:11,5.5,5\n", "line 5: '5.5' is no number of tokens"),
        (AZURE + "2023-11-16 18:17:11\n", "line 5: 1 of 3 columns"),
        (BURSTGPT + "soon,x,1,m,1,1,2,l\n", "line 5: 'soon' is no number of seconds"),
        (MOONCAKE + '{"timestamp": 1}\n', "line 4: '{\"timestamp\": 1}': expected"),
        (MOONCAKE + "{\n", "line 4: not JSON"),
    ],
)
def test_a_fault_of_a_trace_names_its_line(tmp_path: Path, text: str, expected: str) -> None:
    (tmp_path / "t").write_text(text)
    with pytest.raises(ConfigError) as caught:
        complete(workload(tmp_path, trace="t"), profile(tmp_path, trace="t", warmup=0))
    assert expected in str(caught.value)
    assert str(tmp_path / "t") in str(caught.value)


def test_a_file_that_changes_after_collection_is_refused(tmp_path: Path) -> None:
    (tmp_path / "t").write_text(AZURE)
    replay, load = workload(tmp_path, trace="t"), profile(tmp_path, trace="t", warmup=0, requests=2)
    (tmp_path / "t").write_text(AZURE + "\n")
    with pytest.raises(ConfigError, match="has changed since"):
        list(schedule(replay, load, 0))


def test_json_lines_are_sent_as_they_are_and_all_before_any_comes_again(tmp_path: Path) -> None:
    chat = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "Hi"}]
    rows = [
        {"prompt": "one two", "output_tokens": 5},
        {"messages": chat, "max_tokens": 6, "sampling": {"temperature": 0.5}},
        {"input": "three", "output_tokens": 7},
        {"input": chat, "output_tokens": 8},
    ]
    (tmp_path / "d.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
    texts = workload(tmp_path, dataset="d.jsonl")
    load, notes = complete(texts, profile(concurrency=1, requests=8, warmup=0))
    plan = list(schedule(texts, load, 3))
    known = rows_of(texts)
    sent = [prompt_of(arrival, WORDS, 3, "s", known) for arrival in plan]
    wanted = ["one two", tuple(chat), "three", tuple(chat)]
    for half in (slice(0, 4), slice(4, 8)):
        assert sorted(a.row or 0 for a in plan[half]) == [0, 1, 2, 3]
    assert [prompt == wanted[a.row or 0] for prompt, a in zip(sent, plan, strict=True)] == [True] * 8
    assert {a.row: a.output_tokens for a in plan} == {0: 5, 1: 6, 2: 7, 3: 8}
    assert {a.input_tokens for a in plan} == {None}
    assert known[1].sampling == {"temperature": 0.5}
    assert notes == ("data set d.jsonl has 4 texts for 8 requests: they come again, and a prefix cache may serve them",)


SHAREGPT = [
    {"id": "a", "conversations": [
        {"from": "gpt", "value": "stray"}, {"from": "human", "value": "q1"}, {"from": "gpt", "value": "w " * 20},
        {"from": "human", "value": "q2"}, {"from": "gpt", "value": "answer two"}, {"from": "human", "value": "q3"},
    ]},
    {"id": "b", "conversations": [{"from": "human", "value": "only a question"}]},
]  # fmt: skip


def test_sharegpt_gives_first_questions_or_whole_conversations(tmp_path: Path) -> None:
    (tmp_path / "s.json").write_text(json.dumps(SHAREGPT))
    (single,) = islice(
        schedule(workload(tmp_path, dataset="s.json"), profile(concurrency=1, requests=1, warmup=0), 0), 1
    )
    assert single.output_tokens == round(1.3 * 20)
    talk = workload(tmp_path, dataset="s.json", turns=9)
    plan = list(schedule(talk, profile(concurrency=1, requests=2, warmup=0), 0))
    last = prompt_of(plan[1], WORDS, 0, "s", rows_of(talk))
    assert [message["content"].split()[0] for message in last] == ["q1", "w", "q2"]  # type: ignore[index]
    assert [(a.turn, a.follows, a.output_tokens) for a in plan] == [(0, 1, 26), (1, 0, round(1.3 * 2))]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"prompt": 5}\n', "line 1: prompt '5' is not a text"),
        ('{"text": "x"}\n', "line 1: needs exactly one of prompt, messages and input; it has text"),
        ('{"prompt": "x", "output_tokens": 0}\n', "line 1: output_tokens 0 is no number of tokens"),
        ('{"prompt": "x", "sampling": {"stream": false}}\n', "line 1: sampling"),
        ('{"prompt": "x"}\n', "request 1: has no output_tokens, and the workload has no output"),
        ("nonsense\n", "line 1: not JSON"),
        ('[{"a": 1}]', "[0]: has no list of conversations"),
        ("", "has no request"),
    ],
)
def test_a_fault_of_a_data_set_names_its_line(tmp_path: Path, text: str, expected: str) -> None:
    (tmp_path / "d").write_text(text)
    with pytest.raises(ConfigError) as caught:
        complete(workload(tmp_path, dataset="d"), profile(concurrency=1, requests=1))
    assert expected in str(caught.value)


def test_plans_are_equal_for_equal_seeds_and_survive_being_stored(tmp_path: Path) -> None:
    (tmp_path / "m.jsonl").write_text(MOONCAKE)
    for fields in (
        {**SINGLE, "turns": {"uniform": [1, 5]}, "think_time": {"exponential": "1 s"}, "stream_share": 0.5},
        {"mixed": [{**SINGLE, "weight": 2}, {**SINGLE, "turns": 2}]},
        {"trace": "m.jsonl"},
    ):
        shape = workload(tmp_path, **fields)
        again = Workload.model_validate_json(shape.model_dump_json())
        assert again == shape
        load = profile(request_rate=4, burstiness=0.5, ramp={"from": 1, "over": "9 s"}, requests=60)
        assert LoadProfile.model_validate_json(load.model_dump_json()) == load
        first, second = (list(schedule(each, load, 1)) for each in (shape, again))
        assert first == second
        assert first != list(schedule(shape, load, 2))
