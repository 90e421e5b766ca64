"""The store: the same behaviour in a directory, in memory, and on an S3 server over HTTP."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from kept import DEFINITIONS, TEST, identity, launch, put, samples, session

from pytest_llmperf.baseline.keys import Key
from pytest_llmperf.baseline.samples import LaunchSamples
from pytest_llmperf.baseline.store import Store
from pytest_llmperf.errors import BaselineError, InfraError, UsageError

KEY = Key.of(identity(), TEST)


def ids(store: Store, digest: str | None = None) -> list[str]:
    file = store.read(KEY)
    assert file is not None
    return [each.id for each in file.entries[digest or identity().digest()].sessions]


def test_an_empty_store_has_nothing(store: Store) -> None:
    assert store.read(KEY) is None
    assert list(store.walk()) == []
    assert store.versions(KEY) == []
    assert store.samples(KEY.path, identity().digest()) == []


def test_what_is_appended_is_read(store: Store) -> None:
    put(store)
    file = store.read(KEY)
    assert file is not None
    assert file.test == TEST
    entry = file.entries[identity().digest()]
    assert entry.sessions == (session(),)
    assert entry.identity() == identity()
    assert entry.definitions == DEFINITIONS
    assert list(store.walk()) == [(KEY.path, file)]
    lines = store.samples(KEY.path, identity().digest())
    assert [(line.session, line.order, line.family, line.seconds()) for line in lines] == [
        (session().id, order, "ttft", [0.1, 0.12, 0.14]) for order in range(3)
    ]


def test_the_path_is_that_of_the_documentation(store: Store) -> None:
    put(store)
    path = "vllm/0.33.0/bf16/nvidia-h200x1/meta-llama--llama-3.1-8b-{}/perfsuites--test_chat.py@test_chat.json"
    model = KEY.path.split("/")[4].rpartition("-")[2]
    assert store.paths() == [path.format(model)]


def test_a_seventh_session_makes_the_oldest_go_with_its_samples(store: Store) -> None:
    for number in range(7):
        put(store, what=session(number))
    assert ids(store) == [session(number).id for number in range(1, 7)]
    assert {line.session for line in store.samples(KEY.path, identity().digest())} == set(ids(store))
    found = store.files.read(KEY.path.replace(".json", ".samples.jsonl.gz"), 1 << 20)
    assert found is not None
    assert session(0).id not in gzip.decompress(found.data).decode()


def test_sessions_are_in_the_order_of_their_time(store: Store) -> None:
    for number in (2, 0, 1):
        put(store, what=session(number))
    assert ids(store) == [session(number).id for number in range(3)]


def test_parameter_sets_live_side_by_side(store: Store) -> None:
    other = identity(max_num_seqs="32")
    put(store)
    put(store, other, session(1))
    assert ids(store) == [session(0).id]
    assert ids(store, other.digest()) == [session(1).id]
    assert {line.session for line in store.samples(KEY.path, other.digest())} == {session(1).id}


def test_replace_starts_anew_and_leaves_other_parameter_sets(store: Store) -> None:
    other = identity(max_num_seqs="32")
    put(store, other)
    put(store)
    put(store, what=session(1), replace=True)
    assert ids(store) == [session(1).id]
    assert ids(store, other.digest()) == [session(0).id]
    assert {line.session for line in store.samples(KEY.path, identity().digest())} == {session(1).id}
    assert {line.session for line in store.samples(KEY.path, other.digest())} == {session(0).id}


def test_a_session_is_stored_once(store: Store) -> None:
    put(store)
    put(store)
    assert ids(store) == [session().id]
    assert len(store.samples(KEY.path, identity().digest())) == 3


def test_values_of_another_definition_are_refused_until_replaced(store: Store) -> None:
    put(store)
    with pytest.raises(BaselineError, match=r"ttft_p50 is stored by definition ttft/1, now it is ttft/2.*--replace"):
        put(store, what=session(1), definitions={"ttft_p50": "ttft/2"})
    assert ids(store) == [session(0).id]
    put(store, what=session(1), definitions={"ttft_p50": "ttft/2"}, replace=True)
    assert ids(store) == [session(1).id]


def test_a_key_of_another_identity_is_a_fault_of_the_caller(store: Store) -> None:
    with pytest.raises(ValueError, match="not the key of that identity"):
        store.append(replace(KEY, version="9"), identity(), session(), definitions={})


def test_versions_are_found_whatever_their_spelling(store: Store) -> None:
    versions = ["0.9.0", "0.33.0rc1+cu129", "b9000", "2.5.0.dev1+G1A2B", "unknown"]
    for version in versions:
        put(store, identity(version))
    put(store, identity("0.1.0"), test="perfsuites/test_chat.py::test_other")
    assert sorted(key.version for key in store.versions(KEY)) == sorted(versions)
    assert all(store.read(key) is not None for key in store.versions(KEY))


def test_whole_files_and_single_sessions_are_removed(store: Store) -> None:
    digest = identity().digest()
    for number in range(3):
        put(store, what=session(number))
    store.remove(KEY.path, {digest: [session(0).id, session(2).id]})
    assert ids(store) == [session(1).id]
    assert {line.session for line in store.samples(KEY.path, digest)} == {session(1).id}
    store.remove(KEY.path, {digest: [session(1).id]})
    assert list(store.files.walk("vllm")) == []
    store.remove(KEY.path, {digest: [session(1).id]})
    put(store)
    store.remove(KEY.path)
    assert list(store.files.walk("vllm")) == []


def test_no_samples_make_no_file(store: Store) -> None:
    put(store, samples=())
    assert list(store.files.walk("vllm")) == [KEY.path]


def test_equal_contents_are_equal_bytes_with_small_diffs(store: Store) -> None:
    put(store, what=session(launches=[launch(0, ttft=0.123456789, rate=1 / 3), launch(1, ttft=None)]))
    found = store.files.read(KEY.path, 1 << 20)
    assert found is not None
    text = found.data.decode()
    assert text.endswith("}\n")
    assert json.loads(text) == json.loads(json.dumps(json.loads(text), sort_keys=True))
    assert '"ttft_p50": 0.123457' in text
    assert '"output_throughput": 0.333333' in text
    assert '"ttft_p50": null' in text
    put(store, what=session(1, [launch(0)]))
    again = store.files.read(KEY.path, 1 << 20)
    assert again is not None
    before, after = text.splitlines(), again.data.decode().splitlines()
    assert len([line for line in before if line not in after]) <= 1


def test_numbers_without_a_finite_value_are_null_or_absent(store: Store) -> None:
    odd = {"ttft_p95": float("inf"), "goodput": float("nan"), "ttft_p50": 0.1}
    put(store, what=session(launches=[launch(0, metrics=odd)]))
    file = store.read(KEY)
    assert file is not None
    stored = file.entries[identity().digest()].sessions[0].launches[0].metrics
    assert stored == {"ttft_p95": None, "ttft_p50": 0.1}


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "empty"),
        (b'{"schema": "pytest-llmperf/baseline/1", "test": "t", "ent', r"not JSON \(truncated\?\)"),
        (b'{"schema": "pytest-llmperf/baseline/2"}', "schema 'pytest-llmperf/baseline/2', this version reads"),
        (b'{"schema": "elsewhere/1"}', "schema 'elsewhere/1', expected"),
        (b"[]", "no schema"),
        (b"\xff\xfe", "not UTF-8"),
        (b"[" * 200_000, "nested too deeply"),
        (b'{"schema": "pytest-llmperf/baseline/1", "test": "t", "entries": 3}', "entries: Input should be"),
        (b'{"schema": "pytest-llmperf/baseline/1", "test": "t", "entries": {}}', "no entries"),
        (b'{"schema": "pytest-llmperf/baseline/1", "test": NaN, "entries": {}}', "NaN is no number"),
        (b'{"schema": "pytest-llmperf/baseline/1", "test": "t", "entries": {}, "extra": 1}', "extra: Extra inputs"),
    ],
)
def test_a_file_that_is_not_whole_is_refused_by_everything(store: Store, data: bytes, reason: str) -> None:
    store.files.write(KEY.path, data, None)
    where = rf"{store.location}/{KEY.path}: .*"
    for attempt in (lambda: store.read(KEY), lambda: put(store), lambda: store.remove(KEY.path, {})):
        with pytest.raises(BaselineError, match=where + reason) as caught:
            attempt()
        assert caught.value.remedy in str(caught.value)
    [(path, error)] = store.walk()
    assert path == KEY.path
    assert isinstance(error, BaselineError)
    found = store.files.read(KEY.path, 1 << 20)
    assert found is not None
    assert found.data == data  # refused, not repaired
    store.remove(KEY.path)
    put(store)
    assert ids(store) == [session().id]


def edited(store: Store, old: str, new: str) -> None:
    put(store)
    found = store.files.read(KEY.path, 1 << 20)
    assert found is not None
    assert old in found.data.decode()
    store.files.write(KEY.path, found.data.decode().replace(old, new).encode(), found.tag)


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ('"value": "bf16"', '"value": "fp8"', "edited by hand"),
        ('"n_failed": 0', '"n_failed": 201', "201 of 200 requests failed"),
        ('"n_failed": 0', '"n_failed": -1', "-1 of 200 requests failed"),
        ('"ttft_p50": 0.12', '"ttft_p50": 1e999', "ttft_p50 is no finite number"),
        ('"ttft_p50": 0.12', '"ttft_p50": Infinity', "Infinity is no number"),
        ('"ttft_p50": 0.12', '"ttft_p50": "fast"', "Input should be a valid number"),
        ('"ttft_p50": 0.12', '"ttft_p50": true', "Input should be a valid number"),
        (f'"test": "{TEST}"', '"test": "elsewhere.py::test"', "what is inside belongs to vllm/0.33.0/"),
        ("2027-01-01T00:00:00+00:00", "yesterday", "'yesterday' is no time"),
        ("2027-01-01T00:00:00+00:00", "2027-01-01T00:00:00", "is no time with its zone"),
    ],
)
def test_a_file_that_is_not_true_to_itself_is_refused(store: Store, old: str, new: str, reason: str) -> None:
    edited(store, old, new)
    with pytest.raises(BaselineError, match=reason):
        store.read(KEY)


def test_a_file_copied_to_another_version_is_refused(store: Store) -> None:
    put(store)
    found = store.files.read(KEY.path, 1 << 20)
    assert found is not None
    moved = replace(KEY, version="0.34.0")
    store.files.write(moved.path, found.data, None)
    with pytest.raises(BaselineError, match=rf"what is inside belongs to {KEY.path}; move it there"):
        store.read(moved)


def test_a_huge_file_is_refused_unread(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pytest_llmperf.baseline.store.LARGEST", 1 << 20)
    store.files.write(KEY.path, b" " * (1 << 21), None)
    with pytest.raises(BaselineError, match="larger than 1 MiB"):
        store.read(KEY)


def test_broken_samples_are_refused_and_the_values_still_read(store: Store) -> None:
    put(store)
    path = KEY.path.replace(".json", ".samples.jsonl.gz")
    found = store.files.read(path, 1 << 20)
    assert found is not None
    store.files.write(path, found.data[:-9], found.tag)
    with pytest.raises(BaselineError, match=r"samples\.jsonl\.gz: truncated.*delete it"):
        store.samples(KEY.path, identity().digest())
    assert ids(store) == [session().id]


def test_a_second_writer_is_not_overwritten(store: Store) -> None:
    """Whoever writes with what he read before another wrote is told, and nothing is lost."""
    put(store)
    stale = store.files.read(KEY.path, 1 << 20)
    assert stale is not None
    put(store, what=session(1))
    with pytest.raises(Exception) as caught:  # noqa: PT011 - the type is private to the store
        store.files.write(KEY.path, stale.data, stale.tag)
    assert type(caught.value).__name__ == "Changed"
    with pytest.raises(Exception) as caught:  # noqa: PT011
        store.files.write(KEY.path, stale.data, None)
    assert type(caught.value).__name__ == "Changed"
    assert ids(store) == [session(0).id, session(1).id]


@pytest.mark.parametrize("location", ["s3", "memory"], indirect=True)
def test_a_writer_that_comes_between_is_built_upon(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    put(store)
    write, rival, came = store.files.write, Store(store.location), []

    def interrupted(path: str, data: bytes, tag: str | None) -> None:
        if not came and path == KEY.path:
            came.append(path)
            put(rival, what=session(1), samples=samples(1))
        write(path, data, tag)

    monkeypatch.setattr(store.files, "write", interrupted)
    put(store, what=session(2))
    assert came == [KEY.path]
    assert ids(store) == [session(number).id for number in range(3)]
    kept = [line.session for line in store.samples(KEY.path, identity().digest())]
    assert [kept.count(session(number).id) for number in range(3)] == [3, 1, 3]


def test_s3_itself_refuses_who_comes_second(s3: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rival writes after we have looked, at the last moment before our own request leaves."""
    from s3fs import S3FileSystem

    store, came = Store(f"{s3}/rivals"), []
    put(store)
    system = S3FileSystem(use_listings_cache=False)  # the one that the store uses: equal ones are shared
    send = system.pipe_file

    def late(path: str, value: bytes, **how: str) -> None:
        if path.endswith(KEY.path) and not came:
            came.append(how)
            put(Store(f"{s3}/rivals"), what=session(1))
        send(path, value, **how)

    monkeypatch.setattr(system, "pipe_file", late)
    put(store, what=session(2))
    assert [list(how) for how in came] == [["IfMatch"]]
    assert ids(store) == [session(number).id for number in range(3)]


APPENDER = """
import sys
from kept import put, session
from pytest_llmperf.baseline.store import Store
store, first = Store(sys.argv[1]), int(sys.argv[2])
for number in range(first, first + 3):
    put(store, what=session(number))
"""


@pytest.mark.parametrize("location", ["directory", "s3"], indirect=True)
def test_two_processes_writing_at_once_lose_nothing(location: str) -> None:
    environment = {**os.environ, "PYTHONPATH": ":".join(sys.path)}
    command = [sys.executable, "-c", APPENDER, location]
    writers = [subprocess.Popen([*command, str(first)], env=environment) for first in (0, 3)]
    assert [writer.wait() for writer in writers] == [0, 0]
    store = Store(location)
    assert ids(store) == [session(number).id for number in range(6)]
    assert {line.session for line in store.samples(KEY.path, identity().digest())} == set(ids(store))


def test_a_store_says_where_it_is_and_whether_it_can_be_written(store: Store, location: str) -> None:
    assert store.location == location
    assert store.writable


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("nonsense://x", "[Pp]rotocol"),
        ("s3://key:secret@bucket/x", "without credentials"),
        ("simplecache::s3://bucket", "without credentials"),
        ("https://host/x?token=secret", "without credentials"),
        ("http://127.0.0.1:9/none", "a web server cannot be listed or written"),
        ("https://example.org/baselines", "a web server cannot be listed or written"),
    ],
)
def test_an_impossible_url_is_an_error_of_usage_without_its_secrets(url: str, reason: str) -> None:
    with pytest.raises(UsageError, match=reason) as caught:
        Store(url)
    assert "secret" not in str(caught.value)


def test_a_file_url_is_a_directory(tmp_path: Path) -> None:
    put(Store(f"file://{tmp_path}/kept"))
    assert Store(tmp_path / "kept").read(KEY) is not None


def test_a_bucket_that_does_not_exist_is_infrastructure(s3: str) -> None:
    store = Store("s3://no-such-bucket-here/x")
    assert not store.writable
    for looked in (lambda: store.read(KEY), store.paths, lambda: put(store)):
        with pytest.raises(InfraError, match=r"s3://no-such-bucket-here/x: there is no bucket 'no-such-bucket-here'"):
            looked()


def test_an_empty_bucket_is_an_empty_store(s3: str) -> None:
    bucket = s3.removeprefix("s3://").partition("/")[0]
    store = Store(f"s3://{bucket}/nothing-yet")
    assert store.paths() == []
    assert store.read(KEY) is None


def test_samples_hold_what_a_quantile_needs(store: Store) -> None:
    values = [0.05, 0.05, float("inf"), 0.2]
    put(store, samples=[LaunchSamples(0, {"ttft": values, "icl": [0.0123456789] * 3})])
    first, second = store.samples(KEY.path, identity().digest())
    assert (first.family, first.seconds()) == ("icl", [0.01235] * 3)
    assert (second.family, second.seconds()) == ("ttft", [0.05, 0.05, 0.2, float("inf")])
