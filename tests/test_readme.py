"""The README tells the truth: its commands run, its examples are accepted, its output is of the shape it shows."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from truth_server import TruthServer

from pytest_llmperf.plan import Workload
from pytest_llmperf.settings import Settings
from pytest_llmperf.settings.servers import read_server
from pytest_llmperf.suitefile import read_suite

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", README, re.DOTALL)


def set_up_command(name: str) -> str:
    script = [sys.executable, str(ROOT / ".ci" / "readme_command.py"), name]
    return subprocess.run(script, capture_output=True, text=True, check=True).stdout.strip()


def fresh_copy(target: Path) -> None:
    """What a clone would hold: tracked and new files, nothing ignored."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    for name in filter(None, listed.stdout.split("\0")):
        source = ROOT / name
        if source.is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            (target / name).write_bytes(source.read_bytes())


def test_first_command_installs_and_measures_on_a_fresh_clone(tmp_path: Path) -> None:
    """The real thing: a new virtual environment, the real engine, real figures; then one impossible limit."""
    clone = tmp_path / "clone"
    clone.mkdir()
    fresh_copy(clone)
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("PYTEST", "VIRTUAL_ENV"))}
    environment["XDG_CACHE_HOME"] = str(tmp_path / "cache")
    run = subprocess.run(
        ["bash", "-c", set_up_command("quickstart")], cwd=clone, env=environment, capture_output=True, text=True,
        check=False, timeout=600,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout + run.stderr
    assert "3 passed" in run.stdout
    for expected in (
        "TTFT",
        "TPOT",
        "tok/s",
        "peak memory",
        "PASS  perfsuites/quickstart/test_quickstart.py::test_chat",
    ):
        assert expected in run.stdout
    assert (tmp_path / "cache" / "pytest-llmperf").is_dir()

    suite = clone / "perfsuites" / "quickstart" / "test_quickstart.py"
    suite.write_text(suite.read_text().replace('ttft_p95="5 s", tpot_p95', 'ttft_p95="1 us", tpot_p95'))
    command = [clone / ".venv/bin/pytest", "--llmperf", "perfsuites/quickstart", "-k", "chat"]
    tightened = subprocess.run(command, cwd=clone, env=environment, capture_output=True, text=True, check=False)
    assert tightened.returncode == 1
    assert re.search(r"FAIL: ttft_p95 .+ > 1 us \(n=\d+, \d+ beyond", tightened.stdout)


def test_second_command_is_what_ci_runs() -> None:
    assert "readme_command.py test" in (ROOT / ".ci" / "run").read_text()
    assert set_up_command("test").endswith(".venv-test/bin/pytest -n 2 --dist worksteal")
    assert ".ci/run" in (ROOT / ".github" / "workflows" / "ci.yml").read_text()


def test_set_up_commands_are_the_two_promised() -> None:
    assert re.findall(r"<!-- command: (\w+) -->", README) == ["quickstart", "test"]


def test_usage_commands_run(tmp_path: Path) -> None:
    """Each line of the usage block, in one project, against a scripted server where it names a URL.

    Comparisons are only planned: what they find depends on the machine, and version 0.32.0 is vLLM's.
    """
    (tmp_path / "test_it.py").write_text(
        "import pytest\n"
        "@pytest.mark.llmperf(workload={'input': 16, 'output': 8}, concurrency=2, requests=6)\n"
        "def test_it(llmperf):\n    llmperf.run()\n"
    )
    (tmp_path / "llmperf.toml").write_text(
        "default_server = 'embedded'\n[servers.vllm-bf16]\nengine = 'embedded'\nmax_num_seqs = 1\n"
    )
    (usage,) = [text for language, text in BLOCKS if language == "sh" and "--llmperf-dry-run" in text]
    lines = [shlex.split(line, comments=True) for line in usage.splitlines()]
    assert len(lines) == 20
    with TruthServer(ttft=5, gap=1) as server:
        for words in lines:
            command = [server.url if word.startswith("http") else word for word in words]
            if {"--llmperf-ab", "--llmperf-against"} & set(command):
                command.append("--llmperf-dry-run")
            executable = Path(sys.executable).with_name(command[0])
            run = subprocess.run(
                [executable, *command[1:]], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120
            )
            assert run.returncode == 0, f"{shlex.join(command)}\n{run.stdout}{run.stderr}"
            assert run.stdout


def test_toml_examples_are_valid() -> None:
    texts = [text for language, text in BLOCKS if language == "toml"]
    workload, suite, trade, configuration, servers = map(tomllib.loads, texts)
    Workload.model_validate({"name": "readme", **workload})
    assert [declared.name for declared in read_suite(texts[1], "README.md")] == ["chat[1]", "chat[16]"]
    assert set(suite) == {"defaults", "tests"}
    Settings.model_validate({**trade["tool"]["llmperf"], "source": "README.md"})
    settings = Settings.model_validate({**configuration["tool"]["llmperf"], "source": "README.md"})
    assert set(settings.servers) == {"small", "staging"}
    tables = servers["tool"]["llmperf"]["servers"]
    assert {name: read_server(name, table, "README.md", ROOT).launched_by for name, table in tables.items()} == {
        "upgrade": "process", "box": "container", "kubernetes": "command", "slurm": "command",
    }  # fmt: skip


def test_engine_of_one_s_own_is_known_where_it_is_registered(pytester: pytest.Pytester) -> None:
    example = next(text for language, text in BLOCKS if language == "python" and "register_engine" in text)
    pytester.makeconftest(example)
    pytester.makepyfile(
        "import pytest\n@pytest.mark.llmperf(workload={'input': 9, 'output': 9}, concurrency=1, requests=5)\n"
        "def test_it(llmperf): llmperf.run()\n"
    )
    pytester.makefile(".toml", llmperf="[servers.s]\nengine = 'mine'\nmax_num_seqs = 2\n")
    result = pytester.runpytest_subprocess("--llmperf", "--llmperf-dry-run", "--llmperf-server", "s")
    assert result.ret == 0
    result.stdout.fnmatch_lines(["*engine mine*"])


def test_python_example_is_collected(pytester: pytest.Pytester) -> None:
    example = next(text for language, text in BLOCKS if language == "python")
    pytester.makepyfile(example)
    pytester.makefile(".toml", llmperf="default_server = 'embedded'\n")
    result = pytester.runpytest("--llmperf", "--llmperf-dry-run")
    assert result.ret == 0
    result.stdout.fnmatch_lines(["*test_chat: chat, concurrency 16, 200 requests after 32 of warm-up*"])


def test_shown_output_is_of_the_shape_that_is_printed() -> None:
    shown = README.partition("<!-- output: quickstart -->")[2].partition("```text\n")[2].partition("```")[0]
    for expected in (
        "PASS  perfsuites/quickstart/",
        "TTFT",
        "TPOT",
        "ICL",
        "E2E",
        "tok/s",
        "peak memory",
        "✓ ttft_p95",
    ):
        assert expected in shown


def test_the_example_of_the_gate_says_what_it_promises() -> None:
    (example,) = [text for language, text in BLOCKS if language == "python" and "judge_interleaved" in text]
    run = subprocess.run([sys.executable, "-c", example], capture_output=True, text=True, check=True)
    assert run.stdout.startswith("FAIL ('ttft_p50',) ")
