"""The generated model: the same bytes everywhere, repaired when damaged, made once by many."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_llmperf.engines import tiny_model
from pytest_llmperf.errors import InfraError


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(tiny_model.CACHE_VARIABLE, str(tmp_path / "cache"))
    return tmp_path / "cache"


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_bytes_are_the_ones_that_the_module_promises() -> None:
    assert hashlib.sha256(tiny_model.build()).hexdigest() == tiny_model.DIGEST


def test_second_call_takes_the_file_of_the_first(cache: Path) -> None:
    path = tiny_model.ensure()
    written = path.stat().st_mtime_ns
    assert tiny_model.ensure() == path
    assert path.stat().st_mtime_ns == written
    assert digest(path) == tiny_model.DIGEST
    assert [file.name for file in cache.iterdir() if file.suffix != ".lock"] == [path.name]


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda data: data[: len(data) // 2], id="truncated"),
        pytest.param(lambda data: data[:5_000_000] + b"\x00" * 8 + data[5_000_008:], id="altered"),
        pytest.param(lambda data: b"", id="empty"),
    ],
)
def test_damaged_file_is_made_anew(damage: object) -> None:
    path = tiny_model.ensure()
    path.write_bytes(damage(path.read_bytes()))  # type: ignore[operator]
    assert digest(tiny_model.ensure()) == tiny_model.DIGEST


def test_two_processes_at_once_make_one_sound_file(cache: Path) -> None:
    code = "from pytest_llmperf.engines import tiny_model; print(tiny_model.ensure())"
    started = [
        subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=dict(os.environ))
        for _ in range(2)
    ]
    paths = {process.communicate(timeout=30)[0].strip() for process in started}
    assert [process.returncode for process in started] == [0, 0]
    assert len(paths) == 1
    assert digest(Path(paths.pop())) == tiny_model.DIGEST
    assert len([file for file in cache.iterdir() if file.suffix != ".lock"]) == 1


def test_cache_follows_xdg_and_ignores_a_relative_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(tiny_model.CACHE_VARIABLE)
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert tiny_model.cache_dir() == tmp_path / "pytest-llmperf"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert tiny_model.cache_dir() == Path.home() / ".cache" / "pytest-llmperf"


def test_cache_that_can_not_be_written_is_infra_and_names_the_way_out(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    blocker = tmp_path / "file"
    blocker.write_text("")
    monkeypatch.setenv(tiny_model.CACHE_VARIABLE, str(blocker / "below"))
    with pytest.raises(InfraError, match=tiny_model.CACHE_VARIABLE):
        tiny_model.ensure()
