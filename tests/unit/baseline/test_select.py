"""The comparison partner: which, why, and what there was besides."""

from __future__ import annotations

from pathlib import Path

import pytest
from kept import TEST, identity, put, session

from pytest_llmperf.baseline.keys import Key
from pytest_llmperf.baseline.select import NoPartner, Partner, check_against, select
from pytest_llmperf.baseline.store import Store
from pytest_llmperf.errors import BaselineError, UsageError
from pytest_llmperf.identity import Identity


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "baselines")


def chosen(store: Store, who: Identity, against: str = "latest", test: str = TEST) -> Partner:
    found = select(store, Key.of(who, test), who, against)
    assert isinstance(found, Partner), found
    return found


def missing(store: Store, who: Identity, against: str = "latest", test: str = TEST) -> NoPartner:
    found = select(store, Key.of(who, test), who, against)
    assert isinstance(found, NoPartner), found
    return found


def fill(store: Store, *versions: str) -> None:
    for number, version in enumerate(versions):
        put(store, identity(version), session(number))


@pytest.mark.parametrize(
    ("stored", "ours", "partner", "why"),
    [
        (("0.32.0", "0.33.0", "0.34.0"), "0.33.0", "0.33.0", "the same version"),
        (("0.9.0", "0.10.0", "0.34.0"), "0.33.0", "0.10.0", "the highest version below 0.33.0"),
        (("0.33.0rc1", "0.33.0rc2", "0.32.9"), "0.33.0", "0.33.0rc2", "the highest version below 0.33.0"),
        (("0.33.0", "0.32.0"), "0.33.0+cu129", "0.33.0", "the highest version below 0.33.0+cu129"),
        (("0.32.0", "main-3fa9"), "0.33.0", "0.32.0", "the highest version below 0.33.0"),
        (("b9100", "b9000"), "b9200", "b9000", "the newest, as versions here have no order by PEP 440"),
        (("b9000", "b9100"), "b9000", "b9000", "the same version"),
        (("main-1", "main-2"), "0.33.0", "main-2", "the newest, as versions here have no order by PEP 440"),
    ],
)
def test_the_latest_is_the_same_version_or_the_highest_lower_one(
    store: Store, stored: tuple[str, ...], ours: str, partner: str, why: str
) -> None:
    fill(store, *stored)
    found = chosen(store, identity(ours))
    assert found.key.version == partner
    assert f"stored vllm {partner}, {why}" in found.explanation
    for other in {*stored} - {partner}:
        assert other in found.explanation


def test_a_higher_version_is_no_partner_and_is_named(store: Store) -> None:
    fill(store, "0.34.0", "0.35.0")
    found = missing(store, identity("0.33.0"))
    assert "has no version 0.33.0 or lower of" in found.explanation
    assert "stored for this test: 0.34.0, 0.35.0" in found.explanation
    assert found.differing == ("version",)


def test_a_version_may_be_asked_for(store: Store) -> None:
    fill(store, "0.31.0", "0.32.0")
    assert chosen(store, identity(), "version=0.31.0").key.version == "0.31.0"
    assert chosen(store, identity(), "version=0.31").key.version == "0.31.0"
    found = missing(store, identity(), "version=0.30.0")
    assert "has no version 0.30.0 of" in found.explanation
    assert "0.31.0, 0.32.0" in found.explanation


def test_of_parameter_sets_the_closest_is_chosen(store: Store) -> None:
    put(store, identity(max_num_seqs="64", kv_cache_dtype="fp8"))
    put(store, identity(max_num_seqs="32", kv_cache_dtype="auto"), session(1))
    found = chosen(store, identity(max_num_seqs="64", kv_cache_dtype="auto", threads="4"))
    assert found.entry.input["max_num_seqs"].value == "32"  # both differ in two: the newer one
    assert found.differing == ("max_num_seqs", "threads")
    assert (
        "the closest of 2 parameter sets, with other max_num_seqs, threads: 3 launches in 1 session"
        in found.explanation
    )
    same = chosen(store, identity(max_num_seqs="64", kv_cache_dtype="fp8"))
    assert same.differing == ()
    assert same.digest == identity(max_num_seqs="64", kv_cache_dtype="fp8").digest()
    assert "with the same inputs" in same.explanation


def test_none_asks_for_no_comparison(store: Store) -> None:
    fill(store, "0.33.0")
    assert missing(store, identity(), "none").explanation == "no comparison: --llmperf-against none"


def test_an_empty_store_says_what_to_do(store: Store) -> None:
    assert (
        "holds no baseline yet; make one with pytest --llmperf --llmperf-refresh"
        in missing(store, identity()).explanation
    )


@pytest.mark.parametrize(
    ("changes", "fields", "told"),
    [
        ({"gpu": "NVIDIA H100"}, ("gpus",), "gpus nvidia-h200x1, not nvidia-h100x1"),
        ({"quantization": "fp8"}, ("quantization",), "quantization bf16, not fp8"),
        ({"model": "Qwen/Qwen3-8B"}, ("model",), "model meta-llama/Llama-3.1-8B, not Qwen/Qwen3-8B"),
        (
            {"engine": "sglang", "version": "0.5"},
            ("engine", "version"),
            "engine vllm, not sglang; version 0.33.0, not 0.5",
        ),
    ],
)
def test_without_a_partner_the_nearest_and_its_differing_fields_are_named(
    store: Store, changes: dict[str, str], fields: tuple[str, ...], told: str
) -> None:
    fill(store, "0.33.0")
    put(store, identity(gpu="NVIDIA B200", quantization="int4"), test="t.py::other")
    found = missing(store, identity(**changes))
    assert found.nearest == Key.of(identity(), TEST)
    assert found.differing == fields
    assert told in found.explanation


def test_another_test_is_the_nearest_where_there_is_nothing_else(store: Store) -> None:
    fill(store, "0.33.0")
    found = missing(store, identity(), test="perfsuites/test_chat.py::test_renamed")
    assert found.differing == ("test",)
    assert f"test {TEST}, not perfsuites/test_chat.py::test_renamed" in found.explanation


def test_a_partner_that_cannot_be_trusted_is_an_error(store: Store) -> None:
    fill(store, "0.33.0")
    path = Path(store.location) / Key.of(identity(), TEST).path
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(BaselineError, match="truncated"):
        select(store, Key.of(identity(), TEST), identity(), "latest")
    assert "cannot be used" in missing(store, identity(gpu="NVIDIA H100")).explanation


@pytest.mark.parametrize("against", ["newest", "version=", "version", "", "0.32.0"])
def test_anything_else_is_an_error_of_usage(against: str) -> None:
    with pytest.raises(UsageError, match=r"none of 'latest', 'none', 'version=X'"):
        check_against(against)
