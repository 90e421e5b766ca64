"""The engine in a container of this machine, the same for every launch of one image digest."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from pytest_llmperf.engines import computes_on_cpu
from pytest_llmperf.engines.loglines import plain_lines
from pytest_llmperf.engines.models import hub_folder
from pytest_llmperf.engines.redact import secrets
from pytest_llmperf.plan import LAUNCH_VARIABLE, ServerSpec
from pytest_llmperf.server import dock
from pytest_llmperf.server.caches import made_folders
from pytest_llmperf.server.disk import end_of
from pytest_llmperf.server.leases import new_lease
from pytest_llmperf.server.ports import HOST
from pytest_llmperf.server.process import ServerProcess
from pytest_llmperf.server.started import Order

__all__ = ["removal", "start_container"]

_SHM_BYTES: Final = 16 << 30
"""Shared memory if nothing is said: NCCL of one node wants gigabytes, Docker gives 64 MiB. Only what is used counts."""
_CACHES: Final = "/var/cache/pytest-llmperf"
_HUB: Final = f"{_CACHES}/hub"
_EVERYWHERE: Final = "0.0.0.0"  # noqa: S104 - inside, the loopback is the container's own; the port is published on ours
_NVIDIA_DRIVER: Final = ("/proc/driver/nvidia/version", "/dev/nvidiactl", "/dev/dxg")
"""One of these is there where NVIDIA's driver is, under Windows too."""
_NVIDIA: Final = "/opt/nvidia/nvidia_entrypoint.sh"
"""Prepares the driver's libraries and then runs its arguments; stays in front."""


def removal(name: str, launch: str) -> tuple[str, ...]:
    """The command that ends the container ``name`` of ``launch``."""
    return (sys.executable, "-P", "-m", dock.__name__, "remove", name, launch)


def start_container(order: Order) -> ServerProcess:
    """Make and start a container of the image that was provisioned."""
    spec = order.spec
    entrypoint, words = _inside(order)
    lease = new_lease(("container", order.given.image, *entrypoint, *words), server=spec.name, launcher="container")
    name = f"llmperf-{re.sub(r'[^A-Za-z0-9_.-]+', '-', spec.name)}-{lease.launch[:12]}"
    lease = lease.model_copy(
        update={
            "container": name,
            "ended": removal(name, lease.launch),
            "env": {key: os.environ[key] for key in ("DOCKER_HOST", "PYTHONPATH") if key in os.environ},
            "report": str(order.log_path.parent.absolute()),
        }
    )
    mounts, hub = _model_mounts(order.given.model, spec)
    places: dict[str, str] = {}
    mounts += _file_mounts(words, order.given.model)
    for variable, folder in made_folders(spec).items():
        places[variable] = f"{_CACHES}/{variable.lower()}"
        mounts.append((folder, places[variable], "rw"))
    gpus, said = _gpus(spec)
    if order.given.model.startswith("/") and not Path(order.given.model).exists():
        said = "\n".join(filter(None, (said, f"{order.given.model} is not on this machine: it has to be in the image")))
    own = {
        "PYTHONUNBUFFERED": "1",
        **{name: _outwards(value) for name, value in order.engine.environment(spec, order.port).items()},
        **places,
        **spec.env,
        **hub,
        "HF_HUB_OFFLINE": "1",
        LAUNCH_VARIABLE: lease.launch,
    }
    job = {
        "name": name,
        "image": order.given.image_id,
        "entrypoint": entrypoint,
        "command": words,
        "env": own,
        "port": order.port,
        "mounts": mounts,
        "gpus": gpus,
        "said": said,
        "shm_size": spec.shm_size or _SHM_BYTES,
        "labels": {
            dock.LABEL: lease.launch,
            "pytest-llmperf.server": spec.name,
            "pytest-llmperf.lease": str(lease.path),
        },
    }
    env = {**os.environ, dock.JOB_VARIABLE: json.dumps(job)}
    argv = [sys.executable, "-P", "-m", dock.__name__, "run"]
    return ServerProcess.start(
        argv,
        env,
        order.log_path,
        lease=lease,
        hidden=secrets([*entrypoint, *words], {}) | order.hidden,
        find_pid=lambda _pid: dock.host_pid(name),
        find_trouble=lambda code: _trouble(code, name, order.log_path),
    )


def _trouble(code: int | None, name: str, log: Path) -> str | None:
    """What the container engine, and not the server, did."""
    if code is None:
        return dock.unstarted(name)
    if code != -dock.TROUBLE:
        return None
    lines = [line for line in plain_lines(end_of(log)) if line.startswith(dock.NOT_RUN)]
    return lines[-1] if lines else f"{dock.NOT_RUN}, and its log does not say why"


def _inside(order: Order) -> tuple[list[str], list[str]]:
    """The entry point and its arguments: the engine's own command line, as it is inside the image."""
    command = order.engine_command()
    program = "python3" if command[0] == sys.executable else Path(command[0]).name
    own = order.given.entrypoint
    path = next((word for word in own if Path(word).name == program), program)
    wrapper = [own[0]] if own[:1] == (_NVIDIA,) else []
    return [*wrapper, path], [_EVERYWHERE if word == HOST else word for word in command[1:]]


def _outwards(value: str) -> str:
    """A variable of the engine's that says where to listen (``127.0.0.1:11434``), as it is inside."""
    return f"{_EVERYWHERE}{value.removeprefix(HOST)}" if value == HOST or value.startswith(f"{HOST}:") else value


def _file_mounts(words: Sequence[str], model: str) -> list[tuple[str, str, str]]:
    """Files of this machine that the command line names, read-only at their own paths: options, chat templates.

    What is no file here is the image's own. The model is mounted apart, and a folder may be one to write to.
    """
    named = [Path(part) for word in words for part in (word, word.partition("=")[2]) if part.startswith("/")]
    files = dict.fromkeys(str(path) for path in named if str(path) != model and path.is_file())
    return [(path, path, "ro") for path in files]


def _gpus(spec: ServerSpec) -> tuple[list[str] | None, str]:
    """The GPUs to ask for (None: none, an empty list: all), and what to say of it in the log.

    Without ``gpus`` a container sees what a process would see: what ``CUDA_VISIBLE_DEVICES`` leaves, else all.
    """
    if computes_on_cpu(spec):
        return None, ""
    if spec.gpus:
        return [str(each) for each in spec.gpus], ""
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    visible = None if given is None else [each.strip() for each in given.split(",") if each.strip() not in ("", "-1")]
    if visible == [] or not any(Path(path).exists() for path in _NVIDIA_DRIVER):
        return None, "gpus is not set, and there is none to be seen: the container gets no GPU"
    which = "all GPUs" if visible is None else f"the GPUs of CUDA_VISIBLE_DEVICES ({', '.join(visible)})"
    return visible or [], f"gpus is not set: the container gets {which}, and no lock is taken; others may use them too"


def _model_mounts(model: str, spec: ServerSpec) -> tuple[list[tuple[str, str, str]], dict[str, str]]:
    """What to mount for ``model``, read-only, and the variables that say where: a path, or a model of the hub's cache.

    A snapshot in a hub's cache is links to files beside it: then the folder of both.
    """
    path = Path(model)
    if model.startswith("/") and path.exists():
        path = path.parents[1] if path.parent.name == "snapshots" else path
        return [(str(path), str(path), "ro")], {}
    path = hub_folder(model, spec)
    if model and path.is_dir():
        return [(str(path), f"{_HUB}/{path.name}", "ro")], {"HF_HUB_CACHE": _HUB}
    return [], {}
