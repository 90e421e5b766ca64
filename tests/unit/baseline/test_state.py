"""What the gate remembers, and how it goes on where that is lost."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from kept import START, launch

from pytest_llmperf.baseline.remembered import MOST_VARIANCE
from pytest_llmperf.baseline.state import (
    BLIND,
    BlockSequence,
    Durations,
    NoiseKey,
    PriorRow,
    SequenceKey,
    State,
    StoredNoise,
)
from pytest_llmperf.baseline.store import Store
from pytest_llmperf.errors import InfraError
from pytest_llmperf.stats.prior import NoiseGroup, Prior

KEY = SequenceKey("a" * 16, "b" * 16, "t.py::t", "w", None, "c")
NOISE = NoiseKey("H200x1", "w", "vllm", "bf16")
PRIOR = {"ttft_p50": PriorRow(s0_squared=1e-4, d0=4)}


class Clock:
    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> datetime:
        return self.now

    def hours(self, number: float) -> None:
        self.now += timedelta(hours=number)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def told() -> list[str]:
    return []


@pytest.fixture
def directory(tmp_path: Path) -> Store:
    """Where what is tested does not depend on the kind of store."""
    return Store(tmp_path / "baselines")


@pytest.fixture
def state(store: Store, clock: Clock, told: list[str]) -> State:
    """Of a new process each time that it is called for again."""
    return State(store, told.append, clock)


def again(state: State, store: Store, clock: Clock, told: list[str]) -> State:
    return State(store, told.append, clock)


def blocks(sequence: BlockSequence, number: int = 1) -> BlockSequence:
    """``sequence`` with so many whole blocks."""
    arms = [tuple(launch(2 * n + arm, block=n) for n in range(number)) for arm in (0, 1)]
    return sequence.model_copy(update={"baseline": arms[0], "candidate": arms[1]})


def test_an_undecided_sequence_goes_on_with_its_own_prior(
    state: State, store: Store, clock: Clock, told: list[str]
) -> None:
    first = state.begin(KEY, PRIOR)
    assert (first.number, first.status, first.baseline, first.prior) == (1, "open", (), PRIOR)
    block = launch(0, block=0), launch(1, block=0)
    state.save(first.model_copy(update={"baseline": block[:1], "candidate": block[1:]}))
    clock.hours(23.9)
    later = again(state, store, clock, told)
    found = later.begin(KEY, {"ttft_p50": PriorRow(s0_squared=9, d0=1)})
    assert (found.number, found.baseline, found.candidate) == (1, block[:1], block[1:])
    assert found.prior == PRIOR
    later.save(found)
    clock.hours(23.9)  # counted from the last blocks
    assert again(state, store, clock, told).begin(KEY, {}).candidate == block[1:]
    assert told == []


def test_after_a_day_or_a_decision_another_sequence_begins(
    state: State, store: Store, clock: Clock, told: list[str]
) -> None:
    state.save(blocks(state.begin(KEY, PRIOR)).model_copy(update={"verdict": "INCONCLUSIVE"}))
    clock.hours(24.1)
    second = state.begin(KEY, {})
    assert (second.number, second.earlier, second.baseline, second.prior) == (2, ("INCONCLUSIVE",), (), {})
    state.save(second.model_copy(update={"status": "decided", "verdict": "PASS"}))
    third = again(state, store, clock, told).begin(KEY, {})
    assert (third.number, third.earlier) == (3, ("INCONCLUSIVE", "PASS"))


def test_any_other_pair_is_another_sequence(state: State) -> None:
    state.save(blocks(state.begin(KEY, PRIOR)))
    for change in (
        {"baseline": "x"},
        {"candidate": "x"},
        {"test": "x"},
        {"workload": "x"},
        {"pool": "x"},
        {"config": "x"},
    ):
        assert state.begin(replace(KEY, **change), {}).baseline == ()


def test_two_runs_do_not_go_on_with_one_sequence(state: State, store: Store, clock: Clock, told: list[str]) -> None:
    rival = again(state, store, clock, told)
    ours, theirs = state.begin(KEY, PRIOR), rival.begin(KEY, PRIOR)
    rival.save(blocks(theirs))
    with pytest.raises(InfraError, match="another run goes on with this sequence"):
        state.save(ours)
    assert state.begin(KEY, PRIOR).baseline == blocks(theirs).baseline


def noise(clock: Clock, variance: float = 1e-4) -> StoredNoise:
    return StoredNoise(created=clock.now, spread={"ttft_p50": (variance, 4)})


def test_noise_keeps_the_newest_twelve_groups_of_ninety_days(
    state: State, store: Store, clock: Clock, told: list[str]
) -> None:
    assert state.noise(NOISE) == ()
    for number in range(7):
        state.learn(NOISE, [noise(clock, number), noise(clock, number)])
        clock.hours(24)
    kept = again(state, store, clock, told).noise(NOISE)
    assert [group.spread["ttft_p50"][0] for group in kept] == [1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6]
    clock.hours(24 * 85)
    assert [group.spread["ttft_p50"][0] for group in state.noise(NOISE)] == [2, 2, 3, 3, 4, 4, 5, 5, 6, 6]
    assert state.noise(replace(NOISE, runner="H200x2")) == ()


def test_noise_of_the_future_or_without_a_metric_does_not_count(state: State, clock: Clock) -> None:
    future = StoredNoise(created=clock.now + timedelta(days=2), spread={"ttft_p50": (1.0, 4)})
    state.learn(NOISE, [future, StoredNoise(created=clock.now, spread={}), noise(clock)])
    assert state.noise(NOISE) == (noise(clock),)


def test_durations_of_a_server_and_its_tests(state: State) -> None:
    assert state.durations("digest") == Durations()
    state.note_durations("digest", [60.0], {"a": [5.0, 6.0]}, {})
    state.note_durations("digest", [70.0], {"b": [7.0]}, {})
    found = state.durations("digest")
    assert found.launch_s == (60.0, 70.0)
    assert found.replay_s == {"a": (5.0, 6.0), "b": (7.0,)}
    state.note_durations("digest", range(100, 120), {}, {})
    assert state.durations("digest").launch_s == tuple(range(108, 120))
    assert state.durations("other") == Durations()


def test_undecided_runs_in_a_row(state: State) -> None:
    assert state.undecided("t") == 0
    assert [state.count("t", undecided=True) for _ in range(3)] == [1, 2, BLIND]
    assert state.undecided("t") == BLIND
    assert state.count("t", undecided=False) == 0
    assert state.undecided("t") == 0


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[" * 100_000,
        b'{"schema": "pytest-llmperf/state/2"}',
        b'{"schema": "pytest-llmperf/state/1", "runs": 3}',
        b'{"schema": "pytest-llmperf/state/1", "test": "t", "runs": -3}',
    ],
)
def test_what_cannot_be_trusted_is_set_aside_and_said(state: State, store: Store, told: list[str], data: bytes) -> None:
    state.count("t", undecided=True)
    [path] = [path for path in store.files.walk("_state/undecided") if path.endswith(".json")]
    found = store.files.read(path, 1 << 20)
    assert found is not None
    store.files.write(path, data, found.tag)
    assert state.undecided("t") == 0
    [warning] = told
    assert f"{store.location}/{path}: " in warning
    assert ".refused and not used" in warning
    aside = store.files.read(f"{path}.refused", 1 << 20)
    assert aside is not None
    assert aside.data == data
    assert state.count("t", undecided=True) == 1
    assert len(told) == 1


def change(store: Store, kind: str, *steps: str | int, to: object) -> None:
    """The one file of that kind, as a hand might have edited it."""
    [path] = [path for path in store.files.walk(f"_state/{kind}") if path.endswith(".json")]
    found = store.files.read(path, 1 << 20)
    assert found is not None
    content = place = json.loads(found.data)
    for step in steps[:-1]:
        place = place[step]
    place[steps[-1]] = to
    store.files.write(path, json.dumps(content).encode(), found.tag)


@pytest.mark.parametrize(
    ("steps", "to"),
    [
        (("prior", "ttft_p50", "d0"), 4.5),
        (("prior", "ttft_p50", "s0_squared"), 1e300),
        (("prior", "speed"), {"s0_squared": 1, "d0": 1}),
        (("max_blocks",), 1),
        (("metrics",), ["error_rate"]),
        (("metrics",), ["speed"]),
        (("candidate", 1, "block"), 0),  # twice the same
        (("candidate", 1, "block"), 7),  # of no baseline
        (("candidate",), []),
        (("candidate", 1, "order"), 0),
        (("candidate", 1, "n_failed"), 201),
        (("candidate", 1, "n_requests"), 10**400),
        (("candidate", 1, "n_tokens"), -1),
        (("candidate", 1, "block"), -1),
        (("candidate", 0, "replays"), 0),
        (("candidate", 0, "replays"), 10**9),
    ],
)
def test_blocks_that_cannot_be_judged_are_set_aside(
    directory: Store, clock: Clock, told: list[str], steps: tuple[str | int, ...], to: object
) -> None:
    state = State(directory, told.append, clock)
    sound = state.save(blocks(state.begin(KEY, PRIOR), 2))
    assert state.begin(KEY, {}).candidate == sound.candidate
    change(directory, "sequences", *steps, to=to)
    found = state.begin(KEY, PRIOR)
    assert (found.number, found.candidate, found.prior) == (1, (), PRIOR)
    assert ".refused and not used" in told[0]
    assert state.save(blocks(found)).number == 1


@pytest.mark.parametrize(
    ("steps", "to"),
    [
        (("spread", "ttft_p50"), [1e-4, 1]),
        (("spread", "ttft_p50"), [1e-4, 10**400]),
        (("spread", "ttft_p50"), [-1e-4, 4]),
        (("spread", "ttft_p50"), [1e308, 4]),
        (("spread", "speed"), [1e-4, 4]),
        (("within", "ttft_p50"), -1.0),
        (("within", "speed"), 1.0),
        (("replays",), 0),
    ],
)
def test_noise_that_cannot_be_is_set_aside(
    directory: Store, clock: Clock, told: list[str], steps: tuple[str, ...], to: object
) -> None:
    state = State(directory, told.append, clock)
    state.learn(NOISE, [noise(clock)])
    change(directory, "noise", "groups", 0, *steps, to=to)
    assert state.noise(NOISE) == ()
    assert ".refused and not used" in told[0]
    state.learn(NOISE, [noise(clock)])
    assert state.noise(NOISE) == (noise(clock),)


@pytest.mark.parametrize(
    ("steps", "to"),
    [
        (("launch_s",), [0.0]),
        (("replay_s", "a"), [-1.0]),
        (("replay_s", "a"), [1e300]),
        (("noise", "a"), {"runner": "r"}),
        (("noise", "a"), {**asdict(NOISE), "more": "x"}),
    ],
)
def test_times_that_cannot_be_are_set_aside(
    directory: Store, clock: Clock, told: list[str], steps: tuple[str, ...], to: object
) -> None:
    state = State(directory, told.append, clock)
    state.note_durations("digest", [60.0], {"a": [5.0]}, {"a": NOISE})
    change(directory, "durations", *steps, to=to)
    assert state.durations("digest") == Durations()
    assert ".refused and not used" in told[0]


def test_more_blocks_than_were_to_be_run_are_set_aside(directory: Store, clock: Clock, told: list[str]) -> None:
    state = State(directory, told.append, clock)
    state.save(blocks(state.begin(KEY, PRIOR), 4))
    change(directory, "sequences", "max_blocks", to=3)
    assert state.begin(KEY, PRIOR).candidate == ()
    assert "4 blocks, where at most 3 were to be run" in told[0]


def test_every_noise_that_is_kept_makes_a_prior_that_the_gate_takes(clock: Clock) -> None:
    widest = StoredNoise(created=clock.now, spread={"ttft_p50": (MOST_VARIANCE, 2)})
    for number in (1, 4, 12):
        groups = [NoiseGroup(float(n), widest.spread) for n in range(number)]
        for s0_squared, d0 in Prior.from_history(groups).values():
            PriorRow(s0_squared=s0_squared, d0=d0)


def test_a_replay_that_took_no_time_tells_none(state: State) -> None:
    state.note_durations("digest", [60.0], {"a": [0.0, 5.0]}, {})
    assert state.durations("digest").replay_s == {"a": (5.0,)}


def test_state_is_no_baseline(state: State, store: Store) -> None:
    state.count("t", undecided=True)
    assert list(store.walk()) == []


def test_where_nothing_can_be_written_reading_goes_on(tmp_path: Path, clock: Clock, told: list[str]) -> None:
    (tmp_path / "file").write_text("")
    state = State(Store(tmp_path / "file"), told.append, clock)
    assert not state.writable
    assert state.begin(KEY, PRIOR).number == 1
    assert state.undecided("t") == 0
    with pytest.raises(InfraError, match="cannot be written"):
        state.save(state.begin(KEY, PRIOR))
