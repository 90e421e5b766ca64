"""One server configuration: what to launch, or what runs already. Frozen and validated."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Self
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator

from pytest_llmperf.fields import Frozen, Pause, Seconds, on_other_machine, spread_gpus

__all__ = ["LAUNCH_ONLY", "ServerSpec", "TimeLimits"]


class TimeLimits(Frozen):
    """Time-outs of one request, each a failure class of its own, and the limit of a whole run. Seconds."""

    connect: Seconds = 10.0
    first_token: Seconds = 120.0
    no_progress: Seconds = 60.0
    request: Seconds = 600.0
    run: Seconds = 3600.0


LAUNCH_ONLY = (
    *("version", "image", "image_template", "executable", "extra_args", "env", "port"),
    *("any_gpus", "gpu_wait", "lock_clocks"),
)
"""Fields of a server that only a launch can apply."""

_PLACE: Final = "{version}"
_VERSION: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+!-]{0,99}\Z")


class ServerSpec(Frozen):
    """One server configuration. Equal specifications share launches."""

    name: str
    engine: str
    """A key of ``engines.ENGINES``."""
    url: str | None = None
    """A running server; then nothing is launched."""
    model: str | None = None
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
    executable: str | None = None
    """Path of the engine's program (for the embedded engine: of a Python that has it); may hold ``{version}``."""
    quantization: str | None = None
    kv_cache_dtype: str | None = None
    max_num_seqs: int | None = Field(default=None, ge=1)
    max_model_len: int | None = Field(default=None, ge=1)
    gpu_memory_utilization: float | None = Field(default=None, gt=0, le=1)
    """Share of a GPU's memory, as the engine counts it: of all of it, or of what is free."""
    block_size: int | None = Field(default=None, ge=1)
    """Tokens in a block of the KV cache."""
    swap_space: float | None = Field(default=None, ge=0)
    """GiB of host memory that preempted requests are swapped to."""
    kv_offloading_size: float | None = Field(default=None, ge=0)
    """GiB of host memory that the KV cache is extended by."""
    enable_prefix_caching: bool | None = None
    enable_chunked_prefill: bool | None = None
    max_num_batched_tokens: int | None = Field(default=None, ge=1)
    """Tokens that one step computes."""
    tensor_parallel_size: int | None = Field(default=None, ge=1)
    """GPUs that share each layer."""
    threads: int | None = Field(default=None, ge=1)
    """CPU threads of the engine, for engines that compute on the CPU."""
    extra_args: tuple[str, ...] = ()
    env: dict[str, str] = Field(default_factory=dict)
    gpus: tuple[int, ...] = ()
    """NVML indices. ``"any:2"`` in the configuration is ``any_gpus``."""
    any_gpus: int = Field(default=0, ge=0)
    """So many that are free, chosen when its campaign begins."""
    gpu_wait: Pause = 1800.0
    """Seconds to wait for GPUs that another job holds."""
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

    @field_validator("url")
    @classmethod
    def _reachable(cls, url: str | None) -> str | None:
        if url is None or url.startswith(("unix:", "http+unix:")):
            return url
        url = url.strip()
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError as error:
            raise ValueError(f"{url!r} is not a URL: {error}") from None
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{url!r} is not the URL of a server; write e.g. 'http://127.0.0.1:8000'")
        if parts.query or parts.fragment:
            raise ValueError("the URL has a query or fragment; keys go into api_key_env")
        if parts.username or parts.password:
            raise ValueError("the URL holds credentials; keys go into api_key_env")
        del port  # looked at for its range only
        try:
            parts.hostname.encode("idna")
        except UnicodeError:
            raise ValueError(f"{url!r} has an impossible host name") from None
        return url

    @model_validator(mode="after")
    def _applicable(self) -> Self:
        for name in LAUNCH_ONLY if self.url is not None else ():
            if getattr(self, name) != type(self).model_fields[name].get_default(call_default_factory=True):
                raise ValueError(f"{name} cannot be applied to a server that is running already (url is set)")
        if self.lock_clocks is not None and not self.gpu_count:
            raise ValueError("lock_clocks needs gpus: whose clocks?")
        if self.gpus and self.any_gpus:
            raise ValueError("gpus and any_gpus both say which GPUs it has; keep one of them")
        if self.gpu_count and "CUDA_VISIBLE_DEVICES" in self.env:
            raise ValueError("gpus and env.CUDA_VISIBLE_DEVICES both say which GPUs it sees; keep gpus")
        if self.gpus and self.on_other_machine:
            problem = f"gpus = {list(self.gpus)} are this machine's, and url = {self.url!r} leads to another"
            raise ValueError(f"{problem}: leave gpus out")
        known = sorted(name for name in self.identity if name.partition(".")[0] in ("args", "env"))
        if known and self.url is None:
            raise ValueError(f"identity.{known[0]} is known of a server that is started here; leave it out")
        given = [name for name in ("image", "image_template", "executable") if getattr(self, name) is not None]
        if len(given) > 1:
            raise ValueError(f"{given[0]} and {given[1]} both say what to run; keep one of them")
        for name in given:
            _require_placed(name, getattr(self, name), self.version)
        return self

    @property
    def gpu_count(self) -> int:
        return len(self.gpus) or self.any_gpus

    @property
    def targeted(self) -> bool:
        return self.url is not None

    @property
    def on_other_machine(self) -> bool:
        """As far as its URL tells: nothing of this machine is the server's then."""
        return on_other_machine(self.url)

    @property
    def program(self) -> str | None:
        """``executable`` with the version in its place."""
        return None if self.executable is None else self.executable.replace(_PLACE, self.version or "")


def _require_placed(name: str, written: str, version: str | None) -> None:
    """Raise ValueError where ``{version}`` and ``version`` do not go together."""
    if re.search(r"[{}]", written.replace(_PLACE, "")):
        raise ValueError(f"{name} = {written!r} may hold {_PLACE} and no other braces")
    placed = _PLACE in written
    if name == "image" and placed:
        raise ValueError(f"image = {written!r} is one image; with {_PLACE} it is an image_template")
    if placed and version is None:
        raise ValueError(f"{name} = {written!r} needs version")
    if not placed and (version is not None or name == "image_template"):
        raise ValueError(f"{name} = {written!r} is the same for every version; write {_PLACE} into it" + (
            "" if name == "image_template" else ", or leave out version"
        ))  # fmt: skip
