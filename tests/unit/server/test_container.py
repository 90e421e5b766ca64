"""Engines in containers: what the container engine is asked for, and that nothing of it stays. The engine is
``container_engine``, which answers as Docker's API documents and Podman does."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from container_engine import Container, Engine, Handler, make_programs

from pytest_llmperf.engines import ENGINES
from pytest_llmperf.errors import ConfigError, InfraError, ServerStartError, ServerTakenError
from pytest_llmperf.plan import ServerSpec
from pytest_llmperf.server import container, dock
from pytest_llmperf.server.caches import cold
from pytest_llmperf.server.launch import launch
from pytest_llmperf.server.leases import leases
from pytest_llmperf.server.provision import provision

TESTS = Path(__file__).parents[2]
IMAGE = "vllm/vllm-openai:v0.33.0"
DIGEST = f"sha256:{'ab' * 32}"


def command(spec: ServerSpec, port: int, model: str) -> list[str]:
    return ["vllm", "serve", model, "--host", "127.0.0.1", "--port", str(port), *spec.extra_args]


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    programs = make_programs(tmp_path / "programs", sys.executable, TESTS / "fake_vllm.py")
    with Engine(tmp_path, programs, {IMAGE: DIGEST}) as running:
        monkeypatch.setenv("DOCKER_HOST", running.url)
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        monkeypatch.setitem(ENGINES, "vllm", replace(ENGINES["vllm"], command=command, cache_env=("VLLM_CACHE_ROOT",)))
        yield running


def spec(**fields: Any) -> ServerSpec:
    table = {"engine": "vllm", "version": "0.33.0", "image_template": "vllm/vllm-openai:v{version}", "model": "m"}
    return ServerSpec.model_validate({"name": "a box", **table, **fields})


def wait_until(condition: Callable[[], object], what: str, seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited {seconds} s in vain until {what}"
        time.sleep(0.02)


def test_a_container_is_asked_for_with_all_that_the_engine_needs(engine: Engine, tmp_path: Path) -> None:
    model = tmp_path / "models--a--b" / "snapshots" / "1234"
    model.mkdir(parents=True)
    wanted = spec(model=str(model), gpus=[1, 3], env={"FAKE_VLLM": "", "A": "1"}, shm_size="2 GiB", extra_args=["--x"])
    with launch(wanted, log_dir=tmp_path / "logs") as live:
        (body,) = engine.created
        port = live.endpoint.port
        assert body["Image"] == f"sha256:{'1' * 64}"  # not the tag: that may come to mean another
        assert body["Entrypoint"] == ["vllm"]
        assert body["Cmd"] == ["serve", str(model), "--host", "0.0.0.0", "--port", str(port), "--x"]
        host = body["HostConfig"]
        assert host["PortBindings"] == {f"{port}/tcp": [{"HostIp": "127.0.0.1", "HostPort": str(port)}]}
        assert host["ShmSize"] == 2 << 30
        (devices,) = host["DeviceRequests"]
        assert (devices["DeviceIDs"], devices["Capabilities"]) == (["1", "3"], [["gpu"]])
        weights = str(tmp_path / "models--a--b")  # a snapshot is links to what lies beside it
        assert f"{weights}:{weights}:ro" in host["Binds"]
        env = dict(each.split("=", 1) for each in body["Env"])
        (own,) = [each for each in host["Binds"] if each.endswith(":rw")]
        assert own.split(":")[1] == env["VLLM_CACHE_ROOT"]
        assert Path(own.split(":")[0]).is_dir()
        assert (env["A"], env["HF_HUB_OFFLINE"], "PATH" in env) == ("1", "1", False)
        (found,) = leases()
        assert found.lease is not None
        assert body["Labels"][dock.LABEL] == found.lease.launch == env["PYTEST_LLMPERF_LAUNCH"]
        assert [found.lease.container] == engine.running()
        assert live.identity.value("image") == f"vllm/vllm-openai@{DIGEST}"
        assert live.identity.value("version") == "0.33.0"
        assert live.command[:3] == ("container", f"vllm/vllm-openai@{DIGEST}", "vllm")
        live.check_alive()
    assert live.exit_code == 0
    assert live.log_path is not None
    assert live.log_path.read_text().splitlines()[0].startswith(f"serving {model}")
    assert live.log_path.read_text().splitlines()[-1] == "bye"  # it was asked to go before it was made to
    assert engine.containers == {}
    assert leases() == ()


def test_a_model_of_the_hubs_cache_is_mounted_from_where_the_variables_say(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    monkeypatch.setenv("HUGGINGFACE_HUB_CACHE", str(tmp_path / "hub"))
    folder = tmp_path / "hub" / "models--org--m"
    folder.mkdir(parents=True)
    with launch(spec(model="org/m"), log_dir=tmp_path / "logs"):
        asked = engine.created[-1]
    binds = [bind for bind in asked["HostConfig"]["Binds"] if "models--" in bind]
    assert [bind.split(":")[0] for bind in binds] == [str(folder)]
    assert binds[0].endswith("/hub/models--org--m:ro")
    assert any(word.startswith("HF_HUB_CACHE=") and word.endswith("/hub") for word in asked["Env"])


def test_an_image_is_pulled_once_and_before_the_launch(engine: Engine) -> None:
    first, second = provision(spec()), provision(spec())
    assert first == second
    assert (first.image, first.entrypoint) == (f"vllm/vllm-openai@{DIGEST}", ("vllm", "serve"))
    assert engine.requests.count("POST /images/create") == 1
    with pytest.raises(InfraError, match=r"vllm/vllm-openai:v9 can't be pulled: manifest for .* not found"):
        provision(spec(version="9"))


def test_an_engine_that_does_not_answer_is_infra(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///no/such/socket")
    with pytest.raises(InfraError, match=r"no container engine listens at unix:///no/such/socket; start one"):
        provision(spec())
    monkeypatch.setenv("DOCKER_HOST", "tcp://build-7:2375")
    with pytest.raises(InfraError, match="DOCKER_HOST leads to build-7, and containers are launched on this machine"):
        provision(spec())


def test_without_the_library_it_is_said_how_to_get_it(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "docker", None)
    monkeypatch.setitem(sys.modules, "docker.errors", None)
    with pytest.raises(ConfigError, match=r'servers\.a box: image: .* pip install "pytest-llmperf\[container\]"'):
        provision(spec())


def test_the_program_is_where_the_image_has_it(engine: Engine, tmp_path: Path) -> None:
    engine.entrypoint = ["/opt/nvidia/nvidia_entrypoint.sh", str(engine.programs / "vllm")]
    with pytest.raises(ServerStartError, match=r"can't be run: exec: /opt/nvidia/\S+: no such file"):
        launch(spec(), log_dir=tmp_path)
    assert engine.created[0]["Entrypoint"] == ["/opt/nvidia/nvidia_entrypoint.sh", str(engine.programs / "vllm")]


def test_a_container_that_ends_at_start_is_reported_with_its_own_words(engine: Engine, tmp_path: Path) -> None:
    with pytest.raises(ServerStartError) as caught:
        launch(spec(env={"FAKE_VLLM": "fail", "API_KEY": "sk-secret-99"}), log_dir=tmp_path)
    assert caught.value.exit_code == 3
    assert caught.value.log_tail[-1] == "no CUDA device; key ***"
    assert "the server ended before it was ready" in str(caught.value)
    assert engine.containers == {}
    assert leases() == ()


def test_a_container_that_is_never_ready_is_removed(engine: Engine, tmp_path: Path) -> None:
    with pytest.raises(ServerStartError, match=r"not ready after 1\.5 s \(startup_timeout\)"):
        launch(spec(env={"FAKE_VLLM": "never"}, startup_timeout="1500 ms"), log_dir=tmp_path)
    assert engine.containers == {}


def test_a_container_of_that_name_but_of_another_launch_is_left_alone(engine: Engine) -> None:
    engine.containers["box"] = Container("0" * 64, {"Labels": {dock.LABEL: "theirs"}}, engine.folder / "log")
    dock.remove("box", "ours")
    assert list(engine.containers) == ["box"]
    dock.remove("box", "theirs")
    assert engine.containers == {}


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, int, bytes], None]:
    """Have the container engine answer requests that match a pattern in another way."""

    def set_answer(pattern: str, status: int, body: bytes) -> None:
        route = Handler.route

        def answer(self: Handler) -> None:
            if not re.search(pattern, f"{self.command} {self.path}"):
                route(self)
                return
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        monkeypatch.setattr(Handler, "route", answer)

    return set_answer


NO_SPACE = b'{"message": "no space left on device"}'
NO_PROGRAM = b'{"message": "runc create failed: exec: \\"vllm\\": executable file not found in $PATH"}'


@pytest.mark.parametrize(
    ("pattern", "status", "body", "kind", "said"),
    [
        ("/containers/create", 500, NO_SPACE, InfraError, "the container can't be run: no space left on device"),
        ("/containers/create", 201, b"<html>", InfraError, "gives an answer that is none"),
        (r"/containers/.*/json", 200, b"[1, 2]", InfraError, "gives an answer that is none"),
        ("/start$", 500, NO_PROGRAM, ServerStartError, "executable file not found"),
        ("/containers/create", 400, b'{"message": "bad option"}', ServerStartError, "bad option"),
    ],
)
def test_trouble_of_the_container_engine_is_infra_and_what_it_refuses_is_not(
    engine: Engine,
    tmp_path: Path,
    answers: Callable[[str, int, bytes], None],
    pattern: str,
    status: int,
    body: bytes,
    kind: type[Exception],
    said: str,
) -> None:
    answers(pattern, status, body)
    with pytest.raises(kind, match=re.escape(said)):
        launch(spec(env={"FAKE_VLLM": "fail"}), log_dir=tmp_path)
    assert engine.containers == {}
    assert leases() == ()


def test_a_container_that_is_not_made_in_time_is_infra(
    engine: Engine, tmp_path: Path, answers: Callable[[str, int, bytes], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "start", lambda _: time.sleep(3) or True)
    with pytest.raises(InfraError, match=r"not ready after 1\.5 s .* the container engine has not started it"):
        launch(spec(startup_timeout="1500 ms"), log_dir=tmp_path)


def test_a_container_that_is_taken_away_is_infra(engine: Engine, tmp_path: Path) -> None:
    with launch(spec(), log_dir=tmp_path) as live:
        (gone,) = engine.containers.values()
        engine.containers.clear()
        assert gone.process is not None
        gone.process.kill()
        gone.process.wait()
        wait_until(lambda: live.exit_code is not None, "its end is seen")
        with pytest.raises(ServerTakenError, match=r"still needed: the container can't be run: no container with"):
            live.check_alive()


def test_a_model_that_is_not_here_is_said_to_be_the_image_s(engine: Engine, tmp_path: Path) -> None:
    with launch(spec(model="/models/none"), log_dir=tmp_path) as live:
        assert live.log_path is not None
        assert "/models/none is not on this machine: it has to be in the image" in live.log_path.read_text()


@pytest.fixture
def real(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    """The engines with their own command lines, environments and caches; the programs of their images are stand-ins."""
    names = ("vllm", "trtllm-serve", "ollama")
    programs = make_programs(tmp_path / "programs", sys.executable, TESTS / "any_engine.py", names)
    with Engine(tmp_path, programs, {f"{name}:1": DIGEST for name in names}, entrypoint=[]) as running:
        monkeypatch.setenv("DOCKER_HOST", running.url)
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        monkeypatch.setenv("PYTEST_LLMPERF_CACHE_DIR", str(tmp_path / "cache"))
        yield running


def binds(engine: Engine) -> list[tuple[str, ...]]:
    return [tuple(each.split(":")) for each in engine.created[-1]["HostConfig"]["Binds"]]


def test_a_file_that_the_engine_s_command_names_is_there(real: Engine, tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "chat.jinja").write_text("{{ x }}")
    more = [f"--chat_template={tmp_path / 'chat.jinja'}", "--log_dir", "/in/the/image"]
    wanted = ServerSpec(
        name="t", engine="trtllm", image="trtllm-serve:1", model=str(tmp_path / "model"), extra_args=tuple(more)
    )
    with launch(wanted, log_dir=tmp_path / "logs"):
        words = real.created[-1]["Cmd"]
        options = words[words.index("--extra_llm_api_options") + 1]
        assert "return_perf_metrics" in Path(options).read_text()
        shown = {(outside, inside) for outside, inside, mode in binds(real) if mode == "ro"}
        assert shown == {(path, path) for path in (str(tmp_path / "model"), options, str(tmp_path / "chat.jinja"))}


def test_a_variable_that_says_where_to_listen_means_the_published_port(real: Engine, tmp_path: Path) -> None:
    wanted = ServerSpec(name="o", engine="ollama", image="ollama:1", model="m")
    with launch(wanted, log_dir=tmp_path / "logs") as live:
        env = dict(each.split("=", 1) for each in real.created[-1]["Env"])
        assert env["OLLAMA_HOST"] == f"0.0.0.0:{live.endpoint.port}"


def test_a_start_that_failed_leaves_the_caches_cold(real: Engine, tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    wanted = ServerSpec(name="v", engine="vllm", image="vllm:1", model=str(tmp_path / "model"))
    failing = wanted.model_copy(update={"startup_timeout": 1.0})
    assert cold(wanted)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(real, "start", lambda _: False)
        with pytest.raises(ServerStartError):
            launch(failing, log_dir=tmp_path / "logs")
    assert binds(real)  # its folders were made
    assert cold(wanted)
    with launch(wanted, log_dir=tmp_path / "logs") as live:
        assert live.start.cold
    assert not cold(wanted)


def test_without_gpus_a_container_gets_what_a_process_would_see(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None without NVIDIA's driver; all, or those of the environment, with it; and the log says so."""
    driver = tmp_path / "driver"
    monkeypatch.setattr(container, "_NVIDIA_DRIVER", (str(driver),))

    def asked() -> tuple[list[dict[str, Any]] | None, str]:
        with launch(spec(), log_dir=tmp_path / "logs") as live:
            assert live.log_path is not None
        return engine.created[-1]["HostConfig"].get("DeviceRequests"), live.log_path.read_text().splitlines()[0]

    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert asked() == (None, "gpus is not set, and there is none to be seen: the container gets no GPU")
    driver.touch()
    requests, said = asked()
    assert [(each["Count"], each["DeviceIDs"]) for each in requests or ()] == [(-1, [])]
    assert said == "gpus is not set: the container gets all GPUs, and no lock is taken; others may use them too"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,GPU-a")
    requests, _ = asked()
    assert [each["DeviceIDs"] for each in requests or ()] == [["2", "GPU-a"]]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert asked()[0] is None


def test_a_container_is_watched_from_when_its_process_is_known(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its process on this machine is the one whose cgroup bears its id."""
    processes = tmp_path / "processes"
    monkeypatch.setattr(dock, "_PROCESSES", processes)
    watched: list[int] = []
    ended: list[int] = []

    @contextmanager
    def watch(pid: int) -> Iterator[None]:
        watched.append(pid)
        yield
        ended.append(pid)

    made = engine.start

    def start(found: Container) -> bool:
        done = made(found)
        assert found.process is not None
        own = processes / str(found.process.pid)
        own.mkdir(parents=True)
        (own / "cgroup").write_text(f"0::/system.slice/docker-{found.id}.scope\n")
        return done

    monkeypatch.setattr(engine, "start", start)
    with launch(spec(), log_dir=tmp_path / "logs", watch=watch) as live:
        (running,) = engine.containers.values()
        assert running.process is not None
        assert [live.pid] == watched == ended == [running.process.pid]
        (name,) = engine.containers
        (processes / str(live.pid) / "cgroup").write_text("0::/user.slice\n")
        assert dock.host_pid(name) is None  # the number is another's in our namespace


OWNER = textwrap.dedent("""
    import json, sys, time
    from dataclasses import replace
    from pathlib import Path
    from pytest_llmperf.engines import ENGINES
    from pytest_llmperf.plan import ServerSpec
    from pytest_llmperf.server.launch import launch
    def command(spec, port, model):
        return ["vllm", "serve", model, "--host", "127.0.0.1", "--port", str(port)]
    ENGINES["vllm"] = replace(ENGINES["vllm"], command=command)
    fields, logs = json.loads(sys.argv[1])
    live = launch(ServerSpec.model_validate(fields), log_dir=Path(logs))
    print("up", flush=True)
    time.sleep(60)
""")


@pytest.mark.parametrize("mode", ["never", "ignore"])
def test_no_container_outlives_pytest(engine: Engine, tmp_path: Path, mode: str) -> None:
    """Killed while the container starts, and while it serves."""
    fields = spec(env={"FAKE_VLLM": mode}).model_dump(mode="json")
    with subprocess.Popen(
        [sys.executable, "-c", OWNER, json.dumps([fields, str(tmp_path)])], stdout=subprocess.PIPE, text=True
    ) as owner:
        try:
            assert owner.stdout is not None
            if mode == "ignore":
                assert owner.stdout.readline() == "up\n"
            wait_until(engine.running, "the container runs")
            os.kill(owner.pid, signal.SIGKILL)
            owner.wait(10)
            wait_until(lambda: not engine.containers, "the container is gone", 10)
            wait_until(lambda: not leases(), "its lease is gone")
        finally:
            owner.kill()
