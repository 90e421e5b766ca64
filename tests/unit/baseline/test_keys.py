"""Paths: readable where they can be, one for each thing always, and never out of the store."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kept import TEST, identity

from pytest_llmperf.baseline.keys import Key, slug, unslug
from pytest_llmperf.identity import Identity

SEGMENT = re.compile(r"[a-z0-9][a-z0-9._+@-]*\Z")
NEAR = st.text(st.sampled_from("aA-_./:@+0b[] é\\"), max_size=8)
"""Texts that are easily confused."""


@pytest.mark.parametrize(
    ("text", "segment"),
    [
        ("0.33.0rc1+cu129", "0.33.0rc1+cu129"),
        ("b9000", "b9000"),
        ("unknown", "unknown"),
        ("q4_1", "q4_1"),
        ("qwen/qwen3-8b", "qwen--qwen3-8b"),
        ("perfsuites/test_chat.py::test_chat", "perfsuites--test_chat.py@test_chat"),
    ],
)
def test_what_loses_nothing_stays_readable(text: str, segment: str) -> None:
    assert slug(text) == segment
    assert unslug(segment) == text


@pytest.mark.parametrize("text", ["Qwen/Qwen3-8B", "t.py::t[64-a]", "a" * 81, "", "..", "../../etc", "_state", ".git"])
def test_what_loses_something_carries_a_hash(text: str) -> None:
    assert re.search(r"-[0-9a-f]{10}\Z", slug(text))
    assert unslug(slug(text)) is None


@given(st.one_of(st.text(), NEAR), st.one_of(st.text(), NEAR))
def test_different_texts_have_different_slugs_in_any_case(one: str, other: str) -> None:
    assert (slug(one).casefold() == slug(other).casefold()) == (one == other)


@given(st.one_of(st.text(), NEAR))
def test_a_slug_is_one_segment_and_is_not_taken_for_another(text: str) -> None:
    segment = slug(text)
    assert SEGMENT.match(segment)
    assert len(segment) <= 80
    assert unslug(segment) in (text, None)


@given(st.text(st.characters(), max_size=30), st.text(max_size=30))
def test_no_model_or_version_leads_out_of_the_store(model: str, version: str) -> None:
    parts = Key.of(identity(version, model=model), TEST).path.split("/")
    assert len(parts) == 6
    assert all(SEGMENT.match(part) for part in parts)


@given(NEAR, NEAR, NEAR, NEAR)
def test_keys_share_a_path_only_if_they_are_equal(model: str, test: str, other_model: str, other_test: str) -> None:
    one, other = Key.of(identity(model=model), test), Key.of(identity(model=other_model), other_test)
    assert (one.path == other.path) == (one == other)


@pytest.mark.parametrize(
    ("gpu", "count", "gpus"),
    [
        ("NVIDIA H200", "2", "nvidia-h200x2"),
        ("cpu", "1", "cpux1"),
        ("unknown", "unknown", "unknown"),
        (None, None, "cpux1"),
    ],
)
def test_gpus_by_kind_and_number(gpu: str | None, count: str | None, gpus: str) -> None:
    given_ = {"gpu": gpu, "gpu_count": count}
    facts = {name: {"value": value, "source": "live"} for name, value in given_.items() if value is not None}
    assert Key.of(Identity.model_validate({"environment": facts}), "t").gpus == gpus


def test_what_a_server_does_not_tell_is_unknown() -> None:
    assert Key.of(Identity(), "t.py::t").path == "unknown/unknown/unknown/cpux1/unknown/t.py@t.json"


def test_quantizations_are_in_lower_case() -> None:
    assert Key.of(identity(quantization="Q4_1"), "t").path.split("/")[2] == "q4_1"
