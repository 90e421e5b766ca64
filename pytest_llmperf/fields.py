"""What the models of a plan are made of: the frozen base, quantities, files."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import file_digest
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo

from pytest_llmperf.units import parse_quantity

__all__ = [
    "Bytes",
    "DataFile",
    "Frozen",
    "GivenFile",
    "Level",
    "Pause",
    "Price",
    "Rate",
    "Seconds",
    "TimeLimits",
    "find_file",
    "on_other_machine",
    "spread_gpus",
]


def _seconds(written: object) -> object:
    return parse_quantity(written, "s").value if isinstance(written, str) else written


def _rate(written: object) -> object:
    return parse_quantity(written, "req/s").value if isinstance(written, str) else written


def _price(written: object) -> object:
    return parse_quantity(written, "USD/h").value if isinstance(written, str) else written


def _bytes(written: object) -> object:
    return parse_quantity(written, "B").value if isinstance(written, str) else written


Bytes = Annotated[int, BeforeValidator(_bytes), Field(gt=0)]
"""Written as ``"16 GiB"`` or a number of bytes."""
Seconds = Annotated[float, BeforeValidator(_seconds), Field(gt=0, le=1e7, allow_inf_nan=False)]
"""Written as ``"500 ms"``; a validated model holds seconds."""
Pause = Annotated[float, BeforeValidator(_seconds), Field(ge=0, le=1e7, allow_inf_nan=False)]
"""As ``Seconds``, and may be nothing."""
Rate = Annotated[float, BeforeValidator(_rate), Field(ge=1e-6, le=1e6, allow_inf_nan=False)]
"""Written as ``"5 req/s"`` or a number of requests per second."""
Price = Annotated[float, BeforeValidator(_price), Field(ge=0, le=1e6, allow_inf_nan=False)]
"""Written as ``"3.50 USD/h"``; a validated model holds USD per hour."""
Level = Annotated[float, BeforeValidator(_rate), Field(ge=0, allow_inf_nan=False)]
"""A rate, or a number of requests in flight; may be nothing for a while."""


def on_other_machine(url: str | None) -> bool:
    """Whether a server's URL leads away from this machine: to a host that is neither its loopback nor a socket file."""
    if url is None or url.startswith(("unix:", "http+unix:")):
        return False
    host = urlsplit(url.strip()).hostname or ""
    try:
        return not ip_address(host).is_loopback
    except ValueError:
        return host != "localhost" and not host.endswith(".localhost")


def spread_gpus(table: object) -> object:
    """A server's table with ``gpus = "any:2"`` as ``any_gpus = 2``, ``"none"`` as ``no_gpus``. Raises ValueError."""
    written = table.get("gpus") if isinstance(table, Mapping) else None
    if not isinstance(written, str) or not isinstance(table, Mapping):
        return table
    if written == "none":
        return {**table, "gpus": (), "no_gpus": True}
    count = written.removeprefix("any:")
    if count == written or not count.isdecimal() or not 1 <= int(count) <= 64:
        raise ValueError(f"gpus = {written!r} is no list of numbers, e.g. [0, 1], and neither 'any:2' nor 'none'")
    return {**table, "gpus": (), "any_gpus": int(count)}


class Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())


class DataFile(Frozen):
    """A file that a load is made from, as it was at collection."""

    path: str
    digest: str
    """SHA-256 of its content."""

    @property
    def name(self) -> str:
        return Path(self.path).name


def find_file(written: object, info: ValidationInfo) -> Path:
    """The file a text names, in the folders of the validation's context (else the working directory).

    Raises ValueError that says where it was looked for.
    """
    if not isinstance(written, str) or not written:
        raise ValueError(f"{written!r} is not the path of a file")
    folders = (info.context or {}).get("folders") or (Path.cwd(),)
    candidates = list(dict.fromkeys(Path(folder) / written for folder in folders))
    for candidate in candidates:
        if candidate.is_file():
            return candidate.resolve()
    raise ValueError(f"{written!r} does not exist; looked for {', '.join(map(str, candidates))}")


def _data_file(written: object, info: ValidationInfo) -> object:
    if isinstance(written, Mapping | DataFile):
        return written
    path = find_file(written, info)
    try:
        with path.open("rb") as file:
            return {"path": str(path), "digest": file_digest(file, "sha256").hexdigest()}
    except OSError as error:
        raise ValueError(f"{written!r} cannot be read: {error.strerror}") from None


GivenFile = Annotated[DataFile, BeforeValidator(_data_file)]
"""Written as a path relative to the file that names it."""


class TimeLimits(Frozen):
    """Time-outs of one request, each a failure class of its own, and the limit of a whole run. Seconds."""

    connect: Seconds = 10.0
    first_token: Seconds = 120.0
    no_progress: Seconds = 60.0
    request: Seconds = 600.0
    run: Seconds = 3600.0
