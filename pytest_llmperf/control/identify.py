"""The identity of a server: what was set, where it runs, what followed, each fact with its source."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, Literal

import httpx

from pytest_llmperf.control.checkpoint import CONFIG, checkpoint_facts
from pytest_llmperf.control.client import open_client
from pytest_llmperf.control.declared import declare
from pytest_llmperf.control.host import host_class, system
from pytest_llmperf.control.probe import documents, list_models
from pytest_llmperf.engines import Engine
from pytest_llmperf.engines.engine import SETTABLE, LiveFacts
from pytest_llmperf.engines.flags import flags_of
from pytest_llmperf.engines.parameters import flag_problem
from pytest_llmperf.engines.redact import public_env, redact
from pytest_llmperf.errors import ConfigError
from pytest_llmperf.identity import UNKNOWN, Fact, Identity
from pytest_llmperf.plan import ServerSpec
from pytest_llmperf.records import Endpoint

__all__ = ["file_digest", "read_identity"]

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
    model_path: Path | None = None,
    fingerprint: str | None = None,
    version: str | None = None,
    image: str | None = None,
    environment: Mapping[str, Fact] | None = None,
) -> Identity:
    """Ask ``endpoint`` what it is.

    ``client`` and ``models`` (the answer of ``/v1/models``) are used where the caller has them; ``model_path`` is
    the file or folder a launched server was given; ``fingerprint`` the ``system_fingerprint`` of an answer. ``version``
    is that of the installation which was started, for a server that doesn't tell, ``image`` its image by digest;
    ``environment`` what the caller knows of this machine (its GPUs, its pool), which is not a targeted server's.
    Raises TargetError where the server doesn't answer, ConfigError where it contradicts the specification.
    """
    if client is None:
        with open_client(endpoint, ca_file=spec.ca_file) as own:
            return read_identity(
                endpoint,
                spec,
                engine,
                client=own,
                models=models,
                model_path=model_path,
                fingerprint=fingerprint,
                version=version,
                image=image,
                environment=environment,
            )
    found = documents(client, engine, list_models(client) if models is None else models)
    live = engine.read_facts(found, endpoint.model)
    consequence = dict(live.consequence)
    if fingerprint:
        consequence["system_fingerprint"] = fingerprint
    own_launch = not spec.targeted and spec.uses_engine_command
    consequence["engine_evidence"] = engine.launch_evidence if own_launch else engine.evidence
    root = model_path or (None if spec.on_other_machine else Path(live.consequence.get("model_root") or CONFIG))
    checkpoint = checkpoint_facts(root) if root is not None and root.is_absolute() else {}
    if "experts" in checkpoint:
        consequence["experts"] = checkpoint["experts"]
    if live.quantization is None and "quantization" in checkpoint:
        live = replace(live, quantization=checkpoint["quantization"])
        consequence["quantization_from"] = f"{CONFIG} of the model"
    identity = Identity(
        input=_inputs(endpoint, spec, engine, live, model_path, version, image),
        environment=_environment(spec, engine, live, environment or {}),
        consequence={name: Fact(value=value, source="live") for name, value in consequence.items()},
    )
    return declare(identity, spec.identity, f"servers.{spec.name}")


def _inputs(
    endpoint: Endpoint,
    spec: ServerSpec,
    engine: Engine,
    live: LiveFacts,
    model_path: Path | None,
    version: str | None,
    image: str | None,
) -> dict[str, Fact]:
    launched = not spec.targeted
    facts = {
        "engine": Fact(value=engine.name, source="configured" if launched else "live"),
        "version": _version(spec, engine, live, version),
        "model": _fact(endpoint.model),
        "model_digest": UNKNOWN,
    }
    if not launched and not engine.owned_by and spec.engine == engine.name:
        facts["engine"] = Fact(value=engine.name, source="declared")
    if model_path is not None and model_path.is_file():
        facts["model_digest"] = Fact(value=file_digest(model_path), source="configured")
    # The template as it is written: its place differs from host to host less than that of one version does.
    start = " ".join(redact(spec.start))
    for name, value in (("image", image or spec.image_name), ("executable", spec.executable), ("start", start)):
        if value:
            facts[name] = Fact(value=value, source="configured")
    told = {**live.parameters, **({"quantization": live.quantization} if live.quantization else {})}
    for name in SETTABLE:
        if (
            _has(engine, name, live.version if spec.targeted else None)
            or name in told
            or getattr(spec, name) is not None
        ):
            facts[name] = _parameter(name, spec, engine, told)
    if not launched:
        return {**facts, "args": UNKNOWN, "env": UNKNOWN}
    for flag, value in flags_of(redact(spec.extra_args)).items():
        facts[f"args.{flag}"] = Fact(value=value, source="configured")
    for name, value in sorted(public_env(spec).items()):
        facts[f"env.{name}"] = Fact(value=value, source="configured")
    return facts


def _has(engine: Engine, name: str, version: str | None) -> bool:
    """Whether the engine has the parameter, as far as is known; in ``version`` where that is given.

    What is launched has the same facts in every version: one that only one of them had would tell two versions apart
    that were set up alike.
    """
    return not engine.parameters or flag_problem(name, engine.parameters, version or "", engine.title) is None


def _version(spec: ServerSpec, engine: Engine, live: LiveFacts, installed: str | None) -> Fact:
    """What the server says, else what was installed. Raises ConfigError where another one was asked for."""
    found = live.version or installed
    if spec.version is not None and found is not None and not engine.same_version(spec.version, found):
        problem = f"{spec.version!r} was asked for, but what was started is {found!r}"
        raise ConfigError(f"servers.{spec.name}", "version", problem)
    if live.version is None and installed:
        return Fact(value=installed, source="configured")
    return _fact(live.version)


def _parameter(name: str, spec: ServerSpec, engine: Engine, told: Mapping[str, str]) -> Fact:
    """One parameter.

    What was set is an input as it was set; what the server made of it is a consequence. For a server that someone
    else started, what it says is the best there is, then what the user says about it. The quantization that nobody
    set is the model's, which the server tells.
    """
    set_value = getattr(spec, name)
    written = None if set_value is None else str(set_value).lower()
    if spec.targeted:
        if name in told:
            return Fact(value=told[name], source="live")
        return UNKNOWN if written is None else Fact(value=written, source="declared")
    if written is None and name == "quantization":
        return _fact(told.get(name))
    value = written or engine.defaults.get(name)
    return Fact(value=value or "default", source="configured")


def _environment(spec: ServerSpec, engine: Engine, live: LiveFacts, known: Mapping[str, Fact]) -> dict[str, Fact]:
    """Where it runs. That of a server that someone else started is theirs to tell, even where its address is ours."""
    told = {name: Fact(value=value, source="live") for name, value in live.environment.items()}
    if spec.targeted or spec.elsewhere:
        pool = {name: fact for name, fact in known.items() if name == "pool"}
        return {**dict.fromkeys(("gpu", "gpu_count", "host"), UNKNOWN), **told, **pool}
    on_cpu = spec.no_gpus or engine.cpu
    gpu = ("cpu", "1") if on_cpu else ("unknown", "unknown")
    source: Literal["configured", "unknown"] = "configured" if on_cpu else "unknown"
    return {
        "gpu": Fact(value=gpu[0], source=source),
        "gpu_count": Fact(value=gpu[1], source=source),
        "host": Fact(value=host_class(), source="live"),
        "system": Fact(value=system(), source="live"),
        **told,
        **known,
    }


def _fact(value: str | None) -> Fact:
    return Fact(value=value, source="live") if value else UNKNOWN


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
