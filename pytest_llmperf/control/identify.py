"""The identity of a server: what was set, where it runs, what followed, each fact with its source."""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import httpx

from pytest_llmperf.control.client import open_client
from pytest_llmperf.control.probe import documents, list_models
from pytest_llmperf.engines import Engine
from pytest_llmperf.engines.engine import CANONICAL, LiveFacts
from pytest_llmperf.engines.redact import HIDDEN, redact, secret_name
from pytest_llmperf.identity import Fact, Identity
from pytest_llmperf.plan import ServerSpec
from pytest_llmperf.records import Endpoint

__all__ = ["file_digest", "host_class", "read_identity"]

UNKNOWN: Final = Fact(value="unknown", source="unknown")

_LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")
_HASHED_WHOLE: Final = 1 << 30
_BLOCK: Final = 1 << 20
_BLOCKS: Final = 64


def read_identity(
    endpoint: Endpoint,
    spec: ServerSpec,
    engine: Engine,
    *,
    client: httpx.Client | None = None,
    models: Mapping[str, Any] | None = None,
    model_file: Path | None = None,
    fingerprint: str | None = None,
) -> Identity:
    """Ask ``endpoint`` what it is.

    ``client`` and ``models`` (the answer of ``/v1/models``) are used where the caller has them; ``model_file`` is
    the file a launched server was given; ``fingerprint`` the ``system_fingerprint`` of an answer. Raises TargetError
    where the server doesn't answer.
    """
    if client is None:
        with open_client(endpoint, ca_file=spec.ca_file) as own:
            return read_identity(
                endpoint, spec, engine, client=own, models=models, model_file=model_file, fingerprint=fingerprint
            )
    found = documents(client, engine, list_models(client) if models is None else models)
    live = engine.read_facts(found, endpoint.model)
    consequence = dict(live.consequence)
    if fingerprint:
        consequence["system_fingerprint"] = fingerprint
    return Identity(
        input=_inputs(endpoint, spec, engine, live, model_file),
        environment=_environment(endpoint, spec, engine),
        consequence={name: Fact(value=value, source="live") for name, value in consequence.items()},
    )


def _inputs(
    endpoint: Endpoint, spec: ServerSpec, engine: Engine, live: LiveFacts, model_file: Path | None
) -> dict[str, Fact]:
    launched = not spec.targeted
    version = live.version
    facts = {
        "engine": Fact(value=engine.name, source="configured" if launched else "live"),
        "version": _fact(version),
        "model": _fact(endpoint.model),
        "model_digest": UNKNOWN,
        "quantization": _fact(live.quantization),
    }
    if not launched and not engine.owned_by:
        facts["engine"] = Fact(value=engine.name, source="declared")
    if version is None and launched and engine.launch_version is not None:
        known = engine.launch_version()
        facts["version"] = Fact(value=known, source="configured") if known else UNKNOWN
    if model_file is not None:
        facts["model_digest"] = Fact(value=file_digest(model_file), source="configured")
    for name in CANONICAL:
        if name in engine.parameters or not launched:
            facts[name] = _parameter(name, spec, engine, live)
    if launched:
        facts["args"] = Fact(value=" ".join(redact(spec.extra_args)) or "none", source="configured")
        for name, value in sorted(spec.env.items()):
            shown = HIDDEN if secret_name(name) else redact([value])[0]
            facts[f"env.{name}"] = Fact(value=shown, source="configured")
    else:
        facts["args"] = UNKNOWN
    return facts


def _parameter(name: str, spec: ServerSpec, engine: Engine, live: LiveFacts) -> Fact:
    """One canonical parameter.

    What was set is an input as it was set; what the server made of it is a consequence. For a server that someone
    else started, what it says is the best there is, then what the user says about it.
    """
    set_value = getattr(spec, name)
    written = None if set_value is None else str(set_value).lower()
    if spec.targeted:
        if name in live.parameters:
            return Fact(value=live.parameters[name], source="live")
        return UNKNOWN if written is None else Fact(value=written, source="declared")
    value = written or engine.defaults.get(name)
    return Fact(value=value or "default", source="configured")


def _environment(endpoint: Endpoint, spec: ServerSpec, engine: Engine) -> dict[str, Fact]:
    here = not spec.targeted or endpoint.host in _LOOPBACK
    on_cpu = engine.cpu and not spec.targeted
    return {
        "gpu": Fact(value="cpu", source="configured") if on_cpu else UNKNOWN,
        "gpu_count": Fact(value="1", source="configured") if on_cpu else UNKNOWN,
        "host": Fact(value=host_class(), source="live") if here else UNKNOWN,
    }


def _fact(value: str | None) -> Fact:
    return Fact(value=value, source="live") if value else UNKNOWN


@lru_cache(maxsize=1)
def host_class() -> str:
    """This machine as far as it matters for speed: CPU model, usable cores, system and architecture."""
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count()
    return f"{_cpu_model()}, {cores} cores, {platform.system()} {platform.machine()}"


def _cpu_model() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        if sys.platform == "darwin":
            command = ["/usr/sbin/sysctl", "-n", "machdep.cpu.brand_string"]
            shown = subprocess.run(command, capture_output=True, text=True, check=False)
            if shown.stdout.strip():
                return shown.stdout.strip()
    return platform.processor() or "unknown CPU"


def file_digest(path: Path) -> str:
    """``sha256:…`` of the file; above 1 GiB of its size, its first MiB and 64 blocks spread over it (``sampled:…``).

    Hashing tens of gigabytes before every launch would cost more than it tells.
    """
    status = path.stat()
    return _digest(path, status.st_size, status.st_mtime_ns)


@lru_cache(maxsize=32)
def _digest(path: Path, size: int, _changed_ns: int) -> str:
    with path.open("rb") as file:
        if size <= _HASHED_WHOLE:
            return f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()[:32]}"
        digest = hashlib.sha256(str(size).encode())
        for block in range(_BLOCKS + 1):
            file.seek(block * (size - _BLOCK) // _BLOCKS)
            digest.update(file.read(_BLOCK))
        return f"sampled:{digest.hexdigest()[:32]}"
