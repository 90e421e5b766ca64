"""How many processes sent the load: asked for by option, marker or file, and told in the report."""

from __future__ import annotations

import json

import pytest
from truth_server import TruthServer

TEST = """
import pytest

@pytest.mark.llmperf(workload={{"input": 16, "output": 8}}, concurrency=4, requests=12, warmup=4{clients})
def test_it(llmperf):
    llmperf.run()
"""


@pytest.mark.parametrize(
    ("marker", "file", "options", "expected"),
    [
        ("", "", (), 1),
        ("", "clients = 2", (), 2),
        (", clients=3", "clients = 2", (), 3),
        (", clients=3", "", ("--llmperf-clients", "2"), 2),
        (", clients=3", "", ("--llmperf-clients", "auto"), 1),
    ],
)
def test_the_nearest_word_on_clients_counts(
    pytester: pytest.Pytester, marker: str, file: str, options: tuple[str, ...], expected: int
) -> None:
    pytester.makepyfile(TEST.format(clients=marker))
    (pytester.path / "llmperf.toml").write_text(file)
    with TruthServer(ttft=5, gap=2) as server:
        result = pytester.runpytest_subprocess("--llmperf", "--llmperf-url", server.url, *options)
    assert result.ret == 0, result.stdout.str()
    (test,) = json.loads((pytester.path / "llmperf-report" / "report.json").read_text())["tests"]
    client = test["trials"][0]["client"]
    assert client["processes"] == expected
    assert client["cpu_total_seconds"] > client["cpu_seconds"] > 0
    assert 0 < client["busiest"] < 1
    assert (test["trials"][0]["ok"], client["output_chunks"]) == (12, 16 * 8)
