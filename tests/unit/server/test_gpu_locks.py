"""Locks on GPUs between real processes, and room on them by what the driver tells."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from pytest_llmperf.cards import Card, GpuProcess
from pytest_llmperf.errors import InfraError
from pytest_llmperf.server.gpu_memory import levels, require_returned, require_room, visible
from pytest_llmperf.server.gpus import FOLDER_VARIABLE, GpuLocks, Wish, holder_of, lock_folder, take

GIB = 2**30
HOLDER = """
import sys
from pathlib import Path
from pytest_llmperf.cards import Card
from pytest_llmperf.server.gpus import GpuLocks, Wish, take
sys.argv[0] = "/somewhere/pytest"
cards = [Card(n, f"GPU-{n}") for n in range(4)]
locks = take(Wish(tuple(map(int, sys.argv[2:])), wait_s=20), lambda: cards, folder=Path(sys.argv[1]))
print("held", flush=True)
input()
"""


def card(index: int, *, used: int = 0, total: int = 100 * GIB, pids: Sequence[int] = ()) -> Card:
    processes = tuple(GpuProcess(pid, 5, "ann", "train") for pid in pids)
    return Card(index, f"GPU-{index}", total_bytes=total, used_bytes=used, free_bytes=total - used, processes=processes)


@contextmanager
def holder(folder: Path, *gpus: int) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds the locks of these GPUs."""
    command = [sys.executable, "-c", HOLDER, str(folder), *map(str, gpus)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "held\n"
        yield process
    finally:
        process.kill()
        process.communicate()


def got(wish: Wish, cards: Sequence[Card], folder: Path) -> list[int]:
    with take(wish, lambda: cards, folder=folder) as locks:
        return [each.index for each in locks.cards]


def test_a_gpu_that_another_process_holds_is_waited_for_and_its_holder_named(tmp_path: Path) -> None:
    heard: list[str] = []
    with holder(tmp_path, 0) as other:
        with pytest.raises(InfraError) as failure:
            take(Wish((0,), wait_s=0.2), lambda: [card(0)], folder=tmp_path, tell=lambda _, text: heard.append(text))
        told = holder_of("GPU-0", tmp_path)
    assert told is not None
    assert told.startswith(f"pid {other.pid} of ")
    assert " since 2" in told
    assert told.endswith(": pytest")
    assert str(failure.value) == f"GPU 0 not free after 0 s (gpu_wait): GPU 0 is held by {told}"
    assert heard[0] == f"waiting for GPU 0: GPU 0 is held by {told}"


def test_the_lock_dies_with_its_process_however_that_ends(tmp_path: Path) -> None:
    with holder(tmp_path, 0, 1) as other:
        assert holder_of("GPU-1", tmp_path) is not None
        other.send_signal(signal.SIGKILL)
        assert got(Wish((0, 1), wait_s=20), [card(0), card(1)], tmp_path) == [0, 1]
    assert holder_of("GPU-0", tmp_path) is None


def test_who_waits_gets_the_gpu_when_its_holder_is_done(tmp_path: Path) -> None:
    with holder(tmp_path, 0) as other:
        waited: list[float] = []

        def tell(seconds: float, _text: str) -> None:
            if not waited:
                assert other.stdin is not None
                other.stdin.write("\n")
                other.stdin.flush()  # it ends in order
            waited.append(seconds)

        with take(Wish((0,), wait_s=20), lambda: [card(0)], folder=tmp_path, tell=tell) as locks:
            assert [each.index for each in locks.cards] == [0]
    assert waited


def test_nothing_is_held_while_one_of_several_is_waited_for(tmp_path: Path) -> None:
    """Else two jobs could wait for each other."""
    with holder(tmp_path, 1):
        with pytest.raises(InfraError, match="GPU 1 is held"):
            take(Wish((0, 1), wait_s=0), lambda: [card(0), card(1)], folder=tmp_path)
        assert holder_of("GPU-0", tmp_path) is None


def test_a_lock_is_not_inherited_by_what_is_started(tmp_path: Path) -> None:
    locks = take(Wish((0,)), lambda: [card(0)], folder=tmp_path)
    with subprocess.Popen(["sleep", "60"], close_fds=False) as child:
        locks.release()
        assert holder_of("GPU-0", tmp_path) is None
        child.kill()


def test_any_takes_the_emptiest_that_are_free_and_nobody_uses(tmp_path: Path) -> None:
    cards = [card(0, used=9), card(1, used=5, pids=[77]), card(2, used=3), card(3, used=1)]
    with holder(tmp_path, 3):
        assert got(Wish(count=1), cards, tmp_path) == [2]
        assert got(Wish(count=2), cards, tmp_path) == [2, 0]
        assert got(Wish(count=3, shared=True), cards, tmp_path) == [2, 1, 0]
        with pytest.raises(InfraError) as failure:
            take(Wish(count=3, wait_s=0), lambda: cards, folder=tmp_path)
        assert "GPU 1 is in use by pid 77 (train of ann)" in str(failure.value)
        assert "GPU 3 is held by pid " in str(failure.value)
        assert holder_of("GPU-2", tmp_path) is None


@pytest.mark.parametrize(
    ("wish", "text"),
    [
        (Wish((5,)), "there is no GPU 5 in this machine; the driver knows 0, 1"),
        (Wish(count=3), "any 3 GPUs were asked for, and this machine has 2"),
    ],
)
def test_what_can_never_be_is_not_waited_for(tmp_path: Path, wish: Wish, text: str) -> None:
    with pytest.raises(InfraError, match=text):
        take(wish, lambda: [card(0), card(1)], folder=tmp_path)


def test_a_named_gpu_that_others_use_is_waited_for_as_long_as_a_held_one(tmp_path: Path) -> None:
    with pytest.raises(InfraError, match=r"GPU 0 not free after 0 s \(gpu_wait\): GPU 0 is in use by pid 77 \(train"):
        take(Wish((0,), wait_s=0.1), lambda: [card(0, pids=[77])], folder=tmp_path)
    looks = [[card(0, pids=[77])], [card(0)]]
    with take(Wish((0,), wait_s=20), lambda: looks.pop(0), folder=tmp_path) as locks:
        assert [each.index for each in locks.cards] == [0]
    assert got(Wish((0,), shared=True), [card(0, pids=[77])], tmp_path) == [0]


def test_a_gpu_of_which_the_driver_tells_nothing_is_not_taken(tmp_path: Path) -> None:
    lost, quiet = Card(0, "index-0", driver="580"), Card(2, "GPU-2", driver="580", temperature_c=40.0)
    cards = [lost, card(1, used=50 * GIB), quiet]
    assert got(Wish(count=1), cards, tmp_path) == [1]
    assert got(Wish(count=2), cards, tmp_path) == [1, 2]  # memory alone is not told: it is there nevertheless
    with pytest.raises(InfraError, match=r"any 3 GPUs .* has 3, of which GPU 0 answers nothing to the driver"):
        take(Wish(count=3), lambda: cards, folder=tmp_path)
    with pytest.raises(InfraError, match="GPU 0 answers nothing to the driver"):
        take(Wish((0,)), lambda: cards, folder=tmp_path)


LOOKER = """
import sys, time
from pathlib import Path
from pytest_llmperf.server.gpus import holder_of
print("looking", flush=True)
while True:
    holder_of("GPU-0", Path(sys.argv[1]))
    time.sleep(0.0002)
"""


def test_who_only_looks_holds_nothing(tmp_path: Path) -> None:
    (tmp_path / "GPU-0").touch()
    looker = subprocess.Popen([sys.executable, "-c", LOOKER, str(tmp_path)], stdout=subprocess.PIPE)
    try:
        assert looker.stdout is not None
        assert looker.stdout.readline() == b"looking\n"
        for _ in range(300):
            assert got(Wish((0,), wait_s=0), [card(0)], tmp_path) == [0]
    finally:
        looker.kill()
        looker.communicate()


def test_the_folder_is_for_all_users_and_only_owners_delete(tmp_path: Path) -> None:
    folder, before = tmp_path / "locks", os.umask(0o077)
    try:
        assert got(Wish((0,)), [card(0)], folder) == [0]
    finally:
        os.umask(before)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o1777
    assert stat.S_IMODE((folder / "GPU-0").stat().st_mode) == 0o666


def test_a_folder_or_lock_that_others_may_have_planted_is_refused(tmp_path: Path) -> None:
    link, open_to_all = tmp_path / "link", tmp_path / "open"
    link.symlink_to(tmp_path)
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    for folder, why in ((link, "no directory"), (open_to_all, "not sticky")):
        with pytest.raises(InfraError, match=why):
            take(Wish((0,)), lambda: [card(0)], folder=folder)
    victim, folder = tmp_path / "victim", tmp_path / "locks"
    victim.write_text("precious")
    folder.mkdir()
    (folder / "GPU-0").symlink_to(victim)
    with pytest.raises(InfraError, match=FOLDER_VARIABLE):
        take(Wish((0,)), lambda: [card(0)], folder=folder)
    assert victim.read_text() == "precious"


def test_a_lock_file_that_was_deleted_meanwhile_locks_nothing(tmp_path: Path) -> None:
    with take(Wish((0,)), lambda: [card(0)], folder=tmp_path):
        (tmp_path / "GPU-0").unlink()
        with GpuLocks(tmp_path) as second:
            assert second.try_one(card(0))
            with GpuLocks(tmp_path) as third:
                assert not third.try_one(card(0))


def test_what_a_lock_file_says_is_made_fit_to_print(tmp_path: Path) -> None:
    with take(Wish((0,)), lambda: [card(0)], folder=tmp_path):
        (tmp_path / "GPU-0").write_text("\x1b[31mnonsense")
        assert holder_of("GPU-0", tmp_path) == "another process"
        told = {"pid": 1, "user": "x\x1b[2J", "since": "s", "command": "c"}
        (tmp_path / "GPU-0").write_text(json.dumps(told))
        assert holder_of("GPU-0", tmp_path) == "pid 1 of x?[2J since s: c"


def test_the_folder_can_be_chosen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    assert lock_folder() == tmp_path
    monkeypatch.delenv(FOLDER_VARIABLE)
    assert lock_folder() == Path("/tmp/pytest-llmperf-locks")


def room(wish: Wish, *looks: Card) -> int:
    """How often it looked; each look finds the next of these."""
    left = list(looks)

    def look() -> list[Card]:
        return [left.pop(0) if len(left) > 1 else left[0]]

    require_room(wish, look, patience_s=0.6 if len(looks) > 1 else 0)
    return len(looks) - len(left) + 1


def test_a_stranger_on_our_gpu_is_infra_unless_it_may_stay() -> None:
    with pytest.raises(InfraError, match=r"GPU 0 is in use by pid 77 \(train of ann\), .*gpu_shared = true"):
        room(Wish((0,)), card(0, pids=[77]))
    assert room(Wish((0,), shared=True), card(0, pids=[77], used=50 * GIB)) == 1


def test_what_a_job_before_left_behind_has_a_moment_to_go() -> None:
    assert room(Wish((0,)), card(0, pids=[77], used=50 * GIB), card(0)) == 2


def test_memory_that_the_server_asks_for_must_be_free() -> None:
    text = r"GPU 0 has 80\.0 GiB of 100\.0 GiB free, and 85 % are needed"
    for shared in (False, True):
        with pytest.raises(InfraError, match=text):
            room(Wish((0,), memory_share=0.85, shared=shared), card(0, used=20 * GIB))
    assert room(Wish((0,), memory_share=0.75), card(0, used=20 * GIB)) == 1
    with pytest.raises(InfraError, match="90 % are needed"):
        room(Wish((0,)), card(0, used=20 * GIB))
    assert room(Wish((0,), memory_share=1.0), card(0, used=GIB)) == 1  # some is always the driver's
    assert room(Wish((0,)), Card(0, "GPU-0")) == 1  # a driver that tells nothing


def test_memory_must_be_back_after_a_stop() -> None:
    before = levels([card(0, used=GIB), Card(1, "GPU-1")])
    assert before == {"GPU-0": GIB}
    require_returned(before, lambda: [card(0, used=GIB + 100), Card(1, "GPU-1")], patience_s=0)
    with pytest.raises(InfraError) as failure:
        require_returned(before, lambda: [card(0, used=70 * GIB, pids=[9])], patience_s=0)
    assert str(failure.value) == (
        "GPU 0 still has 70.0 GiB in use after the server ended, 1.0 GiB before it was launched: pid 9 (train of ann)"
    )


def test_memory_that_comes_back_late_is_waited_for() -> None:
    began = time.monotonic()
    require_returned(
        {"GPU-0": 0}, lambda: [card(0, used=0 if time.monotonic() - began > 0.1 else 70 * GIB)], patience_s=20
    )
    assert time.monotonic() - began > 0.1


def test_a_server_sees_its_gpus_by_uuid_in_their_order() -> None:
    assert visible([card(2), card(0)])["CUDA_VISIBLE_DEVICES"] == "GPU-2,GPU-0"
    unknown = visible([Card(3, "index-3")])
    assert unknown == {"CUDA_VISIBLE_DEVICES": "3", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    assert visible([]) == {}
