"""Memory and CPU of a process and all its descendants."""

from __future__ import annotations

from typing import Final, final

import psutil

from pytest_llmperf.samples import HostSample

__all__ = ["ProcessTree"]

_LOOK_NS: Final = 1_000_000_000


@final
class ProcessTree:
    """The tree under ``pid``. Descendants are looked for once a second: that scans every process there is.

    CPU time never falls: a process that has ended keeps what it had when it was last seen, so what it used
    after that is lost, at most one sampling interval's worth. Resident memory is summed over the processes;
    pages that they share count once for each.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._looked_ns: int | None = None
        self._processes: dict[int, psutil.Process] = {}
        self._living_cpu: dict[int, float] = {}
        self._ended_cpu = 0.0

    @property
    def pids(self) -> frozenset[int]:
        """Processes of the tree that were alive when last looked at."""
        return frozenset(self._processes)

    def sample(self, t_ns: int) -> HostSample | None:
        """The tree now, stamped ``t_ns``; None where no process of it is left, or none may be read."""
        if self._looked_ns is None or t_ns - self._looked_ns >= _LOOK_NS:
            self._looked_ns = t_ns
            self._look()
        rss, read = 0, 0
        for pid, process in list(self._processes.items()):
            try:
                with process.oneshot():
                    times, memory = process.cpu_times(), process.memory_info()
            except psutil.AccessDenied:
                continue
            except psutil.Error:  # gone, or a zombie on some systems: it holds no memory any more
                del self._processes[pid]
                self._ended_cpu += self._living_cpu.pop(pid, 0.0)
                continue
            self._living_cpu[pid] = times.user + times.system
            rss, read = rss + memory.rss, read + 1
        if not read:
            return None
        return HostSample(t_ns, rss, self._ended_cpu + sum(self._living_cpu.values()), len(self._processes))

    def _look(self) -> None:
        """Add what has been started since. A known process stays, whoever its parent is now."""
        roots = list(self._processes.values())
        try:
            if self._pid not in self._processes:
                roots = [psutil.Process(self._pid), *roots]
            found = [*roots[:1], *(roots[0].children(recursive=True) if roots else ())]
        except psutil.Error:
            return
        for process in found:
            self._processes.setdefault(process.pid, process)
