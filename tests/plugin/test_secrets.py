"""What a run writes and shows: no secret, whatever a server prints or answers, and nothing that a terminal obeys."""

from __future__ import annotations

import gzip
import json
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest

from pytest_llmperf.errors import ConfigError
from pytest_llmperf.settings.servers import read_server

FAKE = Path(__file__).parents[1] / "fake_vllm.py"
SECRET = "sk-5ECRET5ECRET42"
WRITTEN_BY_THE_TEST = ("pyproject.toml", "test_it.py", "vllm", "__pycache__")
TESTS = """
import pytest

@pytest.mark.llmperf(workload={"input": 24, "output": 8}, concurrency=2, requests=4)
def test_it(llmperf):
    llmperf.run()
"""
PRINTS_ALL = "print(sys.argv, dict(os.environ), flush=True)"
QUOTES_HEADERS = """
def quote(self):
    self.rfile.read(int(self.headers["Content-Length"]))
    data = json.dumps({"error": {"message": str(self.headers)}}).encode()
    self.send_response(500)
    self.send_header("Content-Length", str(len(data)))
    self.end_headers()
    self.wfile.write(data)
    print(self.headers, flush=True)

there["Handler"].do_POST = quote
"""
PROCESS = "executable = 'PROGRAM'"
COMMAND = (
    "start = ['PROGRAM', 'serve', '{model}', '--host', '127.0.0.1', '--port', '{port}']\n"
    "ready_url = 'http://127.0.0.1:{port}'"
)


def run(
    pytester: pytest.Pytester, server: str, *options: str, begins: str = PRINTS_ALL, more: str = ""
) -> pytest.RunResult:
    """A run with a server that does ``begins`` first, and ``more`` before it listens."""
    program = pytester.path / "vllm"
    program.write_text(
        f"#!{sys.executable}\nimport json, os, runpy, sys, time\n{begins}\n"
        f"there = runpy.run_path({str(FAKE)!r})\n{more}\nthere['main']()\n"
    )
    program.chmod(0o755)
    (pytester.path / "model").mkdir()
    (pytester.path / "model" / "config.json").write_text("{}")
    pytester.makepyprojecttoml(
        f"[tool.llmperf]\ndefault_server = 'x'\n[tool.llmperf.servers.x]\nengine = 'vllm'\n"
        f"model = '{pytester.path}/model'\nstartup_timeout = '20 s'\n{server.replace('PROGRAM', str(program))}\n"
    )
    pytester.makepyfile(test_it=TESTS)
    return pytester.runpytest_subprocess("--llmperf", "-p", "no:cacheprovider", "--junit-xml=junit.xml", *options)


def holding(pytester: pytest.Pytester, result: pytest.RunResult, secret: str = SECRET) -> list[str]:
    """Where ``secret`` is to be seen."""
    found = ["terminal"] if secret in result.stdout.str() + result.stderr.str() else []
    for path in pytester.path.rglob("*"):
        if path.is_file() and not {*path.relative_to(pytester.path).parts} & {*WRITTEN_BY_THE_TEST}:
            data = path.read_bytes()
            data = gzip.decompress(data) if path.suffix == ".gz" else data
            found += [str(path.relative_to(pytester.path))] if secret.encode() in data else []
    return found


def log(pytester: pytest.Pytester) -> str:
    return (pytester.path / "llmperf-report" / "logs" / "x-1.log").read_text(errors="replace")


@pytest.mark.parametrize("launcher", [PROCESS, COMMAND], ids=["process", "command"])
def test_the_key_of_a_server_is_secret_whatever_its_variable_is_called(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, launcher: str
) -> None:
    monkeypatch.setenv("MYK", SECRET)
    result = run(pytester, f"{launcher}\napi_key_env = 'MYK'", more=QUOTES_HEADERS)
    assert holding(pytester, result) == []
    assert "'MYK': '***'" in log(pytester)


def test_variables_are_secret_that_name_a_secret_anywhere(pytester: pytest.Pytester) -> None:
    names = ["MY_SECRET_VALUE", "APITOKEN", "API_KEYS", "VLLM_API_KEY_1", "HUB_TOKEN_RO", "PASSWD_FILE_CONTENT"]
    given = ", ".join(f"{name} = '{SECRET}-{name}'" for name in names)
    result = run(pytester, f"{PROCESS}\nenv = {{ {given}, VLLM_MAX_TOKENS_PER_EXPERT = '77' }}")
    assert holding(pytester, result) == []
    assert [name for name in names if f"'{name}': '***'" not in log(pytester)] == []
    report = json.loads((pytester.path / "llmperf-report" / "report.json").read_text())
    shown = report["tests"][0]["plan"]["server"]["env"]
    assert shown == {**dict.fromkeys(names, "***"), "VLLM_MAX_TOKENS_PER_EXPERT": "77"}


def test_the_same_key_in_a_variable_of_another_name_is_hidden_as_well(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MYK", SECRET)
    server = f"{PROCESS}\napi_key_env = 'MYK'\nenv = {{ MYK = '{SECRET}' }}"
    assert holding(pytester, run(pytester, server)) == []


@pytest.mark.parametrize(
    ("server", "option", "said"),
    [
        (f"extra_args = '--api-key {SECRET}'", "", "servers.x.extra_args: a text is no list"),
        ("", f"--llmperf-set=env.API_KEY {SECRET}", "--llmperf-set: env.API_KEY: write key=value"),
    ],
)
def test_errors_of_the_configuration_quote_no_value_that_may_be_secret(
    pytester: pytest.Pytester, server: str, option: str, said: str
) -> None:
    result = run(pytester, server, *([option] if option else []))
    assert result.ret == 4
    assert said in result.stderr.str()
    assert holding(pytester, result) == []


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({"extra_args": SECRET}, "servers.x.extra_args: a text is no list"),
        ({"extra_args": [SECRET, 5]}, "servers.x.extra_args.1: a number: input should be a valid string"),
        ({"env": SECRET}, "servers.x.env: a text is no table"),
        ({"env": {"A": [SECRET]}}, "servers.x.env.A: a list: input should be a valid string"),
        ({"start": SECRET}, "servers.x.start: a text is no list"),
        ({"stop": {"a": SECRET}}, "servers.x.stop: a table is no list"),
        ({"logs": SECRET}, "servers.x.logs: a text is no list"),
        ({"url": f"me:{SECRET}@host"}, "servers.x.url: "),
        ({"url": f"http://h/?key={SECRET}"}, "servers.x.url: "),
    ],
)
def test_no_value_that_may_be_secret_is_quoted(table: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_server("x", {"engine": "vllm", **table}, "llmperf.toml", Path("/"))
    assert said in str(caught.value)
    assert SECRET not in str(caught.value)


def test_nothing_of_a_log_is_obeyed_by_a_terminal(pytester: pytest.Pytester) -> None:
    title, device, colour = r"\x1b]0;T1TLE\x07", r"\x1bP1$rDC5\x1b\\", r"\x1b[31m"
    binary = rf"bytes(range(256)) + b'{title}{device}{colour}red\x1bc \xc2\x9b31mplain\xc2\x85\n'"
    result = run(pytester, PROCESS, begins=f"os.write(1, {binary}); sys.exit(3)")
    assert result.ret == 1
    report = (pytester.path / "llmperf-report" / "report.json").read_text()
    texts = {
        "terminal": result.stdout.str(),
        "junit": "".join(ElementTree.parse(pytester.path / "junit.xml").getroot().itertext()),
        "report": json.loads(report)["tests"][0]["message"],
    }
    for where, text in texts.items():
        assert "red plain" in text, where
        controls = {each for each in text if (ord(each) < 32 and each not in "\n\t") or 127 <= ord(each) < 160}
        assert controls == set(), where
        assert "T1TLE" not in text, where
        assert "DC5" not in text, where
