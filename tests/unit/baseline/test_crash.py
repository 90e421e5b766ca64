"""What befalls a directory: writers killed at any point, full disks, links and pipes in the place of files."""

from __future__ import annotations

import errno
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from kept import TEST, identity, put, samples, session

from pytest_llmperf.baseline import files
from pytest_llmperf.baseline.keys import Key
from pytest_llmperf.baseline.store import Store
from pytest_llmperf.errors import BaselineError, InfraError

KEY = Key.of(identity(), TEST)
ROUNDS = 12

WRITER = """
import sys
from itertools import count
from kept import put, samples, session
from pytest_llmperf.baseline.store import Store
store, first = Store(sys.argv[1]), int(sys.argv[2])
for number in count(first):
    put(store, what=session(number), samples=samples(values=[0.001 * n for n in range(500)]))
    print(number, flush=True)
"""

LIMITED = """
import resource, signal, sys
from kept import put, session
from pytest_llmperf.baseline.store import Store
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
store = Store(sys.argv[1])
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), resource.RLIM_INFINITY))
try:
    put(store, what=session(1))
except Exception as error:
    print(type(error).__name__, error)
"""


def child(code: str, *arguments: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": ":".join(sys.path)}
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments], env=environment, stdout=subprocess.PIPE, text=True
    )


def stored(store: Store) -> list[str]:
    file = store.read(KEY)
    return [] if file is None else [each.id for each in file.entries[identity().digest()].sessions]


def test_a_store_survives_kill_9_at_any_point_of_a_write(tmp_path: Path) -> None:
    """Every session that a writer had stored is there after its death, and the next writer goes on from it."""
    store, draw, number = Store(tmp_path), random.Random(4), 0
    for _ in range(ROUNDS):
        writer = child(WRITER, str(tmp_path), str(number))
        assert writer.stdout is not None
        number = int(writer.stdout.readline())
        time.sleep(draw.uniform(0, 0.03))
        writer.send_signal(signal.SIGKILL)
        number = max([number, *map(int, writer.stdout.read().split())])
        writer.wait()
        writer.stdout.close()
        newest = stored(store)[-1]
        assert newest in (session(number).id, session(number + 1).id)
        assert len(stored(store)) == min(6, int(newest[-6:], 16) + 1)
        told = {line.session for line in store.samples(KEY.path, identity().digest())}
        assert told == set(stored(store))
        number = int(newest[-6:], 16) + 1
    put(store, what=session(number), samples=samples())
    left = [path.name for path in tmp_path.rglob("*") if path.is_file()]
    assert sorted(left) == sorted(["lock", Path(KEY.path).name, f"{Path(KEY.path).stem}.samples.jsonl.gz"])


def test_a_crash_between_samples_and_values_leaves_what_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(tmp_path)
    put(store)
    write = files.LocalFiles.write

    def dies(self: files.LocalFiles, path: str, data: bytes, tag: str | None) -> None:
        if path == KEY.path:
            raise KeyboardInterrupt
        write(self, path, data, tag)

    with monkeypatch.context() as patch:
        patch.setattr(files.LocalFiles, "write", dies)
        with pytest.raises(KeyboardInterrupt):
            put(store, what=session(1))
    assert stored(store) == [session(0).id]
    assert {line.session for line in store.samples(KEY.path, identity().digest())} == {session(0).id}
    put(store, what=session(2))
    assert {line.session for line in store.samples(KEY.path, identity().digest())} == {session(0).id, session(2).id}
    found = store.files.read(KEY.path.replace(".json", ".samples.jsonl.gz"), 1 << 20)
    assert found is not None


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EDQUOT])
def test_a_full_disk_leaves_what_was_and_says_so(tmp_path: Path, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(tmp_path)
    put(store)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}

    def full(_handle: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(
        InfraError, match=rf"cannot be written: {os.strerror(number)}; what was stored before is unchan"
    ):
        put(store, what=session(1))
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("room", [0, 100, 1500])
def test_a_real_write_that_does_not_fit_leaves_what_was(tmp_path: Path, room: int) -> None:
    """The kernel refuses (EFBIG) beyond ``room`` bytes: in the samples, or later in the values."""
    store = Store(tmp_path)
    put(store)
    writer = child(LIMITED, str(tmp_path), str(room))
    out, _ = writer.communicate()
    assert writer.returncode == 0
    assert out.startswith("InfraError ")
    assert "File too large; what was stored before is unchanged" in out
    assert stored(store) == [session(0).id]
    assert {line.session for line in store.samples(KEY.path, identity().digest())} == {session(0).id}
    assert not list(tmp_path.rglob("*.tmp"))


def test_a_lock_that_is_held_too_long_is_infrastructure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(tmp_path)
    monkeypatch.setattr(files, "LOCK_WAIT_S", 0.05)
    with store.files.exclusive(), pytest.raises(InfraError, match=r"lock: another process has held it for 0 s; end"):
        put(Store(tmp_path))


def test_a_link_out_of_the_store_is_refused(tmp_path: Path) -> None:
    elsewhere, store = Store(tmp_path / "elsewhere"), Store(tmp_path / "store")
    put(elsewhere)
    place = tmp_path / "store" / KEY.path
    place.parent.mkdir(parents=True)
    place.symlink_to(tmp_path / "elsewhere" / KEY.path)
    for attempt in (lambda: store.read(KEY), lambda: put(store, what=session(1))):
        with pytest.raises(BaselineError, match=r"leads out of the store, to .*elsewhere"):
            attempt()
    assert stored(elsewhere) == [session(0).id]
    [(_, error)] = store.walk()
    assert isinstance(error, BaselineError)


def test_a_linked_folder_does_not_lead_a_writer_out(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "store" / "vllm").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(BaselineError, match="leads out of the store"):
        put(Store(tmp_path / "store"))
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_pipes_folders_and_circles_are_refused_and_not_waited_for(tmp_path: Path) -> None:
    store, place = Store(tmp_path), tmp_path / KEY.path
    place.parent.mkdir(parents=True)
    os.mkfifo(place)
    with pytest.raises(BaselineError, match="not a regular file"):
        store.read(KEY)
    place.unlink()
    place.mkdir()
    with pytest.raises(BaselineError, match="not a regular file"):
        store.read(KEY)
    place.rmdir()
    place.symlink_to(place)
    with pytest.raises(BaselineError, match=r"a link that leads to itself|cannot be read: Too many levels"):
        store.read(KEY)


def test_a_store_may_be_reached_by_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    put(Store(tmp_path / "link"))
    assert stored(Store(tmp_path / "real")) == [session(0).id]


def test_a_file_in_the_place_of_the_store_is_infrastructure(tmp_path: Path) -> None:
    (tmp_path / "store").write_text("no directory")
    store = Store(tmp_path / "store")
    assert not store.writable
    assert store.read(KEY) is None
    with pytest.raises(InfraError, match="cannot be written"):
        put(store)
