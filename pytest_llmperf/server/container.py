"""The engine in a container of this machine, the same for every launch of one image digest."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import Final

from pytest_llmperf.engines import computes_on_cpu
from pytest_llmperf.engines.models import hub_folder
from pytest_llmperf.engines.redact import secrets
from pytest_llmperf.plan import ServerSpec
from pytest_llmperf.server import dock
from pytest_llmperf.server.caches import cache_folders
from pytest_llmperf.server.leases import new_lease
from pytest_llmperf.server.ports import HOST
from pytest_llmperf.server.process import ServerProcess
from pytest_llmperf.server.started import Order
from pytest_llmperf.server.sweep import LAUNCH_VARIABLE

__all__ = ["removal", "start_container"]

_SHM_BYTES: Final = 16 << 30
"""Shared memory if nothing is said: NCCL of one node wants gigabytes, Docker gives 64 MiB. Only what is used counts."""
_CACHES: Final = "/var/cache/pytest-llmperf"
_HUB: Final = f"{_CACHES}/hub"
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
    mounts, places = _model_mounts(order.given.model, spec)
    for variable, folder in cache_folders(spec).items():
        Path(folder).mkdir(parents=True, exist_ok=True)
        places[variable] = f"{_CACHES}/{variable.lower()}"
        mounts.append((folder, places[variable], "rw"))
    engine = order.engine.environment(spec, order.port)
    own = {
        "PYTHONUNBUFFERED": "1",
        **engine,
        **places,
        **spec.env,
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
        "gpus": None if computes_on_cpu(spec) else [str(each) for each in spec.gpus],
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
        hidden=secrets([*entrypoint, *words], spec.env),
        find_pid=lambda _pid: dock.host_pid(name),
    )


def _inside(order: Order) -> tuple[list[str], list[str]]:
    """The entry point and its arguments: the engine's own command line, as it is inside the image."""
    command = order.engine_command()
    program = "python3" if command[0] == sys.executable else Path(command[0]).name
    own = order.given.entrypoint
    path = next((word for word in own if Path(word).name == program), program)
    wrapper = [own[0]] if own[:1] == (_NVIDIA,) else []
    # Inside, the loopback is the container's own; outside, the port is published on ours only.
    return [*wrapper, path], ["0.0.0.0" if word == HOST else word for word in command[1:]]  # noqa: S104


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
