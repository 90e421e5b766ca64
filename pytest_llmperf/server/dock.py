"""Containers through a Docker-compatible socket: an image at its digest, one container as the server, its sure end.

``python -m pytest_llmperf.server.dock`` stands for the container as the process that the guard watches: it makes and
starts it, prints its log, ends as it ends and passes SIGTERM on to it. It costs some tenths of a second of each start.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, final
from urllib.parse import urlsplit

from pytest_llmperf.errors import ConfigError, InfraError

__all__ = ["JOB_VARIABLE", "LABEL", "NOT_RUN", "TROUBLE", "Image", "host_pid", "pull", "remove", "unstarted"]

JOB_VARIABLE: Final = "PYTEST_LLMPERF_CONTAINER"
"""What the container is made of, as JSON: it may hold secrets, which would be seen on a command line."""
LABEL: Final = "pytest-llmperf.launch"
"""On every container that we make; its value names the launch."""
NOT_RUN: Final = "the container can't be run"
"""How the line in the log begins that says why."""
TROUBLE: Final = signal.SIGUSR1
"""What we end by where the container engine has failed: no exit status of a container can be taken for it."""
_OWN_FAULT: Final = re.compile(
    r"executable file .*not found|exec: .*(no such file|not found|permission denied)", re.IGNORECASE
)
"""What engines say with status 500, too, of an image or a command line that is wrong."""
_PROCESSES: Final = Path("/proc")
_REMOVE_SECONDS: Final = 40.0
_ASK_SECONDS: Final = 5
_GARBAGE: Final = (TypeError, KeyError, IndexError, AttributeError, ValueError)
"""What comes of an answer that is not what is documented."""
_LOOK_SECONDS: Final = 0.3


@final
@dataclass(frozen=True, slots=True)
class Image:
    """An image of this machine."""

    name: str
    """With its digest; with its id where it was never in a registry."""
    id: str
    entrypoint: tuple[str, ...] = ()


def pull(image: str, where: str) -> Image:
    """``image``, pulled where it isn't there yet. Raises ConfigError without the library, InfraError for all else."""
    try:
        import docker.errors
        import docker.utils
    except ImportError:
        problem = 'containers need the Docker library for Python; pip install "pytest-llmperf[container]"'
        raise ConfigError(where, "image", problem) from None
    try:
        with _engine() as api:
            try:
                found = api.inspect_image(image)
            except docker.errors.ImageNotFound:
                name, tag = docker.utils.parse_repository_tag(image)
                for event in api.pull(name, tag=tag or "latest", stream=True, decode=True):
                    if "error" in event:
                        raise InfraError(f"the image {image} can't be pulled: {event['error']}") from None
                found = api.inspect_image(image)
            repository = docker.utils.parse_repository_tag(image.partition("@")[0])[0]
            digests = [each for each in found.get("RepoDigests") or () if "@" in each]
            named = next((each for each in digests if each.partition("@")[0].endswith(repository)), None)
            entrypoint = tuple((found.get("Config") or {}).get("Entrypoint") or ())
            return Image(named or f"{repository}@{found['Id']}", str(found["Id"]), entrypoint)
    except (docker.errors.DockerException, OSError) as error:
        raise InfraError(f"the image {image} can't be had: {_line(error)}") from error


def remove(name: str, launch: str) -> None:
    """End the container ``name`` of ``launch`` and make sure it is gone: also one that is only just being made.

    Never touches a container of that name that carries another label; where the engine can't tell its label the name,
    which holds part of the launch's, has to do. Raises InfraError where it stays.
    """
    import docker.errors

    deadline, gone = time.monotonic() + _REMOVE_SECONDS, 0
    trouble = ""
    while gone < 2:
        try:
            with _engine() as api:
                if not _is_of(api, name, launch):
                    return
                api.remove_container(name, force=True, v=True)
                gone = 0
        except docker.errors.NotFound:
            gone += 1  # twice in a row: its making may have been asked for and not have begun
        except (docker.errors.DockerException, InfraError, OSError) as error:
            trouble = _line(error)
        if time.monotonic() > deadline:
            raise InfraError(f"the container {name} could not be ended: {trouble or 'it is still there'}")
        time.sleep(_LOOK_SECONDS)


def _is_of(api: Any, name: str, launch: str) -> bool:
    found = api.inspect_container(name)
    try:
        return bool((found["Config"].get("Labels") or {}).get(LABEL) == launch)
    except _GARBAGE:
        return name.endswith(launch[:12])


def unstarted(name: str) -> str | None:
    """Why the container ``name`` has not so much as begun to run; None where it has, or had."""
    import docker.errors

    try:
        with _engine(seconds=_ASK_SECONDS) as api:
            state = api.inspect_container(name)["State"].get("Status")
    except docker.errors.NotFound:
        return f"{NOT_RUN}: the container engine has not made it"
    except (docker.errors.DockerException, InfraError, OSError) as error:
        return f"{NOT_RUN}: the container engine does not answer ({_line(error)})"
    return f"{NOT_RUN}: the container engine has not started it" if state == "created" else None


def host_pid(name: str) -> int | None:
    """The pid of the container's first process on this machine; None where it can't be told, or isn't ours to see."""
    import docker.errors

    try:
        with _engine() as api:
            found = api.inspect_container(name)
            pid = int(found["State"]["Pid"])
            own = found["Id"] in (_PROCESSES / str(pid) / "cgroup").read_text(encoding="utf-8")
    except (docker.errors.DockerException, InfraError, OSError):
        return None
    return pid if pid and own else None


def run(job: Mapping[str, Any]) -> int:
    """Make and start the container of ``job``, print its log; its exit code once it has ended.

    Ends this process by ``TROUBLE`` where the container engine fails, or the container is taken away.
    """
    import docker.errors
    import docker.types

    ends: list[int] = []
    begun: list[str] = []

    def pass_on(number: int, _frame: object) -> None:
        ends.append(number)
        for each in begun:
            try:
                with _engine() as api:
                    api.kill(each, signal.SIGTERM)
            except (docker.errors.DockerException, InfraError, OSError):  # it has ended
                continue

    signal.signal(signal.SIGTERM, pass_on)
    try:
        with _engine() as api:
            gpus = docker.types.DeviceRequest(
                **({"device_ids": job["gpus"]} if job["gpus"] else {"count": -1}), capabilities=[["gpu"]]
            )
            host = api.create_host_config(
                binds=[f"{outside}:{inside}:{mode}" for outside, inside, mode in job["mounts"]],
                port_bindings={job["port"]: ("127.0.0.1", job["port"])},
                shm_size=job["shm_size"],
                device_requests=None if job["gpus"] is None else [gpus],
            )
            made = api.create_container(
                job["image"], command=job["command"], entrypoint=job["entrypoint"], environment=job["env"],
                name=job["name"], labels=job["labels"], ports=[job["port"]], host_config=host,
            )  # fmt: skip
            if job["said"]:
                print(job["said"], flush=True)  # noqa: T201 - our output is its log
            if ends:
                return 128 + signal.SIGTERM
            api.start(made["Id"])
            begun.append(made["Id"])
            if ends:
                pass_on(signal.SIGTERM, None)
            for piece in api.logs(made["Id"], stream=True, follow=True):
                os.write(1, piece)
            code = int(api.wait(made["Id"])["StatusCode"])
            if api.inspect_container(made["Id"])["State"].get("OOMKilled"):
                print("the container ran out of memory (OOMKilled)", flush=True)  # noqa: T201 - our output is its log
    except (docker.errors.DockerException, InfraError, OSError) as error:
        print(f"{NOT_RUN}: {_line(error)}", flush=True)  # noqa: T201 - as above
        if not ends and not _is_fault(error):
            os.kill(os.getpid(), TROUBLE)
        return 125
    return code


def _is_fault(error: BaseException) -> bool:
    """Whether the container engine refuses what was asked of it: an image without the program, a bad option."""
    import docker.errors

    if not isinstance(error, docker.errors.APIError):
        return False
    gone = isinstance(error, docker.errors.NotFound)  # the image, or the container, meanwhile
    return (bool(error.is_client_error()) and not gone) or _OWN_FAULT.search(_line(error)) is not None


def main() -> int:
    match sys.argv[1:]:
        case ["remove", name, launch]:
            try:
                remove(name, launch)
            except InfraError as error:
                print(error, flush=True)  # noqa: T201 - our output is the log
                return 1
            return 0
        case _:
            return run(json.loads(os.environ[JOB_VARIABLE]))


@contextmanager
def _engine(seconds: int = 60) -> Iterator[Any]:
    """The API of the engine at ``DOCKER_HOST``, or where Docker and Podman put their sockets. InfraError elsewhere.

    What is done with an answer in the block, and fails for what the answer is, is an InfraError too.
    """
    import docker
    import urllib3.exceptions

    given = os.environ.get("DOCKER_HOST")
    if given and urlsplit(given).scheme in ("tcp", "ssh", "http", "https"):
        host = urlsplit(given).hostname
        if host not in ("localhost", "127.0.0.1", "::1"):
            raise InfraError(f"DOCKER_HOST leads to {host}, and containers are launched on this machine only")
    base = given or _socket()
    if base.startswith("unix://") and not Path(base.removeprefix("unix://")).is_socket():
        raise InfraError(f"no container engine listens at {base}; start one, or set DOCKER_HOST")
    api = docker.APIClient(base_url=base, version="auto", timeout=seconds)
    try:
        yield api
    except (*_GARBAGE, http.client.HTTPException, urllib3.exceptions.HTTPError) as error:
        problem = f"the container engine at {base} gives an answer that is none"
        raise InfraError(f"{problem} ({type(error).__name__}: {_line(error)})") from error
    finally:
        api.close()


def _socket() -> str:
    runtime = os.environ.get("XDG_RUNTIME_DIR", f"/run/user/{os.getuid()}")
    for path in ("/var/run/docker.sock", f"{runtime}/docker.sock", f"{runtime}/podman/podman.sock"):
        if os.access(path, os.R_OK | os.W_OK):
            return f"unix://{path}"
    return "unix:///var/run/docker.sock"


def _line(error: BaseException) -> str:
    return " ".join(str(getattr(error, "explanation", None) or error).split())


if __name__ == "__main__":
    sys.exit(main())
