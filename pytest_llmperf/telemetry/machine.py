"""What is known of this machine as the place that a server runs on, besides its CPU and memory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any, Final

from pytest_llmperf.engines import computes_on_cpu
from pytest_llmperf.errors import InfraError
from pytest_llmperf.identity import Fact
from pytest_llmperf.plan import ServerSpec
from pytest_llmperf.telemetry.cards import memory_of, mode
from pytest_llmperf.telemetry.nvml import GpuLostError, Library, bounded, opened

__all__ = ["gpu_facts", "machine_facts"]

_GIB: Final = 2**30


def machine_facts(spec: ServerSpec, pool: str | None) -> dict[str, Fact]:
    """Environment facts for ``launch``: the GPUs that the server is given, and the pool of this runner.

    Empty for a server that runs already, wherever that may be. Never raises for a driver's sake.
    """
    if spec.targeted:
        return {}
    found = {} if computes_on_cpu(spec) else gpu_facts(spec.gpus)
    return {**found, "pool": Fact(value=pool, source="configured")} if pool else found


def gpu_facts(gpus: Sequence[int] = ()) -> dict[str, Fact]:
    """Environment facts of the GPUs with the given NVML indices (none given: of all there are).

    ``gpu`` kind, ``gpu_count``, ``gpu_memory`` of each, ``driver``, and ``mig`` where a GPU is split. Never raises for
    a driver's sake: what it does not tell is absent, so that the identity says unknown.
    """
    found: dict[str, str | None] = {}

    def look() -> None:
        with opened() as library:
            found["driver"] = library.text("nvmlSystemGetDriverVersion")
            indices = tuple(gpus) or range(library.demand("nvmlDeviceGetCount"))
            handles = [library.demand("nvmlDeviceGetHandleByIndex", index) for index in indices]
            if handles:
                found.update(_kinds(library, handles))

    with suppress(InfraError, LookupError):  # what was told before counts
        bounded(look)
    return {name: Fact(value=value, source="live") for name, value in list(found.items()) if value}


def _kinds(library: Library, handles: Sequence[Any]) -> dict[str, str | None]:
    return {
        "gpu": _alike(library.text("nvmlDeviceGetName", handle) for handle in handles),
        "gpu_count": str(len(handles)),
        "gpu_memory": _alike(_size(library, handle) for handle in handles),
        "mig": "on" if any(_split(library, handle) for handle in handles) else None,
    }


def _size(library: Library, handle: Any) -> str | None:
    """In whole GiB: what a driver counts as the total moves by some MiB from version to version."""
    try:
        return f"{memory_of(library, handle)[0] / _GIB:.0f} GiB"
    except (GpuLostError, LookupError):
        return None


def _split(library: Library, handle: Any) -> bool:
    """Whether it is divided into instances (MIG) now."""
    try:
        return bool(mode(library.ask("nvmlDeviceGetMigMode", handle)))
    except GpuLostError:
        return False


def _alike(values: Iterable[str | None]) -> str | None:
    """The one value of all GPUs, or the different ones; None where any of them is not known."""
    found = list(values)
    known = [value for value in found if value]
    return " + ".join(sorted(set(known))) if len(known) == len(found) else None
