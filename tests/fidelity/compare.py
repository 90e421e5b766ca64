"""The product as users run it beside other load generators, against a server of known truth; a Markdown table.

    python tests/fidelity/compare.py --study STUDY --root WORK --out rows.jsonl [--reps 3] [--own-core]
    python tests/fidelity/compare.py --table rows.jsonl

STUDY is the folder with ``peers.py``, ``truthlog.py`` and ``run_stacks.py`` (the fidelity study), WORK the one that its
``run_peers.sh`` filled: ``venvs/``, ``vl/``, ``sgl/``, ``tok/``, ``truth_server``. Peers that are absent there fail and
are left out of the table. The product is the one of this checkout, run by the interpreter that runs this script.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve()
OURS = "pytest-llmperf"
RUST = ("vllm-rs bench (rust)", "sglang (rust)")
PYTHON = ("inference-perf", "vllm-bench (python)")
TEST = """
import json, time
import pytest

@pytest.mark.llmperf(workload={{"api": "completions", "input": {prompt}, "output": {tokens}}},
                     concurrency={conc}, requests={n}, warmup=0, stagger="0 s")
def test_load(llmperf):
    begun, cpu = time.monotonic(), time.process_time()
    llmperf.run()
    with open("times.json", "w") as file:
        json.dump([begun, time.monotonic(), time.process_time() - cpu], file)
"""
TARGETS = {
    "TTFT p50": ("ttft", 0, 0.25, 0.05),
    "TTFT p99": ("ttft", 2, 0.05, 0.2),
    "ITL p99": ("itl", 2, 0.1, 0.1),
    "TPOT p99": ("tpot", 2, 0.25, 0.01),
}
"""Metric → family, position among p50, p95, p99, allowed ratio to the best peer, floor of the peer's error in ms."""


def command(peers: Any) -> Callable[[Any], list[str]]:
    """The command line of the product for one of the study's contexts."""

    def make(context: Any) -> list[str]:
        folder = Path(context.out)
        text = TEST.format(prompt=peers.PROMPT, tokens=peers.TOKENS, conc=context.conc, n=context.n)
        (folder / "test_load.py").write_text(text)
        (folder / "pytest.ini").write_text("[pytest]\n")
        run = "import os, sys, pytest; os.chdir(sys.argv.pop(1)); sys.exit(pytest.main(sys.argv[1:]))"
        options = ["--llmperf", "--llmperf-url", context.url, "-p", "no:cacheprovider", "-q"]
        return [sys.executable, "-c", run, str(folder), *options, "test_load.py"]

    return make


def parse(context: Any, _text: str) -> dict[str, Any]:
    """What ``report.json`` says, in the study's terms (ms)."""
    folder = Path(context.out)
    test = json.loads((folder / "llmperf-report" / "report.json").read_text())["tests"][0]
    metrics, client = test["metrics"], test["trials"][0]["client"]
    begun, ended, cpu = json.loads((folder / "times.json").read_text())

    def family(name: str) -> list[float]:
        return [1e3 * metrics[f"{name}_{q}"]["value"] for q in ("p50", "p95", "p99")]

    return {
        "ttft": family("ttft"), "itl": family("icl"), "tpot": family("tpot"),
        "tok_s": metrics["output_throughput"]["value"], "requests": test["trials"][0]["ok"], "verdict": test["verdict"],
        "begun_s": begun, "ended_s": ended, "test_cpu_s": cpu, "client_cpu_s": client["cpu_total_seconds"],
        "processes": client["processes"], "shared": client["shared_reads"] / max(1, client["output_chunks"]),
    }  # fmt: skip


def measure(arguments: argparse.Namespace) -> None:
    sys.path.insert(0, str(arguments.study))
    import peers

    peers.PEERS[OURS] = (command(peers), parse)

    class Server(peers.Server):  # type: ignore[misc]
        """Answers as long as asked: the product's calibration asks for one token, the loads of all for 64."""

        def __init__(self, exe: str, args: list[str], **how: Any) -> None:
            super().__init__(exe, [*(a.replace(f" n={peers.TOKENS}", "") for a in args), "--tokens", "64"], **how)

    peers.Server = Server
    os.environ["PYTHONPATH"] = str(HERE.parents[2])
    shared = f"sh {HERE.with_name('first.sh')}"
    options = argparse.Namespace(
        root=str(arguments.root), server=str(arguments.root / "truth_server"), scratch=None, timeout=180, keep=False,
        prefix="chrt -f 5 taskset -c 1" if arguments.own_core else shared,
    )  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="compare-") as scratch:
        options.scratch = scratch
        for rep in range(arguments.reps):
            for conc in arguments.streams:
                names = [OURS, *(arguments.peers or (*RUST, *PYTHON))]
                for name in names if rep % 2 == 0 else names[::-1]:
                    row = peers.one(options, name, conc, conc * 4, "ttft=100 gap=20")
                    row |= {"rep": rep, "own_core": arguments.own_core}
                    with arguments.out.open("a") as file:
                        file.write(json.dumps(row) + "\n")
                    print(name, conc, row.get("rc"), row.get("reported") or row.get("parse_error"), flush=True)


def table(rows: list[dict[str, Any]]) -> str:
    """Medians of the repetitions, and each target with its ratio."""
    rows = [row for row in rows if row.get("reported") and row.get("truth")]
    lines: list[str] = []
    for conc in sorted({row["conc"] for row in rows}):
        here = {name: [row for row in rows if row["peer"] == name and row["conc"] == conc] for name in names_of(rows)}
        here = {name: found for name, found in here.items() if found}
        columns = "tool, n, TTFT p50, TTFT p99, ITL p99, TPOT p99, throughput, CPU µs/token, start-up s, exit s, peak"
        lines += [f"\n**{conc} streams**: errors\n", f"| {columns.replace(', ', ' | ')} |", "|---" * 11 + "|"]
        for name, found in here.items():
            cells = [f"{error(found, kind, at):.4f} ms" for kind, at, _, _ in TARGETS.values()]
            cells += [f"{100 * throughput(found):.2f} %", cpu_text(name, found)]
            cells += [f"{start(name, found):.2f}", f"{stop(name, found):.2f}"]
            cells.append(f"{middle([row['truth']['peak'] for row in found]):.0f}")
            lines.append(f"| {name} | {len(found)} | " + " | ".join(cells) + " |")
        others = [name for name in here if name != OURS]
        if OURS not in here or not others:
            continue
        lines += ["", "| target | best peer | ours | ratio | allowed | met |", "|---" * 6 + "|"]
        for label, (kind, at, allowed, floor) in TARGETS.items():
            best = max(floor, min(error(here[name], kind, at) for name in others))
            lines.append(verdict(f"error of {label}, ms", best, error(here[OURS], kind, at), allowed))
        lines.append(f"| throughput | | {100 * throughput(here[OURS]):.3f} % off | | 0.2 % | "
                     f"{'yes' if abs(throughput(here[OURS])) <= 0.002 else 'NO'} |")  # fmt: skip
        for label, group, allowed in (("Rust", RUST, 1.25), ("Python", PYTHON, 0.2)):
            known = [cpu(name, here[name]) for name in group if name in here]
            if known:
                lines.append(verdict(f"CPU a token, best {label} peer", min(known), cpu(OURS, here[OURS]), allowed))
        known = [start(name, here[name]) for name in PYTHON if name in here]
        if known:
            lines.append(verdict("start-up, best Python peer, s", min(known), start(OURS, here[OURS]), 0.25))
        lines.append(verdict("start-up, s", 1.0, start(OURS, here[OURS]), 1.0))
        lines.append(verdict("exit after the last token, s", 0.5, stop(OURS, here[OURS]), 1.0))
    return "\n".join(lines)


def verdict(label: str, best: float, ours: float, allowed: float) -> str:
    ratio = ours / best
    return f"| {label} | {best:.4g} | {ours:.4g} | {ratio:.3g} | {allowed} | {'yes' if ratio <= allowed else 'NO'} |"


def names_of(rows: list[dict[str, Any]]) -> list[str]:
    return list(dict.fromkeys(row["peer"] for row in rows))


def middle(values: list[float]) -> float:
    return statistics.median(values) if values else float("nan")


def error(rows: list[dict[str, Any]], kind: str, at: int) -> float:
    """Median of |reported - truth| in ms."""
    given = [(row["reported"].get(kind) or [None] * 3, row["truth"][kind]) for row in rows]
    return middle([abs(found[at] - truth[at]) for found, truth in given if found[at] is not None])


def throughput(rows: list[dict[str, Any]]) -> float:
    return middle([row["reported"]["tok_s"] / row["truth"]["tok_s"] - 1 for row in rows])


def cpu(name: str, rows: list[dict[str, Any]]) -> float:
    """µs of CPU a token: of a peer all of its process, of ours the client processes from start to end."""
    seconds = [row["reported"]["client_cpu_s"] if name == OURS else row["cpu_s"] for row in rows]
    return middle([1e6 * used / row["truth"]["tokens"] for used, row in zip(seconds, rows, strict=True)])


def cpu_text(name: str, rows: list[dict[str, Any]]) -> str:
    text = f"{cpu(name, rows):.1f}"
    if name == OURS:
        test = middle([1e6 * row["reported"]["test_cpu_s"] / row["truth"]["tokens"] for row in rows])
        whole = middle([1e6 * row["cpu_s"] / row["truth"]["tokens"] for row in rows])
        text += f" (run() in pytest besides: {test:.1f}; with all of pytest: {whole:.1f})"
    return text


def start(name: str, rows: list[dict[str, Any]]) -> float:
    """Seconds to the first request: of ours from the call of ``run()``."""
    return middle([row["truth"]["first_s"] - row["reported"]["begun_s"] if name == OURS else row["start_s"]
                   for row in rows])  # fmt: skip


def stop(name: str, rows: list[dict[str, Any]]) -> float:
    """Seconds after the last token: of ours to the return of ``run()``, records written."""
    return middle([row["reported"]["ended_s"] - row["truth"]["last_s"] if name == OURS else row["stop_s"]
                   for row in rows])  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--study", type=Path)
    parser.add_argument("--root", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--reps", type=int, default=3)
    parser.add_argument("--streams", type=lambda text: [int(part) for part in text.split(",")], default=[64, 256, 512])
    parser.add_argument("--peers", type=lambda text: text.split(","), default=None)
    parser.add_argument("--own-core", action="store_true", help="real-time priority on core 1, as the server on core 0")
    parser.add_argument("--table", type=Path)
    arguments = parser.parse_args()
    if arguments.table is None:
        measure(arguments)
    else:
        print(table([json.loads(line) for line in arguments.table.read_text().splitlines()]))


if __name__ == "__main__":
    main()
