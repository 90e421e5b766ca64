"""report.md: golden files for what a reviewer sees, names that try to be markup, and the limit of its length."""

from __future__ import annotations

import re
from pathlib import Path

import compared
import pytest
import reported
from test_terminal import compare

from pytest_llmperf.cli.__main__ import main
from pytest_llmperf.errors import InfraError
from pytest_llmperf.journal import Journal
from pytest_llmperf.reports.jsonfile import read_report, write_report
from pytest_llmperf.reports.markdown import LIMIT, SIGNATURE, render
from pytest_llmperf.reports.markup import Block, assemble, code, fenced, plain
from pytest_llmperf.result import RunReport

H200 = {"NVIDIA H200": 3.5}
RUNS: dict[str, RunReport] = {
    "upgrade": compared.run(
        compared.regressed(), compared.accepted(), compared.undecided(), campaigns=(compared.launches(),), prices=H200
    ),
    "passing_stored": compared.run(compared.accepted()),
    "confounded": compared.run(compared.confounded(), compared.accepted()),
    "without_baseline": compared.run(compared.without_baseline()),
    "sla_only": compared.run(reported.passing(), reported.failing().model_copy(update={"nodeid": "a.py::test_slow"})),
    "invalid": compared.run(reported.invalid()),
    "partial": compared.run(compared.accepted(), partial=True),
}


@pytest.mark.parametrize("kind", RUNS)
def test_the_report_of_a_run_reads_as_agreed(kind: str) -> None:
    compare(f"report_{kind}.md", render(RUNS[kind]))


def first_line(report: RunReport) -> str:
    signature, line = render(report).splitlines()[:2]
    assert signature == SIGNATURE
    return line


def test_the_first_line_says_the_strongest_verdict_and_how_many_bear_it() -> None:
    assert first_line(RUNS["upgrade"]).startswith("❌ llmperf: **FAIL** · 1 of 3 tests · `version: 0.32.0 → 0.33.0`")
    assert first_line(RUNS["confounded"]).startswith("⛔ llmperf: **CONFOUNDED** · 1 of 2 tests")
    assert first_line(RUNS["without_baseline"]).startswith("⚠️ llmperf: **NO_BASELINE** · 1 test ")
    assert first_line(RUNS["passing_stored"]).startswith("✅ llmperf: **PASS** · 1 test ")
    assert first_line(compared.run()) == "⚠️ llmperf: **no test was run**"


def test_trouble_of_the_machine_is_stronger_than_a_pass() -> None:
    down = compared.report("a.py::test_down", None, verdict="INFRA", outcome="error", message="port taken\nmore")
    text = render(compared.run(compared.accepted(), down))
    assert text.splitlines()[1].startswith("🔧 llmperf: **INFRA** · 1 of 2 tests")
    assert "- 🔧 `test_down` INFRA, error: port taken" in text


def test_a_test_that_failed_by_an_assertion_of_its_own_is_no_pass() -> None:
    failed = compared.accepted().model_copy(
        update={"outcome": "failed", "message": "def test():\n>  assert 1 == 2\nE  assert 1 == 2\n\nt.py:3: Error"}
    )
    text = render(compared.run(failed))
    assert text.splitlines()[1].startswith("❌ llmperf: **PASS** · 1 test · **1 failed by itself**")
    assert "PASS, failed: assert 1 == 2" in text


def test_the_price_needs_a_known_price_of_every_device() -> None:
    """Two starts of 90 s and one load of a second, on one GPU, at 3.50 USD an hour."""
    campaign = compared.launches()
    test = compared.regressed()
    assert [trial.client.wall_seconds for trial in test.trials] == [1.0]
    run = compared.run(test, campaigns=(campaign,))
    assert "Spent about 3.02 GPU-min." in render(run)
    assert "Spent about 3.02 GPU-min ($0.18)." in render(run.model_copy(update={"prices": H200}))
    assert "GPU-min" not in render(compared.run(test, campaigns=(compared.launches(seconds=None),)))
    running = tuple(launch.model_copy(update={"command": None}) for launch in campaign.launches)
    assert "GPU-min" not in render(compared.run(test, campaigns=(campaign.model_copy(update={"launches": running}),)))
    assert "GPU-min" not in render(compared.run(test))


def test_equal_last_parts_of_node_ids_are_told_apart() -> None:
    other = compared.regressed().model_copy(update={"nodeid": "perf/other.py::test_rag_long[16]"})
    text = render(compared.run(compared.regressed(), other))
    assert "| `perf/other.py::test_rag_long[16]` | `ttft_p50`" in text
    assert "| `perf/test_rag.py::test_rag_long[16]` | `ttft_p50`" in text


HOSTILE = [
    "a|b | c",
    "`code` ``more``",
    "<img src=x onerror=alert(1)> & <!-- x",
    "@everyone and @org/team",
    "[link](http://x.example) ![i](u)",
    "**bold** _em_ ~~no~~ \\| \\`",
    "line\nbreak\r\n| --- |\x1b[31m\u202etxt\x00",
    "fixes #12",
    "</details></td>",
    "x" * 5000,
]


@pytest.mark.parametrize("hostile", HOSTILE)
def test_a_hostile_name_or_reason_stays_text_in_its_cell(hostile: str) -> None:
    found = compared.judgement("FAIL", reason=hostile, against=hostile, variable=hostile, remedy=hostile)
    worse = compared.WORSE.model_copy(update={"reason": hostile})
    nodeid = f"a.py::test_x[{hostile}]"
    text = render(compared.run(compared.report(nodeid, found, worse, message=hostile)))
    columns = {line.count("|") for line in text.splitlines() if line.startswith("| ") and "ttft_p50" in line}
    assert columns == {8}
    outside_code = re.sub(r"```.*?```|`[^`\n]*`", "", text, flags=re.DOTALL)
    assert not re.search(r"@\w", outside_code)
    assert not re.search(r"#\d", re.sub(r"&#\d+;", "", outside_code))
    assert "<img" not in outside_code
    tags = set(re.findall(r"</?[a-z!][^>]*>?", outside_code))
    assert tags == {SIGNATURE, "<details>", "</details>", "<summary>", "</summary>"}
    assert not re.search(r"[\x00-\x09\x0b-\x1f\u202e]", text)
    assert len(text) < 20_000


def test_escaping_is_reversed_by_a_reader_of_markdown() -> None:
    assert plain("a|b") == "a&#124;b"
    assert plain("<b>") == "&#60;b&#62;"
    assert plain("snake_case and _em_") == "snake_case and &#95;em&#95;"
    assert plain("@x") == "@\u200bx"
    assert plain("http://x www.y") == "http:\u200b//x www.\u200by"
    assert code("ttft_p50") == "`ttft_p50`"
    assert code("a|b") == "a&#124;b"
    assert code("") == ""
    assert fenced("a ```` b", "toml") == "`````toml\na ```` b\n`````"


def test_the_length_has_a_limit_and_what_was_cut_is_said() -> None:
    tests = [
        compared.regressed().model_copy(update={"nodeid": f"perf/t.py::test_{n}[{'x' * 120}]"}) for n in range(400)
    ]
    text = render(compared.run(*tests))
    assert LIMIT * 0.8 < len(text) <= LIMIT
    assert re.search(r"Cut for length: \d+ of 1200 lines of “comparisons to look at”", text)
    assert text.endswith("Everything is in report.json.\n")
    assert text.splitlines()[1].startswith("❌ llmperf: **FAIL** · 400 of 400 tests")
    assert text.count("<details>") == text.count("</details>")
    assert "400 tests" in text


def test_a_block_whose_rows_do_not_fit_goes_as_a_whole() -> None:
    blocks = [Block("head", ("h",)), Block("rows", ("r" * 500,), before="<d>", after="</d>"), Block("end", ("e",))]
    assert assemble(blocks, 900) == "h\n\ne\n\nCut for length: 1 of 1 lines of “rows”. Everything is in report.json.\n"
    assert assemble(blocks, 2000) == f"h\n\n<d>\n{'r' * 500}\n</d>\n\ne\n"


def test_the_command_prints_it_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_report(tmp_path / "report.json", RUNS["upgrade"])
    assert main(["report", str(tmp_path), "--format", "markdown"]) == 0
    assert capsys.readouterr().out == render(RUNS["upgrade"])
    assert main(["report", str(tmp_path), "--format", "html"]) == 2


def test_it_lies_beside_the_report_and_says_the_same(tmp_path: Path) -> None:
    journal = Journal.begin(tmp_path, {"NVIDIA H200": 3.5})
    journal.write([compared.launches()], [compared.regressed()], partial=True)
    text = (tmp_path / "report.md").read_text(encoding="utf-8")
    assert text == render(read_report(tmp_path))
    assert "**Partial**" in text
    assert "($0.18)" in text
    journal.write([], [compared.accepted()], partial=False)
    assert "**Partial**" not in (tmp_path / "report.md").read_text(encoding="utf-8")
    journal.end()
    Journal.begin(tmp_path).end()  # the next run may replace it


def test_a_new_report_leaves_nothing_of_a_run_that_was_killed(tmp_path: Path) -> None:
    """Its report may not name what it was writing when it ended."""
    journal = Journal.begin(tmp_path)
    journal.write([], [], partial=True)
    journal.end()
    trial = "test-it-0a1b2c3d-0-1.jsonl.gz"
    old = ("logs/k-1.log", "logs/my-server-12.log", f"records/{trial}", f"telemetry/{trial}", f"records/.{trial}.tmp")
    kept = ("logs/notes.txt", "records/mine.jsonl.gz", "other/k-1.log", "k-1.log")
    for name in (*old, *kept):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x")
    Journal.begin(tmp_path).end()
    assert [name for name in (*old, *kept) if (tmp_path / name).exists()] == list(kept)


def test_a_folder_without_a_report_of_ours_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "k-1.log").write_text("x")
    Journal.begin(tmp_path).end()
    assert (tmp_path / "logs" / "k-1.log").exists()


def test_a_report_md_of_someone_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "report.md").write_text("# my notes\n")
    with pytest.raises(InfraError, match=r"report\.md is no report of ours: move it"):
        Journal.begin(tmp_path)
    assert (tmp_path / "report.md").read_text() == "# my notes\n"
