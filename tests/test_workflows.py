"""The workflows: valid by GitHub's schema, least permissions, and their shell steps run with stubs, both ways."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / ".github" / "workflows"
NAMES = ("ci", "perf-gate", "baseline-refresh", "vllm-cpu")


def workflow(name: str) -> Any:
    return YAML(typ="safe").load(FOLDER / f"{name}.yml")


def steps(name: str) -> list[dict[str, Any]]:
    return [step for job in workflow(name)["jobs"].values() for step in job["steps"]]


class Place:
    """A working directory with stub commands; every call of one is noted with its arguments."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "checkout"
        self.stubs = folder / "stubs"
        self.folder.mkdir()
        self.stubs.mkdir()
        self.output, self.summary, self._calls = folder / "output", folder / "summary", folder / "calls"
        for path in (self.output, self.summary, self._calls):
            path.touch()

    def stub(self, name: str, body: str = "", where: Path | None = None) -> None:
        path = (where or self.stubs) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        noting = f'printf "%s" "{name}" >> {self._calls}; printf "|%s" "$@" >> {self._calls}; echo >> {self._calls}'
        path.write_text(f"#!/bin/bash\n{noting}\n{body}\n")
        path.chmod(0o755)

    def write(self, name: str, text: str) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def run(self, name: str, title: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """As GitHub runs ``shell: bash``."""
        (step,) = [step for step in steps(name) if step.get("name") == title]
        assert step["shell"] == "bash"
        assert set(step.get("env", {})) == set(environment)
        return subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],
            cwd=self.folder,
            env={
                "PATH": f"{self.stubs}:{Path(sys.executable).parent}:{os.environ['PATH']}",
                "HOME": str(self.folder.parent),
                "GITHUB_OUTPUT": str(self.output),
                "GITHUB_STEP_SUMMARY": str(self.summary),
                **environment,
            },
            capture_output=True,
            text=True,
            check=False,
        )

    def git(self, *arguments: str) -> str:
        identity = ("-c", "user.name=t", "-c", "user.email=t@example.com", "-c", "init.defaultBranch=main")
        command = ["git", *identity, *arguments]
        return subprocess.run(command, cwd=self.folder, capture_output=True, text=True, check=True).stdout.strip()

    def commit(self) -> str:
        self.git("add", "-A")
        self.git("commit", "-q", "--allow-empty", "-m", "x")
        return self.git("rev-parse", "HEAD")

    @property
    def calls(self) -> list[list[str]]:
        return [line.split("|") for line in self._calls.read_text().splitlines()]

    @property
    def outputs(self) -> dict[str, str]:
        return dict(line.split("=", 1) for line in self.output.read_text().splitlines())


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_all_workflows_are_valid_by_the_schema_of_github() -> None:
    command = [str(Path(sys.executable).with_name("check-jsonschema")), "--builtin-schema", "vendor.github-workflows"]
    files = [str(FOLDER / f"{name}.yml") for name in NAMES]
    done = subprocess.run([*command, *files], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_schema_check_finds_a_fault(tmp_path: Path) -> None:
    path = tmp_path / "broken.yml"
    path.write_text((FOLDER / "perf-gate.yml").read_text().replace("runs-on:", "run-on:"))
    command = [str(Path(sys.executable).with_name("check-jsonschema")), "--builtin-schema", "vendor.github-workflows"]
    assert subprocess.run([*command, str(path)], capture_output=True, check=False).returncode == 1


@pytest.mark.parametrize("name", ["perf-gate", "baseline-refresh"])
def test_permissions_are_least_and_every_job_ends(name: str) -> None:
    content = workflow(name)
    assert content["permissions"] == {}
    assert "concurrency" in content
    for job in content["jobs"].values():
        assert job["timeout-minutes"] <= 240
        writes = {key for key, value in job["permissions"].items() if value == "write"}
        assert not (writes and "self-hosted" in job["runs-on"])
    writing = [job for job in content["jobs"].values() if "write" in job["permissions"].values()]
    assert len(writing) == (1 if name == "baseline-refresh" else 0)


@pytest.mark.parametrize("name", NAMES)
def test_no_expression_is_pasted_into_a_script(name: str) -> None:
    """A title or branch name inside ``${{ }}`` of a script would be run as part of it."""
    assert [step["run"] for step in steps(name) if "${{" in step.get("run", "")] == []


@pytest.mark.parametrize("name", NAMES)
def test_actions_are_pinned_by_commit(name: str) -> None:
    used = re.findall(r"uses: (\S+) # v\d+\.\d+\.\d+\n", (FOLDER / f"{name}.yml").read_text())
    assert len(used) == sum("uses" in step for step in steps(name)) > 0
    assert all(re.fullmatch(r"actions/[a-z-]+@[0-9a-f]{40}", action) for action in used)


def test_every_workflow_is_among_those_tested() -> None:
    assert {path.stem for path in FOLDER.iterdir()} == set(NAMES)


def test_a_fork_never_starts_the_gate_by_itself() -> None:
    content = workflow("perf-gate")
    assert set(content["on"]) == {"pull_request", "workflow_dispatch"}
    assert "head.repo.full_name == github.repository" in content["jobs"]["admit"]["if"]
    measure = content["jobs"]["measure"]
    assert measure["needs"] == "admit"
    assert measure["if"] == "needs.admit.outputs.run == 'true'"
    assert measure["environment"] == "${{ needs.admit.outputs.environment }}"


def test_report_and_artifacts_come_out_of_a_failed_run_too() -> None:
    later = [step for step in workflow("perf-gate")["jobs"]["measure"]["steps"] if step.get("if") == "always()"]
    assert [step.get("name") or step["uses"].partition("@")[0] for step in later] == [
        "Show the report", "actions/upload-artifact", "Pass or fail"
    ]  # fmt: skip


# admit

SHA = "0123456789abcdef0123456789abcdef01234567"


def pinned(version: str) -> str:
    return f'[project]\nversion = "1"\n[tool.llmperf.servers.vllm]\nengine = "vllm"\nversion = "{version}"\n'


def decide(place: Place, base: str, **changes: str) -> subprocess.CompletedProcess[str]:
    values = {"EVENT": "pull_request", "REPOSITORY": "o/r", "COMMIT": SHA, "BASE": base, "LABELLED": "false"}
    return place.run("perf-gate", "Decide whether to measure", **(values | {"GH_TOKEN": "t"} | changes))


def repository(place: Place) -> str:
    """A checkout whose first commit pins 0.32.0; its commit."""
    place.git("init", "-q")
    place.write(".ci/engine_pin.py", (ROOT / ".ci" / "engine_pin.py").read_text())
    place.write("pyproject.toml", pinned("0.32.0"))
    return place.commit()


def test_a_changed_engine_pin_is_measured(place: Place) -> None:
    base = repository(place)
    place.write("pyproject.toml", pinned("0.33.0"))
    place.commit()
    assert decide(place, base).returncode == 0
    assert place.outputs == {"run": "true", "commit": SHA, "environment": "perf"}


def test_a_pin_in_a_file_of_its_own_is_seen_too(place: Place) -> None:
    base = repository(place)
    place.write("llmperf.toml", "[variants.fp8]\nquantization = 'fp8'\n")
    place.commit()
    decide(place, base)
    assert place.outputs["run"] == "true"


def test_a_file_that_cannot_be_read_counts_as_changed(place: Place) -> None:
    base = repository(place)
    place.write("pyproject.toml", "nonsense [")
    place.commit()
    decide(place, base)
    assert place.outputs["run"] == "true"


def test_other_changes_are_not_measured_unless_labelled(place: Place) -> None:
    base = repository(place)
    place.write("pyproject.toml", pinned("0.32.0").replace('version = "1"', 'version = "2"'))
    place.write("README.md", "docs")
    place.commit()
    assert decide(place, base).returncode == 0
    assert place.outputs["run"] == "false"
    assert "the engine pin is unchanged" in place.summary.read_text()
    decide(place, base, LABELLED="true")
    assert place.outputs["run"] == "true"


def test_a_pin_that_changed_on_the_main_branch_only_is_not_this_requests(place: Place) -> None:
    repository(place)
    place.git("switch", "-q", "-c", "mine")
    place.write("README.md", "docs")
    place.commit()
    place.git("switch", "-q", "main")
    place.write("pyproject.toml", pinned("0.33.0"))
    base = place.commit()
    place.git("switch", "-q", "mine")
    decide(place, base)
    assert place.outputs["run"] == "false"


def test_a_base_that_is_not_there_is_an_error_and_no_silent_skip(place: Place) -> None:
    repository(place)
    assert decide(place, SHA).returncode != 0
    assert place.outputs == {}


@pytest.mark.parametrize(("answer", "passes"), [("echo 1", True), ("echo 0", False), ("exit 1", False)])
def test_a_fork_runs_only_behind_reviewers(place: Place, answer: str, passes: bool) -> None:
    place.stub("gh", answer)
    done = decide(place, "", EVENT="workflow_dispatch")
    assert (done.returncode == 0) is passes
    assert place.outputs == ({"run": "true", "commit": SHA, "environment": "perf-fork"} if passes else {})
    assert place.calls[0][:3] == ["gh", "api", "repos/o/r/environments/perf-fork"]
    if not passes:
        assert "perf-fork has no required reviewers" in done.stdout


@pytest.mark.parametrize("commit", ["main", "0123abc", f"{SHA}\nrun=true", "$(id)", ""])
def test_only_a_full_commit_may_be_named(place: Place, commit: str) -> None:
    place.stub("gh", "echo 1")
    done = decide(place, "", EVENT="workflow_dispatch", COMMIT=commit)
    assert done.returncode == 1
    assert "is not a full commit SHA" in done.stdout
    assert place.outputs == {}


# measure


@pytest.mark.parametrize("status", [0, 1, 10])
def test_the_status_of_pytest_is_kept_for_the_last_step(place: Place, status: int) -> None:
    place.stub("pytest", f"exit {status}", where=place.folder / ".venv" / "bin")
    values = {"SUITE": "perf suites", "AGAINST": "latest", "BUDGET": "30 min"}
    assert place.run("perf-gate", "Measure and judge", **values).returncode == 0
    assert place.outputs == {"status": str(status)}
    (call,) = place.calls
    assert call[1:4] == ["perf suites", "--llmperf", "--llmperf-against"]
    assert call[call.index("--llmperf-budget") + 1] == "30 min"
    assert call[call.index("--llmperf-undecided") + 1] == "fail"


@pytest.mark.parametrize("name", ["perf-gate", "baseline-refresh"])
def test_the_summary_is_the_report_or_says_that_there_is_none(place: Place, name: str) -> None:
    assert place.run(name, "Show the report").returncode == 0
    assert "nothing was measured" in place.summary.read_text()
    place.write("llmperf-report/report.md", "❌ llmperf: **FAIL**\n")
    assert place.run(name, "Show the report").returncode == 0
    assert place.summary.read_text().endswith("❌ llmperf: **FAIL**\n")


@pytest.mark.parametrize("name", ["perf-gate", "baseline-refresh"])
def test_an_old_report_is_gone_before_a_new_run(place: Place, name: str) -> None:
    place.write("llmperf-report/report.md", "old")
    place.stub("python3", f"mkdir -p .venv/bin && cp {place.stubs}/pip .venv/bin/pip")
    place.stub("pip")
    assert place.run(name, "Install").returncode == 0
    assert not (place.folder / "llmperf-report").exists()
    assert [call[0] for call in place.calls] == ["python3", "pip"]


@pytest.mark.parametrize(
    ("status", "said"),
    [
        ("0", "::notice title=llmperf::nothing failed"),
        ("1", "::error title=llmperf FAIL::"),
        ("10", "::error title=llmperf UNDECIDED::no regression was shown and none was ruled out"),
        ("12", "::error title=llmperf INFRA::trouble that says nothing about performance"),
        ("2", "interrupted"),
        ("3", "status 3"),
        ("4", "wrong usage"),
        ("5", "no test was collected"),
        ("137", "status 137"),
        ("", "the run did not end"),
    ],
)
def test_every_status_has_words_and_only_zero_passes(place: Place, status: str, said: str) -> None:
    done = place.run("perf-gate", "Pass or fail", STATUS=status)
    assert said in done.stdout
    assert done.stdout.count("\n") == 1
    assert (done.returncode == 0) is (status == "0")


# refresh


def refresh(place: Place, body: str, reason: str = "vLLM 0.33.0") -> subprocess.CompletedProcess[str]:
    place.git("init", "-q")
    place.write("baselines/x.json", "old\n")
    place.write(".gitignore", ".venv\nrefresh.txt\n")
    place.commit()
    place.stub("pytest", body, where=place.folder / ".venv" / "bin")
    return place.run("baseline-refresh", "Measure the new baseline", SUITE="perfsuites", REASON=reason)


def test_a_refresh_measures_with_its_reason_and_keeps_what_was_printed(place: Place) -> None:
    done = refresh(place, "echo new > baselines/x.json; echo 'ttft_p50 181 ms -> 170 ms'", 'it is "faster"; $(id)')
    assert done.returncode == 0, done.stderr
    call = place.calls[0]
    assert call[call.index("--llmperf-reason") + 1] == 'it is "faster"; $(id)'
    assert "--llmperf-refresh" in call
    assert (place.folder / "refresh.txt").read_text() == "ttft_p50 181 ms -> 170 ms\n"


def test_a_refresh_that_fails_or_stores_nothing_proposes_nothing(place: Place) -> None:
    assert refresh(place, "echo new > baselines/x.json; exit 1").returncode == 1
    place.git("checkout", "-q", "baselines")
    place.stub("pytest", "", where=place.folder / ".venv" / "bin")
    done = place.run("baseline-refresh", "Measure the new baseline", SUITE="perfsuites", REASON="r")
    assert done.returncode == 1
    assert "no baseline was written" in done.stdout


def test_a_refresh_without_a_reason_measures_nothing(place: Place) -> None:
    done = refresh(place, "", reason=" \n")
    assert done.returncode == 1
    assert "a reason is needed" in done.stdout
    assert place.calls == []


def propose(place: Place, new: str, report: str = "✅ llmperf: **PASS**\n") -> subprocess.CompletedProcess[str]:
    remote = place.folder.parent / "remote.git"
    subprocess.run(["git", "init", "-q", "--bare", str(remote)], check=True)
    place.git("init", "-q")
    place.git("remote", "add", "origin", str(remote))
    place.write("baselines/x.json", "old\n")
    place.write("baselines/gone.json", "old\n")
    place.commit()
    place.write("measured/baselines/x.json", new)
    if new == "old\n":
        place.write("measured/baselines/gone.json", "old\n")
    place.write("measured/llmperf-report/report.md", report)
    place.write("measured/refresh.txt", "ttft_p50 181 ms -> 170 ms | ```\n")
    place.stub("gh")
    return place.run(
        "baseline-refresh", "Open the pull request", GH_TOKEN="t", REASON="0.33.0 <b>\n@all `x`", ACTOR="ann",
        RUN="https://example.com/run/1", BRANCH="baseline-refresh-1-1", BASE="main",
    )  # fmt: skip


def test_the_request_holds_the_baseline_and_old_and_new(place: Place) -> None:
    done = propose(place, "new\n")
    assert done.returncode == 0, done.stderr
    (call,) = place.calls
    assert call[:7] == ["gh", "pr", "create", "--base", "main", "--head", "baseline-refresh-1-1"]
    body = (place.folder / "body.md").read_text()
    assert body.startswith("Reason: 0.33.0  b   all  x \n\nStarted by ann in https://example.com/run/1\n")
    assert "✅ llmperf: **PASS**" in body
    assert "    ttft_p50 181 ms -> 170 ms | ```\n" in body
    assert "    baselines/x.json" in body.replace("     ", "    ")
    assert body.count("<details>") == body.count("</details>") == 2
    pushed = place.git("ls-tree", "-r", "--name-only", "origin/baseline-refresh-1-1").splitlines()
    assert pushed == ["baselines/x.json"]
    assert place.git("show", "origin/baseline-refresh-1-1:baselines/x.json") == "new"


def test_a_report_too_long_for_a_comment_is_pointed_to(place: Place) -> None:
    assert propose(place, "new\n", "x" * 40_000).returncode == 0
    body = (place.folder / "body.md").read_text()
    assert "too long for this place" in body
    assert len(body) < 2_000


def test_an_unchanged_baseline_opens_no_request(place: Place) -> None:
    done = propose(place, "old\n")
    assert done.returncode == 1
    assert "the measured baseline is the stored one" in done.stdout
    assert place.calls == []
