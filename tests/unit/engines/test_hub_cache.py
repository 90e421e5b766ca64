"""Models by name: a server that starts offline finds all of them in the hub's cache, or it is said what is missing.

Layout as ``huggingface_hub`` documents it ("Understand caching"): ``refs/BRANCH`` holds a commit, ``snapshots/COMMIT``
links to files in ``blobs``; an index maps tensors to files (``weight_map``).
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pytest_llmperf.engines.models import find_weights, hub_folder
from pytest_llmperf.errors import InfraError
from pytest_llmperf.plan import ServerSpec

COMMIT = "0123456789abcdef0123456789abcdef01234567"
SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
INDEX = "model.safetensors.index.json"


def spec(**fields: Any) -> ServerSpec:
    return ServerSpec.model_validate({"name": "s", "engine": "vllm", "model": "org/m", **fields})


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A whole model of two shards, fetched as ``hf download`` does it."""
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    made = tmp_path / "hub" / "models--org--m"
    for name in ("refs", "blobs", f"snapshots/{COMMIT}"):
        (made / name).mkdir(parents=True)
    (made / "refs" / "main").write_text(COMMIT)
    weights = {"a": SHARDS[0], "b": SHARDS[1], "c": SHARDS[0]}
    for name, text in {
        "config.json": "{}",
        INDEX: json.dumps({"weight_map": weights}),
        SHARDS[0]: "",
        SHARDS[1]: "",
    }.items():
        (made / "blobs" / f"blob-{name}").write_text(text)
        (made / "snapshots" / COMMIT / name).symlink_to(f"../../blobs/blob-{name}")
    return made


def test_a_whole_model_is_found(folder: Path) -> None:
    assert find_weights(spec()) == "org/m"
    assert find_weights(spec(extra_args=("--revision", COMMIT))) == "org/m"
    (folder / "snapshots" / COMMIT / "pytorch_model.bin.index.json").write_text('{"weight_map": {"a": "absent.bin"}}')
    assert find_weights(spec()) == "org/m", "the other format's index names what nobody loads"


def test_a_model_in_one_file_needs_no_index(folder: Path) -> None:
    snapshot = folder / "snapshots" / COMMIT
    for name in (INDEX, *SHARDS):
        (snapshot / name).unlink()
    (snapshot / "pytorch_model.bin").touch()
    assert find_weights(spec()) == "org/m"


def empty(folder: Path) -> None:
    for file in folder.iterdir():
        shutil.rmtree(file)


def without(*names: str) -> Callable[[Path], None]:
    """Files that an interrupted download has not: the link is there, or not even that."""
    return lambda folder: [(folder / "blobs" / f"blob-{name}").unlink() for name in names] and None  # type: ignore[func-returns-value]


@pytest.mark.parametrize(
    ("damage", "lacks"),
    [
        (empty, "there is no snapshot of 'main'"),
        (lambda folder: shutil.rmtree(folder / "refs"), "there is no snapshot of 'main'"),
        (lambda folder: (folder / "refs" / "main").write_text(""), "there is no snapshot of 'main'"),
        (lambda folder: (folder / "refs" / "main").write_text("f" * 40), "there is no snapshot of 'main'"),
        (without("config.json"), "there is no config.json"),
        (without(SHARDS[1]), f"{INDEX} names files of weights that are absent (1, e.g. {SHARDS[1]})"),
        (without(*SHARDS), f"{INDEX} names files of weights that are absent (2, e.g. {SHARDS[0]})"),
        (without(INDEX, *SHARDS), "there is no file of weights"),
    ],
)
def test_what_a_download_left_out_is_said(folder: Path, damage: Callable[[Path], object], lacks: str) -> None:
    damage(folder)
    with pytest.raises(InfraError) as caught:
        find_weights(spec())
    assert str(caught.value) == (
        f"servers.s: model: 'org/m' is not whole in the hub's cache, {folder}: {lacks}; servers start offline, so "
        "fetch it first: hf download org/m"
    )


def test_another_revision_is_fetched_as_that(folder: Path) -> None:
    with pytest.raises(InfraError, match=r"no snapshot of 'v2'; .*: hf download org/m --revision v2$"):
        find_weights(spec(extra_args=("--revision=v2",)))


@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm", "tgi", "lmdeploy", "transformers"])
def test_invented_weights_need_no_files(folder: Path, engine: str) -> None:
    without(*SHARDS)(folder)
    for invented in (("--load-format", "dummy"), ("--empty-init",)):
        assert find_weights(spec(engine=engine, extra_args=invented)) == "org/m"
    with pytest.raises(InfraError, match="absent"):
        find_weights(spec(engine=engine))


def test_the_cache_is_where_the_server_will_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    found = []
    for name in ("XDG_CACHE_HOME", "HF_HOME", "HUGGINGFACE_HUB_CACHE", "HF_HUB_CACHE"):  # the later, the stronger
        found.append(hub_folder("org/m", spec()))
        monkeypatch.setenv(name, f"/{name.lower()}")
    found.append(hub_folder("org/m", spec()))
    assert list(map(str, found)) == [
        f"{tmp_path}/.cache/huggingface/hub/models--org--m",
        "/xdg_cache_home/huggingface/hub/models--org--m",
        "/hf_home/hub/models--org--m",
        "/huggingface_hub_cache/models--org--m",
        "/hf_hub_cache/models--org--m",
    ]
    assert hub_folder("m", spec(env={"HF_HUB_CACHE": "/own"})) == Path("/own/models--m")
