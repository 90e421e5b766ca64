"""Servers that a command starts, here or elsewhere: what is run when, and that ``stop`` runs at every end."""

from __future__ import annotations

import http.server
import json
import signal
import subprocess
import sys
import textwrap
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from pytest_llmperf.errors import ConfigError, InfraError, ServerStartError
from pytest_llmperf.plan import ServerSpec
from pytest_llmperf.server.launch import launch
from pytest_llmperf.server.leases import leases
from pytest_llmperf.server.ports import free_port
from pytest_llmperf.settings.launchable import require_launchable
from pytest_llmperf.settings.servers import read_server

FAKE = Path(__file__).parents[2] / "fake_vllm.py"
SERVE = [sys.executable, str(FAKE), "serve"]


class Cluster:
    """Runs what is handed in as ``NAME.job`` (words, one a line) until that is taken away: not below those who do."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.jobs: dict[str, subprocess.Popen[bytes]] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while not self._over.wait(0.02):
            wanted = {path.stem: path for path in self.folder.glob("*.job")}
            for name in self.jobs.keys() - wanted.keys():
                self.end(name)
            for name in wanted.keys() - self.jobs.keys():
                with (self.folder / f"{name}.log").open("ab") as log:
                    words = wanted[name].read_text().splitlines()
                    self.jobs[name] = subprocess.Popen(words, stdout=log, stderr=log, start_new_session=True)

    def end(self, name: str) -> None:
        job = self.jobs.pop(name)
        job.kill()
        job.wait()

    def close(self) -> None:
        self._over.set()
        self._thread.join()
        for name in list(self.jobs):
            self.end(name)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    (tmp_path / "cluster").mkdir()
    running = Cluster(tmp_path / "cluster")
    try:
        yield running
    finally:
        running.close()


@pytest.fixture(autouse=True)
def _state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def spec(**fields: Any) -> ServerSpec:
    table = {"engine": "vllm", "model": "m", "launcher": "command", "ready_url": "http://127.0.0.1:{port}"}
    return ServerSpec.model_validate({"name": "far", "folder": "/", **table, **fields})


def submitted(cluster: Cluster, *more: str, **fields: Any) -> ServerSpec:
    """A server on ``cluster``: ``start`` hands a job in and returns, ``stop`` takes it away."""
    job, log = cluster.folder / "{name}.job", cluster.folder / "{name}.log"
    words = "\\n".join((*SERVE, "{model}", "--host", "127.0.0.1", "--port", "{port}", *more))
    handed_in = ["sh", "-c", f"echo submitting; printf '{words}' > {job}.part; mv {job}.part {job}"]
    table = {
        "start": handed_in,
        "detached": True,
        "stop": ["rm", "-f", str(job)],
        "logs": ["tail", "-n+1", "-f", str(log)],
    }
    return spec(**{**table, **fields})


def wait_until(condition: Callable[[], object], what: str, seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited {seconds} s in vain until {what}"
        time.sleep(0.02)


def test_a_command_that_stays_is_the_server(tmp_path: Path) -> None:
    note = tmp_path / "stopped"
    start = ["sh", "-c", f"exec {sys.executable} {FAKE} serve {{model}} --host 127.0.0.1 --port {{port}} # ${{HOME}}"]
    with launch(spec(start=start, stop=["touch", str(note)]), log_dir=tmp_path) as live:
        assert live.pid is None  # where the command put the server we don't know
        assert live.command[:2] == ("sh", "-c")
        assert str(live.endpoint.port) in live.command[2]
        assert "${HOME}" in live.command[2]
        assert (live.identity.value("version"), live.identity.value("host")) == ("0.33.0", "unknown")
        assert live.identity.value("start") == " ".join(start)
        live.check_alive()
        (found,) = leases()
        assert found.lease is not None
        assert found.lease.guard is not None
        (server,) = psutil.Process(found.lease.guard[0]).children(recursive=True)[1:]
        assert not note.exists()
    assert not server.is_running()
    assert note.exists()
    assert live.log_path is not None
    assert live.log_path.read_text().splitlines()[-1] == "bye"
    assert leases() == ()


def test_a_command_on_given_gpus_is_of_this_machine(tmp_path: Path) -> None:
    show = ["sh", "-c", f"echo gpus $CUDA_VISIBLE_DEVICES; exec {' '.join(SERVE)} m --host 127.0.0.1 --port {{port}}"]
    with launch(spec(start=show, gpus=[2, 0]), log_dir=tmp_path) as live:
        assert live.pid is not None
        assert live.log_path is not None
        assert live.log_path.read_text().splitlines()[0] == "gpus 2,0"


def test_on_given_gpus_the_port_may_be_the_command_s_own(tmp_path: Path) -> None:
    port = free_port()
    start = [*SERVE, "m", "--host", "127.0.0.1", "--port", str(port)]
    with launch(spec(start=start, gpus=[0], ready_url=f"http://127.0.0.1:{port}"), log_dir=tmp_path) as live:
        assert live.endpoint.port == port
        assert live.pid is not None


def test_on_given_gpus_the_server_may_be_the_child_of_a_daemon(cluster: Cluster, tmp_path: Path) -> None:
    with launch(submitted(cluster, gpus=[0]), log_dir=tmp_path) as live:
        assert live.pid is None  # what we started is not the server, and its memory is not the server's


def test_a_command_that_stays_while_another_answers_is_told_of_detached(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pytest_llmperf.server.readiness._STRANGER_SECONDS", 0.2)
    wanted = submitted(cluster, gpus=[0], detached=False)
    wanted = wanted.model_copy(update={"start": (*wanted.start[:2], f"{wanted.start[2]}; sleep 60")})
    with pytest.raises(InfraError, match=r"another process answers .*docker run, systemd-run\), write detached = true"):
        launch(wanted, log_dir=tmp_path)


def test_a_command_that_returns_leaves_the_server_to_a_cluster(cluster: Cluster, tmp_path: Path) -> None:
    with launch(submitted(cluster), log_dir=tmp_path) as live:
        assert list(cluster.jobs) == ["far"]
        live.check_alive()
        assert live.exit_code is None
        assert live.log_path is not None
        text = live.log_path
        wait_until(lambda: "serving m" in text.read_text(), "the server's log is followed")
        assert text.read_text().splitlines()[0] == "submitting"
        (found,) = leases()
        assert found.lease is not None
        assert found.lease.ended == ("rm", "-f", str(cluster.folder / "far.job"))
    wait_until(lambda: not cluster.jobs, "the cluster has ended it")
    assert leases() == ()


def test_parameters_reach_the_command_one_by_one(tmp_path: Path) -> None:
    words = [*SERVE, "{model}", "--host", "127.0.0.1", "--port", "{port}", "--n", "{max_num_seqs}"]
    start = [*words, "--p={enable_prefix_caching}"]
    with launch(spec(start=start, max_num_seqs=8, enable_prefix_caching=False), log_dir=tmp_path) as live:
        assert live.command[-3:] == ("--n", "8", "--p=false")
        assert live.identity.value("max_num_seqs") == "8"


def test_the_engine_s_own_command_line_is_one_word(tmp_path: Path) -> None:
    with launch(
        spec(engine="embedded", model=None, start=["nice", "-n1", "{command}"], gpus=[]), log_dir=tmp_path
    ) as live:
        assert live.command[:2] == ("nice", "-n1")
        assert "embedded_server.py" in " ".join(live.command)
        assert live.identity.value("engine") == "embedded"


def test_stop_runs_where_the_start_fails(tmp_path: Path) -> None:
    note = tmp_path / "stopped"
    stop = ["touch", str(note)]
    with pytest.raises(ServerStartError, match="the server ended before it was ready") as caught:
        launch(spec(start=["sh", "-c", "echo no quota >&2; exit 4"], stop=stop, detached=True), log_dir=tmp_path)
    assert (caught.value.exit_code, caught.value.log_tail) == (4, ("no quota",))
    assert note.exists()
    note.unlink()
    with pytest.raises(ServerStartError, match=r"not ready after 1\.2 s \(startup_timeout\)") as caught:
        launch(
            spec(start=["sh", "-c", "echo queued"], stop=stop, detached=True, startup_timeout="1.2 s"), log_dir=tmp_path
        )
    assert caught.value.log_tail == ("queued",)
    assert note.exists()
    assert leases() == ()


def test_a_stop_that_fails_is_infra_and_leaves_a_lease(cluster: Cluster, tmp_path: Path) -> None:
    live = launch(submitted(cluster, stop=["sh", "-c", "echo denied; exit 5"]), log_dir=tmp_path)
    (path,) = [found.path for found in leases()]
    told = rf"could not be ended: sh -c 'echo denied; exit 5' \(exit status 5: denied\), the lease {path} stays"
    with pytest.raises(InfraError, match=told):
        live.stop()
    assert live.log_path is not None
    assert live.log_path.read_text().splitlines()[-1] == "denied"
    assert [found.standing for found in leases()] == ["held"]


def test_a_start_that_fails_and_can_not_be_ended_is_infra(tmp_path: Path) -> None:
    """Another start beside it would be measured beside it."""
    wanted = spec(start=["true"], stop=["sh", "-c", "exit 5"], detached=True, startup_timeout="1.2 s")
    with pytest.raises(InfraError, match=r"(?s)not ready after.*far: .*exit status 5.* the lease .* stays.*reap"):
        launch(wanted, log_dir=tmp_path)
    assert [found.standing for found in leases()] == ["held"]


def test_a_server_that_still_loads_is_not_gone_because_its_stop_failed(tmp_path: Path) -> None:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Gateway) as elsewhere:
        Gateway.backend = free_port()  # nothing there: 503, as of a server that loads its model
        threading.Thread(target=elsewhere.serve_forever, args=(0.02,), daemon=True).start()
        url = f"http://127.0.0.1:{elsewhere.server_port}"
        wanted = spec(start=["sleep", "60"], stop=["false"], ready_url=url, startup_timeout="1.2 s")
        try:
            with pytest.raises(InfraError, match=r"(?s)not ready after.*the lease .* stays"):
                launch(wanted, log_dir=tmp_path)
        finally:
            elsewhere.shutdown()


def test_the_lease_of_a_command_holds_no_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STAGING", "sk-7654321")
    env = {"STAGING": "sk-1234567", "PROXY": "http://me:hunter22@proxy", "KEEP": "1"}
    words = [*SERVE, "m", "--host", "127.0.0.1", "--port", "{port}"]
    with launch(spec(start=words, stop=["true"], env=env, api_key_env="STAGING"), log_dir=tmp_path):
        [found] = leases()
        assert found.lease is not None
        assert found.lease.env == {"KEEP": "1"}
        assert not {"sk-1234567", "hunter22"} & {*found.path.read_text().split('"')}


def test_a_stop_that_hangs_is_ended_itself(cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pytest_llmperf.server.process.ENDED_SECONDS", 0.3)
    live = launch(submitted(cluster, stop=["sh", "-c", "echo asking; sleep 60"]), log_dir=tmp_path)
    with pytest.raises(InfraError, match=r"\(did not end within 0\.3 s and was killed: asking\), the lease"):
        live.stop()


def served_here(tmp_path: Path, stop: str) -> ServerSpec:
    pidfile = tmp_path / "pid"
    words = " ".join((*SERVE, "m", "--host", "127.0.0.1", "--port", "{port}"))
    return spec(start=["sh", "-c", f"echo $$ > {pidfile}; exec {words}"], stop=["sh", "-c", stop])


def test_a_stop_that_kills_by_a_pidfile_finds_the_server_running(tmp_path: Path) -> None:
    live = launch(served_here(tmp_path, f"kill $(cat {tmp_path / 'pid'}) && echo asked"), log_dir=tmp_path)
    live.stop()
    assert live.log_path is not None
    assert "asked" in live.log_path.read_text()
    assert leases() == ()


def test_a_stop_that_fails_where_nothing_is_left_is_a_line_in_the_log(tmp_path: Path) -> None:
    live = launch(served_here(tmp_path, "echo no such job; exit 3"), log_dir=tmp_path)
    live.stop()
    assert live.log_path is not None
    said = live.log_path.read_text().splitlines()[-1]
    assert said.startswith("pytest-llmperf: stop failed (exit status 3: no such job), but nothing that was started")
    assert leases() == ()


@pytest.fixture
def running(tmp_path: Path) -> Iterator[int]:
    """The port of a server that an earlier run has left."""
    port = free_port()
    words = [*SERVE, "m", "--host", "127.0.0.1", "--port", str(port)]
    with subprocess.Popen(words, stdout=subprocess.DEVNULL) as server:
        try:
            wait_until(lambda: answers(port), "it is up")
            yield port
        finally:
            server.kill()


def answers(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def test_a_server_that_answers_already_is_not_measured(
    running: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pytest_llmperf.server.vacancy._LEAVING_SECONDS", 0.3)
    began = tmp_path / "began"
    for more in ({}, {"detached": True, "stop": ["end", "a job"]}):
        wanted = spec(start=["touch", str(began)], ready_url=f"http://127.0.0.1:{running}", **more)
        with pytest.raises(
            InfraError, match=rf"something answers at http://127\.0\.0\.1:{running}/health already"
        ) as told:
            launch(wanted, log_dir=tmp_path)
        assert ("(stop: end 'a job')" in str(told.value)) == bool(more)
    assert not began.exists()
    assert leases() == ()


class Gateway(http.server.BaseHTTPRequestHandler):
    """Is there before the server is, and says so."""

    backend = 0

    def do_GET(self) -> None:
        self.answer(None)

    def do_POST(self) -> None:
        self.answer(self.rfile.read(int(self.headers["Content-Length"])))

    def answer(self, body: bytes | None) -> None:
        request = urllib.request.Request(f"http://127.0.0.1:{self.backend}{self.path}", body, dict(self.headers))
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                status, payload = answer.status, answer.read()
        except urllib.error.HTTPError as error:
            status, payload = error.code, error.read()
        except OSError:
            status, payload = 503, b"no healthy upstream"
        self.send_response(status)
        self.send_header("Content-Length", str(len(payload)))
        self.end_headers()
        self.wfile.write(payload)

    def log_message(self, *_: object) -> None:
        return


def test_a_gateway_that_is_there_before_the_server_is_no_server(tmp_path: Path) -> None:
    Gateway.backend = free_port()
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Gateway) as gateway:
        threading.Thread(target=gateway.serve_forever, args=(0.02,), daemon=True).start()
        start = [*SERVE, "m", "--host", "127.0.0.1", "--port", str(Gateway.backend)]
        url = f"http://127.0.0.1:{gateway.server_port}"
        try:
            with launch(spec(start=start, stop=["false"], ready_url=url), log_dir=tmp_path) as live:
                assert live.endpoint.base_url == url
            assert leases() == ()  # stop failed, and the gateway has nobody to ask
        finally:
            gateway.shutdown()


def test_a_start_that_returns_is_told_of_detached(tmp_path: Path) -> None:
    with pytest.raises(ServerStartError, match=r"ended before it was ready; where start returns .* detached = true"):
        launch(spec(start=["true"]), log_dir=tmp_path)
    with pytest.raises(ServerStartError) as failed:
        launch(spec(start=["false"]), log_dir=tmp_path)
    assert "detached" not in failed.value.what


OWNER = textwrap.dedent("""
    import json, sys, time
    from pathlib import Path
    from pytest_llmperf.plan import ServerSpec
    from pytest_llmperf.server.launch import launch
    fields, logs = json.loads(sys.argv[1])
    live = launch(ServerSpec.model_validate(fields), log_dir=Path(logs))
    print("up", flush=True)
    time.sleep(60)
""")


@pytest.mark.parametrize("moment", ["start", "serving"])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_stop_runs_when_pytest_is_killed(cluster: Cluster, tmp_path: Path, moment: str, number: signal.Signals) -> None:
    wanted = submitted(cluster)
    if moment == "start":
        wanted = wanted.model_copy(update={"start": (*wanted.start[:2], f"{wanted.start[2]}; sleep 60")})
    fields = wanted.model_dump(mode="json")
    argument = json.dumps([fields, str(tmp_path)])
    with subprocess.Popen([sys.executable, "-c", OWNER, argument], stdout=subprocess.PIPE, text=True) as owner:
        try:
            assert owner.stdout is not None
            if moment == "serving":
                assert owner.stdout.readline() == "up\n"
            wait_until(lambda: cluster.jobs, "the job runs")
            tree = psutil.Process(owner.pid).children(recursive=True)
            owner.send_signal(number)
            owner.wait(10)
            wait_until(lambda: not cluster.jobs, "the job is gone", 10)
            wait_until(lambda: not any(each.is_running() for each in tree), "nothing of it is left here", 10)
            wait_until(lambda: not leases(), "its lease is gone")
        finally:
            owner.kill()


BASE = {"engine": "vllm", "start": ["true"], "ready_url": "http://h:1", "stop": ["true"]}


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"launcher": "command", "start": []}, "launcher = 'command' needs start"),
        ({"ready_url": None}, "launcher = 'command' needs ready_url"),
        ({"detached": True, "stop": []}, "needs stop, for start leaves the server running (detached)"),
        ({"start": ["run", "{modle}"]}, "start holds {modle}, which stands for nothing; did you mean {model}?"),
        ({"start": ["run", "{model}"]}, "start holds {model}, and model is not set"),
        ({"stop": ["end", "{command}"]}, "stop holds {command}, which stands for nothing"),
        ({"start": ["sh -c '{command}'"]}, "{command} in start is a word of its own: it stands for several"),
        ({"ready_url": "h:8000"}, "'h:8000' is not the URL of a server"),
        ({"ready_url": "http://h:{port}/?key=1"}, "the URL has a query or fragment"),
        ({"port": 8000}, "port is used nowhere: write {port} into start and ready_url"),
        ({"launcher": "process"}, "start belongs to launcher = 'command', and launcher is 'process'"),
        ({"launcher": "containr"}, "launcher: 'containr': input should be 'process', 'command' or 'container'"),
        ({"image": "a"}, "image belongs to launcher = 'container', and launcher is 'command'"),
        ({"gpus": [0]}, "gpus = [0] are this machine's, and ready_url = 'http://h:1' leads to another"),
        ({"url": "http://h:1"}, "start cannot be applied to a server that is running already"),
        ({"start": [], "ready_url": None, "stop": [], "launcher": "container"}, "needs image, or image_template and"),
        ({"start": [], "ready_url": None, "image": "a", "stop": []}, None),
        ({"image": "a", "shm_size": "1 GB", "start": [], "ready_url": None, "stop": []}, None),
        ({"max_num_seqs": 4}, "max_num_seqs: does not reach the server: write {max_num_seqs} into start, or {command}"),
        ({"version": "0.33.0"}, "version: does not reach the server: write {version} into start"),
        ({"extra_args": ["--x"]}, "extra_args: do not reach the server: write {command} into start"),
        ({"start": ["run", "--api-key", "sk-1234567"]}, "start: holds a secret, which would be shown and stored"),
        ({"start": ["run", "a\0b"]}, "word 2 holds a NUL character"),
        ({"env": {"A": "\0"}}, "the value of A holds a NUL character"),
        ({"env": {"A=B": "1"}}, "'A=…' can't be the name of a variable"),
        ({"gpus": [-1], "ready_url": "http://localhost:1"}, "[-1]: GPUs are numbered from 0 on"),
        ({"stop": ["curl", "https://me:hunter22@h/"]}, "stop: holds a secret"),
    ],
)  # fmt: skip
def test_every_mistake_is_one_line(fields: dict[str, Any], problem: str | None) -> None:
    def read() -> None:
        found = read_server(
            "s", {key: value for key, value in {**BASE, **fields}.items() if value is not None}, "file", Path("/etc")
        )
        if found.launched_by == "command":
            require_launchable(found, "file")

    if problem is None:
        read()
        return
    with pytest.raises(ConfigError) as caught:
        read()
    assert problem in str(caught.value)
    assert str(caught.value).startswith("file: servers.s")
    assert "hunter22" not in str(caught.value)
    assert "sk-1234567" not in str(caught.value)


def test_a_program_that_is_not_there_is_told_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"servers\.far: start: 'kubektl' is no program \(looked on the PATH\)"):
        launch(spec(start=["kubektl", "apply"]), log_dir=tmp_path)
    with pytest.raises(ConfigError, match=rf"start: '\./start\.sh' is no program \(looked for {tmp_path}/start\.sh\)"):
        launch(spec(start=["./start.sh"], folder=tmp_path), log_dir=tmp_path)
