"""The machine that a server was started on, as far as it matters for speed."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from functools import lru_cache
from pathlib import Path
from typing import Final

__all__ = ["host_class", "memory_class", "system"]

_GIB: Final = 2**30


@lru_cache(maxsize=1)
def host_class() -> str:
    """CPU model, logical cores that we may use, class of memory: equal for machines that are interchangeable."""
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count()
    return f"{_cpu_model()}, {cores} cores, {memory_class(_memory())}"


def system() -> str:
    """Operating system and architecture. Kernel releases are left out: they change by the week."""
    return f"{platform.system()} {platform.machine()}"


def memory_class(size: int | None) -> str:
    """The power of two of GiB that ``size`` bytes fill best: firmware and kernel keep a part of what is built in."""
    if size is None:
        return "unknown memory"
    sizes = [2**power for power in range(16)]
    return f"{next((gib for gib in sizes if size <= gib * _GIB * 1.05), sizes[-1])} GiB"


def _memory() -> int | None:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return None


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
