"""A load in every API, from the marker to the report; and a server without counts, counted by a tokenizer."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from truth_server import TruthServer

TEST = """
import pytest

@pytest.mark.llmperf(server="truth", workload={{"input": 40, "output": 12}}, api={api!r}, concurrency=2, requests=8)
def test_it(llmperf):
    llmperf.run()
"""


def run(pytester: pytest.Pytester, server: TruthServer, api: str, engine: str, **keys: str) -> dict[str, Any]:
    """The report's entry, with the request records beside it."""
    lines = ["[servers.truth]", f'engine = "{engine}"', f'url = "{server.url}"', 'model = "truth"']
    (pytester.path / "llmperf.toml").write_text("\n".join([*lines, *(f'{key} = "{keys[key]}"' for key in keys)]))
    pytester.makepyfile(TEST.format(api=api))
    result = pytester.runpytest_subprocess("--llmperf", "-p", "no:cacheprovider")
    assert result.ret == 0, result.stdout.str() + result.stderr.str()
    folder = pytester.path / "llmperf-report"
    test: dict[str, Any] = json.loads((folder / "report.json").read_text())["tests"][0]
    with gzip.open(folder / test["trials"][0]["records"], "rt") as file:
        return test | {"rows": [json.loads(line) for line in file]}


@pytest.mark.parametrize(
    ("api", "engine"),
    [
        ("tgi", "tgi"),
        ("tgi", "openai"),
        ("llamacpp", "llamacpp"),
        ("triton", "triton"),
        ("ollama-chat", "ollama"),
        ("ollama-generate", "ollama"),
    ],
)
def test_a_load_in_every_api(pytester: pytest.Pytester, api: str, engine: str) -> None:
    with TruthServer(ttft=20, gap=4) as server:
        test = run(pytester, server, api, engine)
        log = {served.path for served in server.log()}
    metrics, rows = test["metrics"], test["rows"]
    assert test["trials"][0]["ok"] == 8
    assert len(log) >= 1 + (api == "triton") + (api == "tgi")  # calibration asks for whole replies
    assert {len(row["chunk_ns"]) for row in rows} == {12}
    assert all("texts" not in row for row in rows)
    if api == "triton":  # nobody says how many tokens there were
        assert metrics["output_throughput"]["value"] is None
        assert {row["token_source"] for row in rows} == {"unknown"}
    else:
        assert metrics["output_throughput"]["value"] > 0
        assert {row["output_tokens"] for row in rows} == {12}
        assert {row["prompt_tokens"] for row in rows} <= set(range(36, 45))  # the prompts were calibrated
    counted_by_chunk = "ollama" not in api and api != "triton"
    itl = metrics["itl_p50"]
    # On a busy machine two chunks may share a read: then the figure is said to be invalid.
    assert bool(itl["value"] or itl["invalid"]) is counted_by_chunk


@pytest.mark.parametrize("api", ["chat", "completions", "llamacpp"])
def test_the_real_llamacpp_counts_on_every_event(pytester: pytest.Pytester, api: str) -> None:
    pytester.makepyfile(TEST.format(api=api).replace("truth", "embedded"))
    result = pytester.runpytest_subprocess("--llmperf", "-p", "no:cacheprovider")
    assert result.ret == 0, result.stdout.str()
    folder = pytester.path / "llmperf-report"
    test = json.loads((folder / "report.json").read_text())["tests"][0]
    with gzip.open(folder / test["trials"][0]["records"], "rt") as file:
        rows = [json.loads(line) for line in file]
    for row in rows:
        assert row["outcome"] == "ok"
        assert row["output_tokens"] == sum(row["chunk_tokens"]) == 12
        assert row["token_source"] == "continuous_usage"
    assert test["metrics"]["itl_p50"]["n"] > 0
    assert not any("taken as 1" in (metric["note"] or "") for metric in test["metrics"].values())


def test_a_tokenizer_counts_where_the_server_does_not(pytester: pytest.Pytester, tmp_path: Path) -> None:
    words = {f"w{index}": index for index in range(100)} | {"[UNK]": 100}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="[UNK]"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.save(str(tmp_path / "tokenizer.json"))
    with TruthServer(ttft=20, gap=4, usage=False) as server:
        test = run(pytester, server, "triton", "triton", tokenizer=str(tmp_path / "tokenizer.json"))
    assert {row["output_tokens"] for row in test["rows"]} == {12}
    assert {row["token_source"] for row in test["rows"]} == {"tokenizer"}
    assert test["metrics"]["output_throughput"]["value"] > 0
    assert any("counted by the configured tokenizer" in note for note in test["trials"][0]["validity"]["notes"])
