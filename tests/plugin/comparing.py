"""Child runs that compare launches of the truth engine, and what their reports say."""

from __future__ import annotations

import json
from typing import Any

import pytest
from truth_engine import CONFTEST

__all__ = ["TEST", "compare", "launches", "prepare", "report", "the_test"]

TEST = """
import pytest

pytestmark = pytest.mark.llmperf(workload={'input': 24, 'output': 8}, concurrency=2, requests=30, warmup=2)

@pytest.mark.regression(metrics=['ttft_p50', 'tpot_mean'], ttft_p50='10 %', tpot_mean='10 %')
def test_speed(llmperf):
    llmperf.run()
"""
SETTINGS = """
[tool.llmperf]
default_server = "truth"
[tool.llmperf.servers.truth]
engine = "truth"
env = {{ LAUNCHES = "{folder}/launches.txt"{env} }}
{more}
"""


def prepare(pytester: pytest.Pytester, tests: str = TEST, *, more: str = "", **env: object) -> None:
    """A project with the truth engine as its server; ``more`` is further configuration."""
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(test_it=tests)
    values = "".join(f', {name} = "{value}"' for name, value in env.items())
    pytester.makepyprojecttoml(SETTINGS.format(folder=pytester.path, env=values, more=more))


def compare(pytester: pytest.Pytester, *options: str) -> pytest.RunResult:
    return pytester.runpytest_subprocess("--llmperf", "-p", "no:cacheprovider", "-p", "no:benchmark", *options)


def report(pytester: pytest.Pytester) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((pytester.path / "llmperf-report" / "report.json").read_text())
    return content


def the_test(pytester: pytest.Pytester, number: int = 0) -> dict[str, Any]:
    found: dict[str, Any] = report(pytester)["tests"][number]
    return found


def launches(pytester: pytest.Pytester) -> int:
    """How many servers have been started in this project, over all runs."""
    file = pytester.path / "launches.txt"
    return len(file.read_text().splitlines()) if file.exists() else 0
