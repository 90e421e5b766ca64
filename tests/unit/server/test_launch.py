"""Starting the embedded engine, and what is said when it does not come up."""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from pytest_llmperf.engines import ENGINES, tiny_model
from pytest_llmperf.errors import ConfigError, InfraError, ServerDiedError, ServerStartError
from pytest_llmperf.plan import ServerSpec
from pytest_llmperf.server.launch import launch
from pytest_llmperf.server.ports import free_port


def spec(**fields: object) -> ServerSpec:
    return ServerSpec.model_validate({"name": "my server", "engine": "embedded", **fields})


@pytest.fixture
def engine_command(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Have the embedded engine run a piece of Python instead; ``PORT`` in it is the port."""

    def install(code: str) -> None:
        def command(_spec: ServerSpec, port: int, _model: str) -> list[str]:
            return [sys.executable, "-c", code.replace("PORT", str(port)), "--api-key", "sk-secret-value"]

        monkeypatch.setitem(ENGINES, "embedded", replace(ENGINES["embedded"], command=command))

    return install


def test_launch_is_ready_measured_logged_and_gone_afterwards(tmp_path: Path) -> None:
    with launch(spec(max_num_seqs=1, max_model_len=256), log_dir=tmp_path / "logs") as live:
        assert live.pid is not None
        process = psutil.Process(live.pid)
        assert live.start.time_to_ready_s is not None
        assert 0.02 < live.start.time_to_ready_s < 20
        assert live.log_path == tmp_path / "logs" / "my-server-1.log"
        assert "listening on" in live.log_path.read_text()
        assert live.command[0] == sys.executable
        assert (live.identity.value("slots"), live.identity.value("n_ctx")) == ("1", "256")
        assert process.environ()["HF_HUB_OFFLINE"] == "1"
        live.check_alive()
        guard = process.parent()
    assert not process.is_running()
    assert guard is not None
    assert not guard.is_running()
    assert live.exit_code == 0
    live.stop()


def test_every_launch_has_a_process_and_a_log_of_its_own(tmp_path: Path) -> None:
    with launch(spec(), log_dir=tmp_path) as one, launch(spec(), log_dir=tmp_path) as two:
        assert one.pid != two.pid
        assert one.endpoint.port != two.endpoint.port
        assert [path and path.name for path in (one.log_path, two.log_path)] == ["my-server-1.log", "my-server-2.log"]


def test_server_that_dies_later_is_reported_with_evidence(tmp_path: Path) -> None:
    with launch(spec(), log_dir=tmp_path) as live:
        assert live.pid is not None
        psutil.Process(live.pid).kill()
        deadline = time.monotonic() + 5
        while live.exit_code is None and time.monotonic() < deadline:
            time.sleep(0.01)
        with pytest.raises(ServerDiedError) as caught:
            live.check_alive()
    assert caught.value.exit_code == -9
    assert "killed by signal 9" in str(caught.value)
    assert "embedded_server.py" in str(caught.value)
    assert caught.value.log_tail


def test_server_that_ends_at_start_is_reported_at_once(tmp_path: Path, engine_command: Callable[[str], None]) -> None:
    engine_command("import sys; print('loading'); print('no CUDA device; key', sys.argv[-1]); sys.exit(7)")
    begun = time.monotonic()
    with pytest.raises(ServerStartError) as caught:
        launch(spec(), log_dir=tmp_path)
    assert time.monotonic() - begun < 5
    assert caught.value.exit_code == 7
    assert caught.value.log_tail == ("loading", "no CUDA device; key ***")
    message = str(caught.value)
    assert "the server ended before it was ready" in message
    assert "--api-key ***" in message
    assert "sk-secret-value" not in message
    assert "exit code: 7" in message
    assert str(tmp_path / "my-server-1.log") in message


def test_server_that_is_never_ready_runs_into_the_time_limit_and_is_ended(
    tmp_path: Path, engine_command: Callable[[str], None]
) -> None:
    engine_command("import os, time; print('pid', os.getpid(), flush=True); time.sleep(60)")
    seen: list[tuple[float, str]] = []
    said = r"not ready after 1\.2 s \(startup_timeout\); http://127\.0\.0\.1:\d+/health was asked \d+ times, at last: "
    with pytest.raises(ServerStartError, match=f"{said}connection refused") as caught:
        launch(spec(startup_timeout="1200 ms"), log_dir=tmp_path, on_progress=lambda *told: seen.append(told))
    [line] = caught.value.log_tail
    assert not psutil.pid_exists(int(line.split()[1]))
    assert {shown for _, shown in seen} == {line}
    assert seen[0][0] >= 1.0


SERVES = """
import http.server as h, json

class H(h.BaseHTTPRequestHandler):
    def do_GET(self):
        self.say({"/health": 503, "/v1/models": 200}.get(self.path, 404) if BUSY else 200, {"data": [{"id": "m"}]})
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        body = {"choices": [{"text": "hi", "message": {"content": "hi"}}]}
        self.say(200 if self.path == "SPOKEN" else 404, body)
    def say(self, status, body):
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

h.HTTPServer(("127.0.0.1", PORT), H).serve_forever()
"""


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_a_server_of_one_api_can_be_launched(tmp_path: Path, engine_command: Callable[[str], None], path: str) -> None:
    engine_command(SERVES.replace("BUSY", "False").replace("SPOKEN", path))
    with launch(spec(), log_dir=tmp_path) as live:
        assert live.endpoint.model == "m"


def test_a_server_without_any_api_says_which_were_tried(tmp_path: Path, engine_command: Callable[[str], None]) -> None:
    engine_command(SERVES.replace("BUSY", "False").replace("SPOKEN", ""))
    tried = r"does not answer: \S+/v1/completions: HTTP 404: .*; \S+/v1/chat/completions: HTTP 404"
    with pytest.raises(ServerStartError, match=tried):
        launch(spec(), log_dir=tmp_path)


def test_what_a_server_answers_that_is_not_ready_is_said(tmp_path: Path, engine_command: Callable[[str], None]) -> None:
    engine_command(SERVES.replace("BUSY", "True"))
    with pytest.raises(ServerStartError, match=r"/health was asked \d+ times, at last: HTTP 503"):
        launch(spec(startup_timeout="1 s"), log_dir=tmp_path)


def test_server_that_is_up_but_can_not_answer_is_a_start_error(
    tmp_path: Path, engine_command: Callable[[str], None]
) -> None:
    engine_command(
        "import http.server as h\n"
        "class H(h.BaseHTTPRequestHandler):\n"
        "    def do_GET(self):\n"
        "        self.send_response(200 if self.path == '/health' else 500); self.end_headers()\n"
        "h.HTTPServer(('127.0.0.1', PORT), H).serve_forever()\n"
    )
    with pytest.raises(ServerStartError, match=r"up but does not answer: .*/v1/models: HTTP 500"):
        launch(spec(), log_dir=tmp_path)


def test_wrong_extra_argument_is_the_engines_own_message(tmp_path: Path) -> None:
    with pytest.raises(ServerStartError, match="unrecognized arguments: --no-such-flag") as caught:
        launch(spec(extra_args=("--no-such-flag",)), log_dir=tmp_path)
    assert caught.value.exit_code == 2


def test_taken_port_is_infra_and_names_the_holder(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(InfraError, match=rf"port {port} is taken, held by .*\(pid {os.getpid()}\)"):
            launch(spec(port=port), log_dir=tmp_path)


def test_given_port_is_used(tmp_path: Path) -> None:
    port = free_port()
    with launch(spec(port=port), log_dir=tmp_path) as live:
        assert live.endpoint.base_url == f"http://127.0.0.1:{port}"


def test_port_lost_to_another_server_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even where the other one answers our questions just as well."""
    with launch(spec(), log_dir=tmp_path / "other") as other:
        ports = iter([other.endpoint.port, free_port()])
        monkeypatch.setattr("pytest_llmperf.server.launch.free_port", lambda: next(ports))
        with launch(spec(), log_dir=tmp_path) as live:
            assert live.log_path is not None
            assert live.log_path.name == "my-server-2.log"
            assert live.endpoint.port != other.endpoint.port
            other.check_alive()


def test_engine_that_can_not_be_launched_says_which_can(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"Triton can't be launched by this version \(it can launch: llamacpp, embedded"
    ):
        launch(spec(engine="triton"), log_dir=tmp_path)


def test_log_folder_that_can_not_be_written_is_infra(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InfraError, match="log"):
        launch(spec(), log_dir=tmp_path / "file" / "logs")


def test_an_engines_variables_are_beneath_those_of_the_server_and_its_caches_warm_with_the_first_launch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    variables = {"OURS": "1", "THEIRS": "1", "HERE": "1"}
    engine = replace(ENGINES["embedded"], environment=lambda _spec, _port: variables, cache_env=("KERNELS", "GRAPHS"))
    monkeypatch.setitem(ENGINES, "embedded", engine)
    monkeypatch.setenv("HERE", "0")
    given = spec(env={"THEIRS": "2"}, model=str(tiny_model.ensure()))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    colds = []
    for _ in range(2):
        with launch(given, log_dir=tmp_path / "logs") as live:
            assert live.pid is not None
            env = psutil.Process(live.pid).environ()
            colds.append(live.start.cold)
    assert [env[name] for name in ("OURS", "THEIRS", "HERE")] == ["1", "2", "1"]
    assert Path(env["KERNELS"]).parent == Path(env["GRAPHS"]).parent
    assert Path(env["KERNELS"]).is_relative_to(tmp_path / "cache")
    assert colds == [True, False]


def test_the_command_is_made_for_the_version_that_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original, seen = ENGINES["embedded"].command, []
    assert original is not None

    def command(given: ServerSpec, port: int, model: str) -> list[str]:
        seen.append(given.version)
        return original(given, port, model)

    engine = replace(ENGINES["embedded"], command=command, launch_version=lambda: "7.5")
    monkeypatch.setitem(ENGINES, "embedded", engine)
    with launch(spec(), log_dir=tmp_path) as live:
        assert live.spec.version is None
    assert seen == ["7.5"]
