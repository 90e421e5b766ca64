"""The HTTP API of a container engine on a Unix socket, as documented for Docker (Engine API 1.41) and as Podman 4.3.1
answers it: pull, inspect, create, start, logs, wait, kill, remove. A container is a process of this machine that runs
the same command line; what comes out of a folder stands for the programs of the image."""

from __future__ import annotations

import contextlib
import http.server
import json
import os
import re
import shutil
import socketserver
import struct
import subprocess
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self
from urllib.parse import parse_qs, unquote, urlsplit


@dataclass
class Container:
    id: str
    body: dict[str, Any]
    log: Path
    process: subprocess.Popen[bytes] | None = None
    out_of_memory: bool = False


@dataclass
class Engine:
    """Use as a context manager; ``url`` is for DOCKER_HOST."""

    folder: Path
    programs: Path
    registry: dict[str, str] = field(default_factory=dict)
    """Image that can be pulled → its digest."""
    entrypoint: list[str] = field(default_factory=lambda: ["vllm", "serve"])
    images: set[str] = field(default_factory=set)
    containers: dict[str, Container] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)
    created: list[dict[str, Any]] = field(default_factory=list)
    """Bodies of the requests that made containers."""

    @property
    def url(self) -> str:
        return f"unix://{self.folder / 'engine.sock'}"

    def __enter__(self) -> Self:
        engine = self

        class Bound(Handler):
            pass

        Bound.engine = engine
        self._server = _Server(str(self.folder / "engine.sock"), Bound)
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        for each in self.containers.values():
            if each.process is not None and each.process.poll() is None:
                each.process.kill()
                each.process.wait()

    def running(self) -> list[str]:
        return [name for name, each in self.containers.items() if each.process and each.process.poll() is None]

    def start(self, container: Container) -> bool:
        """Whether its program is there."""
        body = container.body
        words = [*(body["Entrypoint"] or []), *(body["Cmd"] or [])]
        program = shutil.which(words[0], path=str(self.programs))
        if program is None:
            return False
        env = dict(each.split("=", 1) for each in body["Env"])
        with container.log.open("ab") as log:
            container.process = subprocess.Popen(
                [program, *words[1:]], env=env, stdout=log, stderr=log, start_new_session=True
            )
        return True


class _Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True


class Handler(http.server.BaseHTTPRequestHandler):
    engine: Engine
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.route()

    def do_POST(self) -> None:
        self.route()

    def do_DELETE(self) -> None:
        self.route()

    def address_string(self) -> str:
        return "client"

    def log_message(self, *_: object) -> None:
        return

    def route(self) -> None:
        engine = self.engine
        url = urlsplit(self.path)
        path = re.sub(r"^/v1\.\d+", "", unquote(url.path))
        query = {name: values[0] for name, values in parse_qs(url.query).items()}
        length = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(length) or b"null") if length else None
        engine.requests.append(f"{self.command} {path}")
        match [self.command, *path.strip("/").split("/")]:
            case ["GET", "version"]:
                self._say(200, {"ApiVersion": "1.41", "MinAPIVersion": "1.24", "Version": "4.3.1"})
            case ["POST", "images", "create"]:
                self._pull(f"{query['fromImage']}:{query['tag']}")
            case ["GET", "images", *name, "json"]:
                self._image("/".join(name))
            case ["POST", "containers", "create"]:
                number = f"{len(engine.created):064x}"
                engine.created.append(body)
                engine.containers[query["name"]] = Container(number, body, engine.folder / f"{query['name']}.log")
                self._say(201, {"Id": number, "Warnings": []})
            case [_, "containers", name, *rest]:
                found = next((each for key, each in engine.containers.items() if name in (key, each.id)), None)
                if found is None:
                    self._say(404, {"message": f"no container with name or ID {name}"})
                else:
                    self._container(found, rest, query)
            case _:
                self._say(404, {"message": "page not found"})

    def _pull(self, image: str) -> None:
        if image in self.engine.registry:
            self.engine.images.add(image)
            lines = [{"status": "Pulling"}, {"status": "Download complete"}]
        else:
            lines = [{"status": "Pulling"}, {"error": f"manifest for {image} not found"}]
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for piece in (*(json.dumps(line).encode() + b"\r\n" for line in lines), b""):
            self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))

    def _image(self, name: str) -> None:
        if name not in self.engine.images:
            self._say(404, {"message": f"No such image: {name}"})
            return
        repository = name.rpartition(":")[0]
        digest = self.engine.registry[name]
        found = {"Id": f"sha256:{'1' * 64}", "RepoDigests": [f"{repository}@{digest}"]}
        self._say(200, {**found, "Config": {"Entrypoint": self.engine.entrypoint}})

    def _container(self, found: Container, rest: list[str], query: dict[str, str]) -> None:
        process = found.process
        code = process.poll() if process else None
        runs = process is not None and code is None
        match [self.command, *rest]:
            case ["GET", "json"]:
                state = {
                    "Status": "created" if process is None else "running" if runs else "exited",
                    "Running": runs, "Pid": process.pid if process and runs else 0,
                    "OOMKilled": found.out_of_memory, "ExitCode": code or 0,
                }  # fmt: skip
                self._say(
                    200, {"Id": found.id, "State": state, "Config": {"Labels": found.body["Labels"], "Tty": False}}
                )
            case ["POST", "start"]:
                if self.engine.start(found):
                    self._say(204)
                else:
                    self._say(400, {"message": f"exec: {found.body['Entrypoint'][0]}: no such file or directory"})
            case ["POST", "kill"]:
                if not runs:
                    self._say(409, {"message": "container is not running"})
                else:
                    assert process is not None
                    process.send_signal({"SIGTERM": 15, "15": 15, "SIGKILL": 9}[query.get("signal", "SIGKILL")])
                    self._say(204)
            case ["POST", "wait"]:
                assert process is not None
                status = process.wait()
                self._say(200, {"StatusCode": status if status >= 0 else 128 - status})
            case ["GET", "logs"]:
                self._logs(found)
            case ["DELETE"]:
                if runs and query.get("force", "").lower() not in ("1", "true"):
                    self._say(409, {"message": "container is running"})
                    return
                if process is not None:
                    process.kill()
                    process.wait()
                self.engine.containers = {
                    name: each for name, each in self.engine.containers.items() if each is not found
                }
                self._say(204)
            case _:
                self._say(404, {"message": "page not found"})

    def _logs(self, found: Container) -> None:
        """Frames of the raw stream: stream type, three zero bytes, length, payload."""
        self.send_response(200)
        self.send_header("Content-Type", "application/vnd.docker.raw-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        with contextlib.suppress(OSError), found.log.open("rb") as log:
            while True:
                ended = found.process is None or found.process.poll() is not None
                if piece := log.read():
                    self.wfile.write(struct.pack(">BxxxL", 1, len(piece)) + piece)
                elif ended:
                    return
                time.sleep(0.01)

    def _say(self, status: int, body: Any = None) -> None:
        payload = b"" if body is None else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(payload)))
        self.end_headers()
        self.wfile.write(payload)


def make_programs(folder: Path, python: str, script: Path, names: Sequence[str] = ("vllm",)) -> Path:
    """A folder with programs of these names in it, which run ``script``."""
    folder.mkdir()
    for name in names:
        program = folder / name
        program.write_text(f'#!/bin/sh\nexec {python} {script} "$@"\n')
        program.chmod(0o755)
        assert os.access(program, os.X_OK)
    return folder
