"""Old beside new, doubts about the new, and who took it."""

from __future__ import annotations

import math
import random
import re
import subprocess
from datetime import UTC, datetime
from pathlib import Path

import pytest
from kept import identity, launch, session

from pytest_llmperf.baseline import provenance as provenances
from pytest_llmperf.baseline.provenance import provenance, session_id
from pytest_llmperf.baseline.refresh import compare, old_and_new, two_modes
from pytest_llmperf.baseline.schema import Entry, Session


def entry(*sessions: tuple[float, ...]) -> Entry:
    kept = tuple(session(n, [launch(i, ttft) for i, ttft in enumerate(each)]) for n, each in enumerate(sessions))
    return Entry(input=identity().input, sessions=kept)


def test_the_effect_is_between_means_of_session_means() -> None:
    """sqrt(sqrt(1 * 4) * 8) = 4 against 5."""
    rows = {row.metric: row for row in old_and_new(entry((1.0, 4.0), (8.0,)), session(2, [launch(0, 5.0)]))}
    row = rows["ttft_p50"]
    assert row.before == pytest.approx(4.0)
    assert row.after == pytest.approx(5.0)
    assert row.change == pytest.approx(0.25)
    assert row.worse is True
    assert (row.launches_before, row.launches_after) == (3, 1)
    assert list(rows) == ["ttft_p50", "output_throughput"]
    assert rows["output_throughput"].change == pytest.approx(0.0)


def test_more_throughput_is_better() -> None:
    before = Entry(input=identity().input, sessions=(session(0, [launch(0, rate=100.0)]),))
    row = old_and_new(before, session(1, [launch(0, rate=110.0)]))[1]
    assert row.change == pytest.approx(0.1)
    assert row.worse is False


def test_the_first_session_has_nothing_before_it() -> None:
    row = old_and_new(None, session())[0]
    assert (row.before, row.change, row.worse, row.launches_before) == (None, None, None, 0)


def test_a_value_among_failed_requests_makes_no_mean() -> None:
    row = old_and_new(entry((1.0, 2.0)), session(1, [launch(0, None), launch(1, 1.0)]))[0]
    assert (row.after, row.change, row.launches_after) == (None, None, 2)


def test_other_definitions_are_not_compared() -> None:
    row = compare((session(),), (session(1),), ({"ttft_p50": "ttft/1"}, {"ttft_p50": "ttft/2"}))[0]
    assert (row.comparable, row.change) == (False, None)


@pytest.mark.parametrize(
    ("sessions", "modes"),
    [
        (((1.0, 1.1, 1.001), (1.1, 1.0005, 1.101)), True),
        (((1.0, 1.001), (1.1, 1.101)), False),  # two days
        (((1.0, 1.1, 1.001),), False),  # too few
        (((1.0, 1.01, 1.001), (1.01, 1.0, 1.011)), False),  # too small to matter
        (((1.0, 1.02, 1.04), (1.06, 1.08, 1.1)), False),  # spread evenly
    ],
)
def test_two_kinds_of_launch(sessions: tuple[tuple[float, ...], ...], modes: bool) -> None:
    said = ["ttft_p50: 3 launches lie 10 % from the other 3: two kinds of launch"]
    assert two_modes(entry(*sessions).sessions) == (said if modes else [])


def test_noise_alone_is_seldom_taken_for_two_kinds() -> None:
    draw = random.Random(7)
    drawn = (tuple(tuple(math.exp(draw.gauss(0, 0.04)) for _ in range(3)) for _ in range(2)) for _ in range(2000))
    taken = sum(bool(two_modes(entry(*sessions).sessions)) for sessions in drawn)
    assert taken / 2000 < 0.02


def git(folder: Path, *arguments: str) -> str:
    command = ["git", "-C", str(folder), "-c", "user.name=x", "-c", "user.email=x@example.org", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def test_who_and_from_which_commit(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    git(tmp_path, "config", "user.name", "Ada Lovelace")
    (tmp_path / "suite.py").write_text("a")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "one")
    head = git(tmp_path, "rev-parse", "HEAD")
    (tmp_path / "untracked").write_text("")
    found = provenance(tmp_path)
    assert (found.by, found.commit) == ("Ada Lovelace", head)
    assert found.node
    assert datetime.fromisoformat(found.created).tzinfo is not None
    assert re.fullmatch(r"\d{8}T\d{6}Z-[0-9a-f]{6}", found.session)
    (tmp_path / "suite.py").write_text("b")
    assert provenance(tmp_path).commit == f"{head}-dirty"


def test_outside_of_a_repository_there_is_no_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", "/dev/null")
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    monkeypatch.setenv("LOGNAME", "ada")
    found = provenance(tmp_path)
    assert (found.by, found.commit) == ("ada", None)


def test_without_git_the_system_tells_who(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provenances.shutil, "which", lambda _: None)
    monkeypatch.setenv("LOGNAME", "ada")
    assert provenance(tmp_path).by == "ada"


def test_ids_of_sessions_sort_by_time_and_differ() -> None:
    now = datetime(2027, 1, 2, 3, 4, 5, tzinfo=UTC)
    assert session_id(now).startswith("20270102T030405Z-")
    assert session_id(now) != session_id(now)


def test_values_that_were_measured_in_unlike_ways_have_no_change() -> None:
    def taken(size: float, **changes: object) -> Session:
        return session(0, [launch(0, metrics={"peak_memory": size}, **changes)])

    whole = taken(70.5e9, sources={"peak_memory": "whole-gpus"})
    [row] = compare((taken(70e9),), (whole,))
    assert (row.comparable, row.change) == (False, None)
    [row] = compare((whole,), (whole,))
    assert (row.comparable, row.change) == (True, 0)
