"""What a dry run says of how a server would be started."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pytest_llmperf.campaign.preview import start_line
from pytest_llmperf.plan import ServerSpec

VLLM = "--generation-config vllm --enable-prompt-tokens-details"


@pytest.fixture(autouse=True)
def model_in_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    snapshot = tmp_path / "models--o--n" / "snapshots" / "main"
    snapshot.mkdir(parents=True)
    for name in ("config.json", "model.safetensors"):
        (snapshot / name).touch()
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))


def line(engine: str, **fields: Any) -> str | None:
    return start_line(ServerSpec.model_validate({"name": "s", "engine": engine, **fields}))


def test_variables_that_the_engine_sets_are_part_of_it_and_secrets_are_not() -> None:
    env = {"HF_TOKEN": "hf_abcdefghijkl", "X": "a b"}
    assert line("ollama", model="llama3", max_num_seqs=4, env=env) == (
        "HF_TOKEN=*** OLLAMA_HOST=127.0.0.1:PORT OLLAMA_KEEP_ALIVE=-1 OLLAMA_NUM_PARALLEL=4 X='a b' ollama serve"
    )


def test_a_port_that_is_set_is_shown_and_a_program_of_a_version() -> None:
    shown = line("vllm", model="o/n", port=8123, version="0.9", executable="v/{version}/vllm", folder=Path("/p"))
    assert shown is not None
    assert shown.endswith(f" /p/v/0.9/vllm serve o/n --host 127.0.0.1 --port 8123 --seed 0 {VLLM}")


def test_what_a_container_and_a_command_are_given() -> None:
    image = line("vllm", model="o/n", image="vllm:1", extra_args=["--api-key", "sk-verysecret"])
    assert image == (
        "image vllm:1: VLLM_NO_USAGE_STATS=1 VLLM_SERVER_DEV_MODE=1 "
        f"vllm serve o/n --host 0.0.0.0 --port PORT --seed 0 {VLLM} --api-key ***"
    )
    start, ready = ["./s.sh", "{port}", "--", "{command}"], "http://127.0.0.1:{port}"
    command = line("lmdeploy", model="o/n", start=start, ready_url=ready, folder=Path("/p"))
    assert command == "/p/s.sh PORT -- lmdeploy serve api_server o/n --server-name 127.0.0.1 --server-port PORT"
    bare = line("openai", start=["run", "--on", "{port}"], ready_url="http://127.0.0.1:{port}", env={"A": "1"})
    assert bare == "A=1 run --on PORT"


def test_a_model_that_is_not_here_is_said() -> None:
    assert line("vllm", model="/models/no") == (
        "cannot be started here: servers.s: model: '/models/no' does not exist (looked for /models/no)"
    )
    assert line("vllm") == "cannot be started here: servers.s: model: vllm is launched with a model; name it"


def test_a_running_server_is_not_started() -> None:
    assert line("vllm", url="http://127.0.0.1:1") is None


def test_a_dry_run_shows_both_arms(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        "import pytest\n@pytest.mark.llmperf(server='embedded', workload='chat', concurrency=1, requests=4)\n"
        "def test_it(llmperf):\n    llmperf.run()\n"
    )
    told = ("--llmperf", "--llmperf-dry-run", "--llmperf-ab", "threads=2")
    text = pytester.runpytest(*told).stdout.str()
    assert "  starts the baseline: " in text
    assert "  starts the candidate: " in text
    assert "--threads 2" in text.partition("starts the candidate")[2]
    assert "--threads 1" in text.partition("starts the baseline")[2].splitlines()[0]
