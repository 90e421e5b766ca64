"""A million requests of history: what people wait for stays close to what reading the files takes."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from kept import identity, launch, session

from pytest_llmperf.baseline.codec import encode
from pytest_llmperf.baseline.keys import Key
from pytest_llmperf.baseline.samples import LaunchSamples, encode_samples, lines_of
from pytest_llmperf.baseline.schema import BaselineFile, Entry
from pytest_llmperf.baseline.select import Partner, select
from pytest_llmperf.baseline.store import Store
from pytest_llmperf.catalog import METRICS
from pytest_llmperf.cli.__main__ import main

TESTS = [f"perfsuites/test_chat.py::test_{number}" for number in range(10)]
VERSIONS = [f"0.{number}.0" for number in range(28)]
SESSIONS, LAUNCHES, REQUESTS = 6, 3, 200


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """10 tests, 28 versions of the engine, 6 sessions of 3 launches of 200 requests."""
    store = Store(tmp_path_factory.mktemp("history") / "baselines")
    metrics = {name: 0.1 + 0.01 * number for number, name in enumerate(METRICS)}
    launches = [launch(order, metrics=metrics) for order in range(LAUNCHES)]
    values = [0.1 + 0.000123 * number for number in range(REQUESTS)]
    for version in VERSIONS:
        who = identity(version)
        digest = who.digest()
        sessions = tuple(session(number, launches) for number in range(SESSIONS))
        lines = [
            line
            for each in sessions
            for line in lines_of(digest, each.id, [LaunchSamples(n, {"ttft": values}) for n in range(LAUNCHES)])
        ]
        packed = encode_samples(lines)
        for test in TESTS:
            path = Key.of(who, test).path
            file = BaselineFile(test=test, entries={digest: Entry(input=who.input, sessions=sessions)})
            place = Path(store.location) / path
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(encode(file))
            place.with_name(place.name.replace(".json", ".samples.jsonl.gz")).write_bytes(packed)
    assert len(TESTS) * len(VERSIONS) * SESSIONS * LAUNCHES * REQUESTS > 1_000_000
    return store


def seconds(work: Callable[[], object]) -> float:
    """Best of three."""
    taken = []
    for _ in range(3):
        began = time.perf_counter()
        work()
        taken.append(time.perf_counter() - began)
    return min(taken)


def test_list_show_diff_and_selection_cost_little_more_than_reading(
    store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = [Path(store.location) / path for path in store.paths()]
    reading = seconds(lambda: [json.loads(path.read_text()) for path in paths])
    where, key = ["--baselines", store.location], Key.of(identity("0.27.0"), TESTS[3])
    commands = {
        "list": ["baseline", "list", *where],
        "show": ["baseline", "show", key.path, *where],
        "diff": ["baseline", "diff", key.path, Key.of(identity("0.3.0"), TESTS[3]).path, *where],
    }
    for name, command in commands.items():
        taken = seconds(lambda command=command: main(command))
        assert taken < 12 * reading, f"{name}: {taken:.2f} s, reading {reading:.2f} s"
    choice = seconds(lambda: select(store, Key.of(identity("9.9.0"), TESTS[3]), identity("9.9.0"), "latest"))
    assert choice < reading, f"one file of {len(paths)} is needed: {choice:.2f} s, reading all {reading:.2f} s"
    capsys.readouterr()


def test_the_right_file_of_many_is_found(store: Store) -> None:
    found = select(store, Key.of(identity("0.20.1"), TESTS[3]), identity("0.20.1"), "latest")
    assert isinstance(found, Partner)
    assert (found.key.version, found.key.test) == ("0.20.0", TESTS[3])


def test_samples_of_one_entry_hold_all_its_requests(store: Store) -> None:
    lines = store.samples(Key.of(identity("0.20.0"), TESTS[0]).path, identity("0.20.0").digest())
    assert sum(len(line.seconds()) for line in lines) == SESSIONS * LAUNCHES * REQUESTS
