"""NVIDIA's management library, opened. The only module that imports pynvml, and only when asked."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final, Self, final

__all__ = ["GpuLostError", "Library", "NoDriverError", "opened"]

_LOST: Final = ("NVML_ERROR_GPU_IS_LOST", "NVML_ERROR_RESET_REQUIRED")
"""The GPU answers nothing any more."""


class NoDriverError(Exception):
    """There is nothing to ask; ``str()`` says why."""


class GpuLostError(Exception):
    """The driver says that a GPU is lost, or of no use before a reset."""


@final
class Library:
    """Questions to the driver by their NVML name. To be closed; counted by NVML, so several may be open."""

    def __init__(self, binding: Any) -> None:
        self.binding = binding
        self._lost = tuple(value for name in _LOST if (value := getattr(binding, name, None)) is not None)

    @classmethod
    def open(cls) -> Self:
        """Raises NoDriverError."""
        try:
            with warnings.catch_warnings():
                # A package of the same name, which others may have installed, warns when it is imported.
                warnings.simplefilter("ignore", FutureWarning)
                import pynvml
        except ImportError:
            raise NoDriverError("nvidia-ml-py is not installed") from None
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            raise NoDriverError(f"no NVIDIA driver ({error})") from None
        return cls(pynvml)

    def close(self) -> None:
        with suppress(self.binding.NVMLError):
            self.binding.nvmlShutdown()

    def demand(self, function: str, *arguments: Any) -> Any:
        """The answer. Raises GpuLostError, and LookupError with the driver's words where there is none: not supported,
        not permitted, binding or driver too old."""
        try:
            return getattr(self.binding, function)(*arguments)
        except AttributeError:
            raise LookupError(f"this version of nvidia-ml-py has no {function}") from None
        except self.binding.NVMLError as error:
            if getattr(error, "value", None) in self._lost:
                raise GpuLostError(str(error)) from None
            raise LookupError(str(error)) from None

    def ask(self, function: str, *arguments: Any) -> Any:
        """The answer, None where there is none. Raises GpuLostError."""
        with suppress(LookupError):
            return self.demand(function, *arguments)
        return None

    def text(self, function: str, *arguments: Any) -> str | None:
        """A name; old bindings give bytes. None where there is none, also for a GPU that is lost."""
        try:
            answer = self.ask(function, *arguments)
        except GpuLostError:
            return None
        return answer.decode() if isinstance(answer, bytes) else str(answer) if answer else None

    def constant(self, name: str, default: int) -> int:
        """A number of NVML's interface; ``default`` where this binding does not name it."""
        value = getattr(self.binding, name, default)
        return value if isinstance(value, int) else default


@contextmanager
def opened() -> Iterator[Library]:
    """The library for a ``with`` block. Raises NoDriverError."""
    library = Library.open()
    try:
        yield library
    finally:
        library.close()
