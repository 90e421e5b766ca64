"""One server configuration: what to launch, or what runs already. Frozen and validated."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator

from pytest_llmperf.commandline import Variables, Word, Words
from pytest_llmperf.fields import Bytes, Frozen, GiB, Gpus, Pause, Seconds, TimeLimits, on_other_machine, spread_gpus
from pytest_llmperf.placeholders import (
    COMMAND,
    VERSION,
    beside,
    filled,
    placeholders,
    require_filled,
    require_version_place,
)

__all__ = ["LAUNCH_ONLY", "LAUNCH_VARIABLE", "Launcher", "ServerSpec"]


_BY_COMMAND: Final = ("start", "detached", "ready_url", "logs", "stop")
_BY_CONTAINER: Final = ("image", "image_template", "shm_size")
_BY_US: Final = ("any_gpus", "no_gpus", "gpu_wait", "lock_clocks")
LAUNCH_ONLY = ("version", "executable", "extra_args", "env", "port", "launcher", *_BY_CONTAINER, *_BY_COMMAND, *_BY_US)
"""Fields of a server that only a launch can apply."""

Launcher = Literal["process", "command", "container"]
LAUNCH_VARIABLE: Final = "PYTEST_LLMPERF_LAUNCH"
"""Set in a launched server's environment to a name of its launch; every process that comes of it inherits it."""

_OWN: Final = ("engine", "url", "api_key_env", "ca_file", "tokenizer", "gpus", "startup_timeout", "limits", "identity")
_NO_PLACES: Final = frozenset({*LAUNCH_ONLY, *_OWN, "metrics_urls", "folder"} - {"version", "port"})
"""Fields that no placeholder stands for."""
_VERSION: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+!-]{0,99}\Z")


class ServerSpec(Frozen):
    """One server configuration. Equal specifications share launches."""

    name: str
    folder: Path | None = Field(default=None, exclude=True)
    """Of the file that it is configured in: what its relative paths start from. None: the working directory."""
    engine: str
    """A key of ``engines.ENGINES``."""
    url: str | None = None
    """A running server; then nothing is launched."""
    model: Word | None = None
    """Path or name; None where the engine has a default or the running server has exactly one."""
    api_key_env: str | None = None
    """Name of the environment variable with the API key; never the key."""
    ca_file: Path | None = None
    """Certificates to trust besides the system's, for https URLs."""
    tokenizer: Path | None = None
    """``tokenizer.json`` of the model: counts whole texts, to check the server's counts or to stand in for them."""
    version: str | None = None
    """Of the engine. It is installed where need be; None: what is installed already, or what ``executable`` is."""
    image: str | None = None
    image_template: str | None = None
    """An image with ``{version}`` in it."""
    launcher: Launcher | None = None
    """None: what the other fields say, see ``launched_by``."""
    start: Words = ()
    """The command that starts the server, with placeholders: ``{port}``, ``{model}``, ``{version}``, ``{name}``, any
    canonical parameter, and ``{command}``, a word of its own, for the whole command line of the engine."""
    detached: bool = False
    """``start`` returns and leaves the server running elsewhere, instead of being it."""
    ready_url: str | None = None
    """Base URL of the server that ``start`` brings up; may hold ``{port}``."""
    metrics_urls: tuple[str, ...] = ()
    """Where its metrics are, one URL for every process that has some; may hold ``{port}``. Empty: as the engine has."""
    logs: Words = ()
    """A command that prints, or follows, the log of the server."""
    stop: Words = ()
    """The command that ends the server; run at every end, also of a start that failed."""
    shm_size: Bytes | None = None
    """Bytes of shared memory in the container, for NCCL."""
    executable: Word | None = None
    """Path of the engine's program (for the embedded engine: of a Python that has it); may hold ``{version}``."""
    quantization: str | None = None
    kv_cache_dtype: str | None = None
    max_num_seqs: int | None = Field(default=None, ge=1)
    max_model_len: int | None = Field(default=None, ge=1)
    gpu_memory_utilization: float | None = Field(default=None, gt=0, le=1)
    """Share of a GPU's memory, as the engine counts it: of all of it, or of what is free."""
    block_size: int | None = Field(default=None, ge=1)
    """Tokens in a block of the KV cache."""
    swap_space: GiB | None = None
    """GiB of host memory that preempted requests are swapped to."""
    kv_offloading_size: GiB | None = None
    """GiB of host memory that the KV cache is extended by."""
    enable_prefix_caching: bool | None = None
    enable_chunked_prefill: bool | None = None
    max_num_batched_tokens: int | None = Field(default=None, ge=1)
    """Tokens that one step computes."""
    tensor_parallel_size: int | None = Field(default=None, ge=1)
    """GPUs that share each layer."""
    threads: int | None = Field(default=None, ge=1)
    """CPU threads of the engine, for engines that compute on the CPU."""
    extra_args: Words = ()
    env: Variables = Field(default_factory=dict)
    gpus: Gpus = ()
    """NVML indices. ``"any:2"`` in the configuration is ``any_gpus``."""
    any_gpus: int = Field(default=0, ge=0)
    """So many that are free, chosen when its campaign begins."""
    no_gpus: bool = False
    """It computes on the CPU and is shown no GPU: ``"none"`` in the configuration."""
    gpu_wait: Pause = 1800.0
    """For GPUs that another job holds."""
    gpu_shared: bool = False
    """Others may compute on its GPUs beside it."""
    lock_clocks: int | None = Field(default=None, ge=100, le=10_000)
    """MHz that the SM clocks of its GPUs are held at while its campaign runs."""
    port: int | None = Field(default=None, ge=1, le=65535)
    """None: a free port."""
    startup_timeout: Seconds = 900.0
    limits: TimeLimits = TimeLimits()
    identity: dict[str, str] = Field(default_factory=dict)
    """What the server cannot tell about itself, as the user knows it: ``quantization``, ``gpu``, ``driver`` …"""

    @field_validator("identity", mode="before")
    @classmethod
    def _declared(cls, table: object) -> object:
        """Values as text, as the server would state them."""
        if not isinstance(table, Mapping):
            return table
        for name, value in table.items():
            if not isinstance(value, str | int | float) or value == "":
                raise ValueError(f"{name} = {value!r} is neither text nor a number")
        return {
            name: str(value).lower() if isinstance(value, bool) else str(value).strip() for name, value in table.items()
        }

    @model_validator(mode="before")
    @classmethod
    def _any(cls, table: object) -> object:
        return spread_gpus(table)

    @field_validator("version")
    @classmethod
    def _is_version(cls, version: str | None) -> str | None:
        if version is not None and not _VERSION.match(version):
            raise ValueError(f"{version!r} is not a version; write e.g. '0.33.0'")
        return version

    @field_validator("url", "ready_url")
    @classmethod
    def _reachable(cls, url: str | None) -> str | None:
        if url is not None and "{port}" in url:
            cls._reachable(url.replace("{port}", "1"))
            return url
        if url is None or url.startswith(("unix:", "http+unix:")):
            return url
        url, shown = url.strip(), "this" if "@" in url else repr(url.strip())  # before @ may stand a password
        try:
            parts = urlsplit(url)
            _ = parts.port  # its range is looked at
        except ValueError as error:
            raise ValueError(f"{shown} is not a URL: {str(error).partition(' as ')[0]}") from None
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{shown} is not the URL of a server; write e.g. 'http://127.0.0.1:8000'")
        if parts.query or parts.fragment:
            raise ValueError("the URL has a query or fragment; keys go into api_key_env")
        if parts.username or parts.password:
            raise ValueError("the URL holds credentials; keys go into api_key_env")
        try:
            parts.hostname.encode("idna")
        except UnicodeError:
            raise ValueError(f"{shown} has an impossible host name") from None
        return url

    @model_validator(mode="after")
    def _applicable(self) -> Self:
        for name in LAUNCH_ONLY if self.url is not None else ():
            if getattr(self, name) != type(self).model_fields[name].get_default(call_default_factory=True):
                written = {"any_gpus": "gpus = 'any:…'", "no_gpus": "gpus = 'none'"}.get(name, name)
                raise ValueError(f"{written} cannot be applied to a server that is running already (url is set)")
        if self.lock_clocks is not None and not self.gpu_count:
            raise ValueError("lock_clocks needs gpus: whose clocks?")
        if self.gpus and self.any_gpus:
            raise ValueError("gpus and any_gpus both say which GPUs it has; keep one of them")
        if self.gpu_count and self.no_gpus:
            raise ValueError("no_gpus and GPUs are both asked for; keep one of them")
        if (self.gpu_count or self.no_gpus) and "CUDA_VISIBLE_DEVICES" in self.env:
            raise ValueError("gpus and env.CUDA_VISIBLE_DEVICES both say which GPUs it sees; keep gpus")
        if self.gpus and self.on_other_machine:
            named = f"url = {self.url!r}" if self.url else f"ready_url = {self.ready_url!r}"
            problem = f"gpus = {list(self.gpus)} are this machine's, and {named} leads to another"
            raise ValueError(f"{problem}: leave gpus out")
        known = sorted(name for name in self.identity if name.partition(".")[0] in ("args", "env"))
        if known and self.url is None:
            raise ValueError(f"identity.{known[0]} is known of a server that is started here; leave it out")
        given = [name for name in ("image", "image_template", "executable") if getattr(self, name) is not None]
        if len(given) > 1:
            raise ValueError(f"{given[0]} and {given[1]} both say what to run; keep one of them")
        for name in given:
            require_version_place(name, getattr(self, name), self.version)
        return self

    @model_validator(mode="after")
    def _launchable(self) -> Self:
        by = self.launched_by
        for names, owner in ((_BY_COMMAND, "command"), (_BY_CONTAINER, "container"), (("executable",), "process")):
            given = [name for name in names if getattr(self, name) != type(self).model_fields[name].default]
            if given and by != owner and not (owner == "process" and self.uses_engine_command):
                raise ValueError(f"{given[0]} belongs to launcher = {owner!r}, and launcher is {by!r}")
        if by == "container" and self.image is None and self.image_template is None:
            raise ValueError("launcher = 'container' needs image, or image_template and version")
        if by == "command":
            self._require_whole()
        return self

    def _require_whole(self) -> None:
        """Raise ValueError where what the command launcher needs is not all there."""
        for name in ("start", "ready_url", *(("stop",) if self.detached else ())):
            if not getattr(self, name):
                why = ", for start leaves the server running (detached)" if name == "stop" else ""
                raise ValueError(f"launcher = 'command' needs {name}{why}")
        values = self._values(self.port or 0)
        for name in ("start", "logs", "stop", "metrics_urls"):
            for word in getattr(self, name):
                require_filled(name, word, values, ("command",) if name == "start" else ())
        require_filled("ready_url", self.ready_url or "", values)
        if self.uses_engine_command and COMMAND not in self.start:
            raise ValueError(f"{COMMAND} in start is a word of its own: it stands for several")
        if self.port is not None and not self.uses_engine_command and not self.passes("port"):
            raise ValueError("port is used nowhere: write {port} into start and ready_url")

    def _values(self, port: int) -> dict[str, object]:
        """What placeholders stand for."""
        return {name: port if name == "port" else getattr(self, name)
                for name in type(self).model_fields if name not in _NO_PLACES}  # fmt: skip

    def passes(self, name: str) -> bool:
        """Whether ``start`` or ``ready_url`` holds the placeholder ``name``."""
        return any(name in placeholders(word) for word in (*self.start, self.ready_url or ""))

    @property
    def launched_by(self) -> Launcher:
        """What starts it: ``launcher``, or the one that its other fields belong to."""
        if self.launcher is not None:
            return self.launcher
        return "command" if self.start else "container" if self.image or self.image_template else "process"

    @property
    def uses_engine_command(self) -> bool:
        """Whether the command line of the engine is used, by us or by the command that starts the server."""
        return not self.start or self.passes("command")

    def filled(self, words: Sequence[str], port: int, engine_command: Sequence[str] = ()) -> tuple[str, ...]:
        """``words`` of the command launcher with their placeholders filled, and paths seen from ``folder``."""
        return filled(beside(words, self.folder), self._values(port), engine_command)

    def ready_at(self, port: int) -> str:
        """``ready_url`` with its port; empty where there is none."""
        return filled((self.ready_url or "",), self._values(port))[0]

    def metrics_at(self, port: int) -> tuple[str, ...]:
        """``metrics_urls`` with their port."""
        return filled(self.metrics_urls, self._values(port))

    @property
    def elsewhere(self) -> bool:
        """Whether the server's machine is not known to be this one."""
        return self.on_other_machine or (self.launched_by == "command" and not self.gpus)

    @property
    def gpu_count(self) -> int:
        return len(self.gpus) or self.any_gpus

    @property
    def targeted(self) -> bool:
        return self.url is not None

    @property
    def on_other_machine(self) -> bool:
        """As far as its URL tells: nothing of this machine is the server's then."""
        return on_other_machine(self.ready_url.replace("{port}", "1") if self.ready_url else self.url)

    @property
    def image_name(self) -> str | None:
        """``image``, or ``image_template`` with the version in its place."""
        return self.image or (self.image_template and self.image_template.replace(VERSION, self.version or ""))

    @property
    def program(self) -> str | None:
        """``executable`` with the version in its place, seen from ``folder``."""
        if self.executable is None:
            return None
        path = Path(self.executable.replace(VERSION, self.version or "")).expanduser()
        return str(path if self.folder is None else self.folder / path)
