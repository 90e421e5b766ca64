"""Errors that the driver reports of a GPU while it is watched: XIDs."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final, final

from pytest_llmperf.samples import GPU_LOST
from pytest_llmperf.telemetry.nvml import GpuLostError, Library

__all__ = ["Faults"]

OF_PROGRAMS: Final = frozenset({13, 31, 43, 45})
"""XIDs that a program's own fault may cause (illegal access, or its end): NVIDIA, "XID Errors", the column
"User App Error". They may be the server's doing; the others are trouble of the machine."""
_XID: Final = 0x8
_MOST: Final = 8
"""Reports taken in at once."""


@final
class Faults:
    """Of the GPUs given as NVML index → handle. To be closed. Tells nothing where the driver reports nothing."""

    def __init__(self, library: Library, handles: Mapping[int, Any]) -> None:
        self._library = library
        self._names = {library.text("nvmlDeviceGetUUID", handle): gpu for gpu, handle in handles.items()}
        self._set: Any = None
        try:
            self._set = library.ask("nvmlEventSetCreate")
            for handle in handles.values() if self._set is not None else ():
                library.ask("nvmlDeviceRegisterEvents", handle, _XID, self._set)
        except GpuLostError:
            return

    def read(self) -> tuple[str, ...]:
        """A note for each report since the last read; begins with ``samples.GPU_LOST`` where the machine is to blame.

        Does not wait.
        """
        found = []
        for _ in range(_MOST if self._set is not None else 0):
            try:
                event = self._library.ask("nvmlEventSetWait_v2", self._set, 0)
            except GpuLostError as error:
                found.append(f"{GPU_LOST}: {error}")
                break
            if event is None:
                break
            gpu = self._names.get(self._library.text("nvmlDeviceGetUUID", event.device))
            which = "a GPU" if gpu is None else f"GPU {gpu}"
            text = f"XID {event.eventData} of {which} (see the kernel's log)"
            found.append(text if event.eventData in OF_PROGRAMS else f"{GPU_LOST}: {text}")
        return tuple(found)

    def close(self) -> None:
        if self._set is not None:
            with suppress(GpuLostError):
                self._library.ask("nvmlEventSetFree", self._set)
            self._set = None
