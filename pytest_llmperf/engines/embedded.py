"""The embedded engine: the real llama.cpp HTTP server out of the xllamacpp wheel, on the CPU, in a child process."""

from __future__ import annotations

import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

from pytest_llmperf.engines import embedded_server, llamacpp, tiny_model
from pytest_llmperf.engines.engine import Engine
from pytest_llmperf.engines.folders import expanded
from pytest_llmperf.errors import ConfigError
from pytest_llmperf.plan import ServerSpec

__all__ = ["EMBEDDED"]

_DEFAULTS: Final = {
    "max_num_seqs": "2",
    "max_model_len": "1024",
    "enable_prefix_caching": "true",
    # llama.cpp's threads spin while they wait; with as many threads as cores the client starves and so do they.
    "threads": "1",
}


def _command(spec: ServerSpec, port: int, model: str) -> list[str]:
    def setting(name: str) -> str:
        value = getattr(spec, name)
        return _DEFAULTS[name] if value is None else str(value).lower()

    return [
        # -P: the script's folder holds modules named like other packages and must not come first on the path.
        *(sys.executable, "-P", str(Path(embedded_server.__file__).absolute())),
        *("--model", model, "--alias", _alias(Path(model)), "--port", str(port)),
        *("--max-num-seqs", setting("max_num_seqs"), "--max-model-len", setting("max_model_len")),
        *("--threads", setting("threads"), "--prefix-caching", setting("enable_prefix_caching")),
        *spec.extra_args,
    ]


def _alias(model: Path) -> str:
    return tiny_model.NAME if model == tiny_model.path() else model.stem


def _find_model(spec: ServerSpec) -> str:
    """``spec.model`` as an absolute path, or the generated tiny model where there is none (or its name is given)."""
    if spec.model in (None, tiny_model.NAME):
        return str(tiny_model.ensure())
    path = expanded(spec.model or "")
    if not path.is_file():
        problem = (
            f"{spec.model!r} is no file (looked for {path.absolute()}); give the path of a GGUF file, or leave it out"
        )
        raise ConfigError(f"servers.{spec.name}", "model", problem)
    return str(path.absolute())


def _version() -> str | None:
    """The version of the wheel beside us: the server itself reports ``b0-unknown``."""
    try:
        return version("xllamacpp")
    except PackageNotFoundError:
        return None


EMBEDDED: Final = Engine(
    name="embedded",
    title="the embedded engine",
    parameters={
        "max_num_seqs": "--max-num-seqs",
        "max_model_len": "--max-model-len",
        "enable_prefix_caching": "--prefix-caching",
        "threads": "--threads",
    },
    default_port=8080,
    cpu=True,
    command=_command,
    distribution="xllamacpp",
    find_model=_find_model,
    defaults=_DEFAULTS,
    launch_version=_version,
    retry_exit_code=embedded_server.PORT_TAKEN,
    owned_by=frozenset({"llamacpp"}),
    info_paths=("/props",),
    read_facts=llamacpp.read_facts,
    request_extras=llamacpp.request_extras,
    apis=("chat", "completions", "llamacpp"),
    metrics_url="/metrics",
    series=llamacpp.SERIES,
    log_patterns=llamacpp.LOG_PATTERNS,
    evidence="run for real",
    launch_evidence="run for real",
)
