"""Output tokens by a tokenizer: stands in for missing counts, checks those there are, and never sees a chunk."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from made import failure, record, trial

from pytest_llmperf.errors import ConfigError
from pytest_llmperf.metrics import LoadFacts, assess
from pytest_llmperf.metrics.request import tpot
from pytest_llmperf.recordfile import read_records, write_records
from pytest_llmperf.records import Outcome, RequestRecord, TokenSource
from pytest_llmperf.recount import Tokenizer, recount
from pytest_llmperf.settings import Overrides, Settings, server_named

LETTERS = {"a": 0, "b": 1, "ab": 2, "<s>": 3}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer of four tokens that merges ``ab`` and would begin every text with ``<s>``."""
    found = tmp_path_factory.mktemp("model") / "tokenizer.json"
    single = [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
    special = {"<s>": {"id": "<s>", "ids": [3], "tokens": ["<s>"]}}
    found.write_text(json.dumps({
        "version": "1.0", "padding": None, "normalizer": None, "pre_tokenizer": None, "decoder": None,
        "truncation": {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0},
        "added_tokens": [{"id": 3, "content": "<s>", "single_word": False, "lstrip": False, "rstrip": False,
                          "normalized": False, "special": True}],
        "post_processor": {"type": "TemplateProcessing", "single": single, "pair": single, "special_tokens": special},
        "model": {"type": "BPE", "vocab": LETTERS, "merges": ["a b"]},
    }))  # fmt: skip
    return found


@pytest.fixture(scope="module")
def tokenizer(path: Path) -> Tokenizer:
    return Tokenizer(path, "servers.s")


def told(text: str, tokens: int | None, **changes: Any) -> RequestRecord:
    source = TokenSource.UNKNOWN if tokens is None else TokenSource.USAGE
    asked = 3 if tokens is None else tokens
    return record(texts=(text,), output_tokens=tokens, token_source=source, requested_output_tokens=asked, **changes)


def test_whole_texts_are_counted_without_special_tokens_and_uncut(tokenizer: Tokenizer) -> None:
    assert tokenizer.count(["ab", "aab", "abababab", ""]) == [1, 2, 4, 0]
    # what counting piece by piece would give: "a" + "b" is two tokens, the text is one
    assert sum(tokenizer.count(["a", "b"])) == 2


def test_it_stands_in_where_the_server_does_not_count(tokenizer: Tokenizer) -> None:
    (counted,) = recount([told("ababab", None)], tokenizer)
    assert (counted.output_tokens, counted.tokenizer_tokens) == (3, 3)
    assert counted.token_source is TokenSource.TOKENIZER
    assert tpot(counted) == pytest.approx(0.010)
    validity = assess(trial([counted]), LoadFacts())
    assert validity.valid
    assert any("counted by the configured tokenizer" in note for note in validity.notes)


def test_every_choice_is_a_text_of_its_own(tokenizer: Tokenizer) -> None:
    (counted,) = recount([record(texts=("a", "b"), output_tokens=None, token_source=TokenSource.UNKNOWN)], tokenizer)
    assert counted.output_tokens == 2


def test_the_servers_count_stays_and_both_are_stored_but_never_the_text(tokenizer: Tokenizer, tmp_path: Path) -> None:
    (counted,) = recount([told("ab" * 50, 51)], tokenizer)
    assert (counted.output_tokens, counted.tokenizer_tokens, counted.token_source) == (51, 50, TokenSource.USAGE)
    write_records(tmp_path / "r.jsonl.gz", [replace(counted, texts=("secret",))])
    (read,) = read_records(tmp_path / "r.jsonl.gz")
    assert read == counted
    assert read.texts is None
    # one token is what no text shows (the end of text)
    assert assess(trial([counted]), LoadFacts()) == assess(
        trial([replace(counted, tokenizer_tokens=None)]), LoadFacts()
    )


def test_counts_that_differ_are_told_and_beyond_a_tenth_the_trial_is_invalid(tokenizer: Tokenizer) -> None:
    little = assess(trial(recount([told("ab" * 93, 100)], tokenizer)), LoadFacts())
    assert little.valid
    assert any("100 output tokens by the server, 93 by the tokenizer" in note for note in little.notes)
    foreign = assess(trial(recount([told("ab" * 38, 512)], tokenizer)), LoadFacts())
    assert not foreign.valid
    assert "another model's tokenizer" in foreign.reasons[0]


def test_what_broke_off_or_bore_nothing_is_not_counted(tokenizer: Tokenizer) -> None:
    broken = failure(chunks_ms=(10, 20), texts=("abab",))
    empty = failure(outcome=Outcome.NO_OUTPUT, texts=())
    one, other = recount([broken, empty], tokenizer)
    assert (one.output_tokens, one.tokenizer_tokens, one.token_source) == (None, 2, TokenSource.UNKNOWN)
    assert (other.output_tokens, other.tokenizer_tokens) == (None, None)


def test_a_tokenizer_that_cannot_be_used_is_told_at_collection(path: Path, tmp_path: Path) -> None:
    def settings(tokenizer: Path) -> Settings:
        servers = {"s": {"engine": "openai", "url": "http://h", "tokenizer": str(tokenizer)}}
        return Settings(source="pyproject.toml", servers=servers)

    assert server_named("s", settings(path), Overrides()).tokenizer == path
    with pytest.raises(ConfigError, match=r"servers\.s\.tokenizer: .*none\.json' is no file"):
        server_named("s", settings(tmp_path / "none.json"), Overrides())
    (tmp_path / "bad.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"bad\.json is no tokenizer\.json"):
        Tokenizer(tmp_path / "bad.json", "servers.s")


def test_without_the_library_it_says_what_to_install(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("recount",):
        monkeypatch.setattr(f"pytest_llmperf.{module}.find_spec", lambda _: None)
    with pytest.raises(ConfigError, match=r"pip install 'pytest-llmperf\[tokenizer\]'"):
        Tokenizer(path, "servers.s")
    servers = {"s": {"engine": "openai", "url": "http://h", "tokenizer": str(path)}}
    with pytest.raises(ConfigError, match=r"pip install 'pytest-llmperf\[tokenizer\]'"):
        server_named("s", Settings(source="x", servers=servers), Overrides())
