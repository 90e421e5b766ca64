"""The gate on the embedded engine, live: false alarms, a real change, two changes. By hand, on whatever machine.

    python tests/live/gate.py [--same 20] [--changed 10]

Every run is a project of its own, with the built-in prior. Prints the verdicts as a Markdown table.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

TESTS = """
import pytest

SHARED = {"input": {"uniform": [160, 220]}, "output": {"uniform": [12, 20]},
          "shared_prefix": {"groups": 1, "tokens": 128}}
pytestmark = pytest.mark.llmperf(workload=SHARED, concurrency=2, requests=60, warmup=6)

@pytest.mark.regression(metrics=["cpu_seconds_per_mtok"])
def test_cpu(llmperf):
    llmperf.run()
"""
SETTINGS = """
[tool.llmperf]
default_server = "small"
[tool.llmperf.servers.small]
engine = "embedded"
[tool.llmperf.servers.other]
engine = "embedded"
enable_prefix_caching = false
max_num_seqs = 3
"""


def run(variable: str) -> dict[str, Any]:
    """One comparison; the test's report, and what it took."""
    with tempfile.TemporaryDirectory(prefix="gate-") as folder:
        root = Path(folder)
        (root / "test_live.py").write_text(TESTS)
        (root / "pyproject.toml").write_text(SETTINGS)
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:benchmark", "--llmperf"]
        began = time.monotonic()
        subprocess.run([*command, "--llmperf-ab", variable], cwd=root, check=False, stdout=subprocess.DEVNULL)
        [test] = json.loads((root / "llmperf-report" / "report.json").read_text())["tests"]
        return {**test, "seconds": time.monotonic() - began}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--same", type=int, default=20)
    parser.add_argument("--changed", type=int, default=10)
    arguments = parser.parse_args()
    print("| change | runs | verdicts | metric named | blocks, mean | seconds, mean |", "|---" * 6 + "|", sep="\n")
    for label, variable, count in (
        ("none (a variable that nothing reads)", "env.LLMPERF_NOTHING=1", arguments.same),
        ("prompt cache off", "enable_prefix_caching=false", arguments.changed),
        ("prompt cache off and three slots", "server=other", 1),
    ):
        found = [run(variable) for _ in range(count)]
        verdicts = Counter(test["verdict"] for test in found)
        named = Counter(row["metric"] for test in found for row in test["comparisons"] if row["verdict"] == "FAIL")
        cells = [label, str(count), ", ".join(f"{n} {name}" for name, n in verdicts.most_common())]
        cells += [", ".join(f"{name} {n}" for name, n in named.items()) or "-"]
        cells += [
            f"{sum(test[key] for test in found) / count:.1f}"
            if key == "seconds"
            else f"{sum(test['judgement']['blocks'] for test in found) / count:.1f}"
            for key in ("blocks", "seconds")
        ]
        print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
