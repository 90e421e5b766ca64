"""NVIDIA's management library, opened. The only module that imports pynvml, and only when asked.

Whatever a binding raises comes out as one of the errors here or as LookupError. A call may never return: whoever must
not wait for ever asks through ``bounded``.
"""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final, Self, TypeVar, final

from pytest_llmperf.errors import InfraError

__all__ = [
    "ANSWER_S",
    "DriverHangsError",
    "GpuLostError",
    "Library",
    "NoDriverError",
    "bounded",
    "leave_behind",
    "opened",
    "require_answers",
]

T = TypeVar("T")

ANSWER_S: Final = 20.0
"""How long the driver may take for one look at the GPUs; a busy machine with eight of them needs less than a second."""
_LOST: Final = ("NVML_ERROR_GPU_IS_LOST", "NVML_ERROR_RESET_REQUIRED")
"""The GPU answers nothing any more."""
_stuck: list[tuple[threading.Thread, float]] = []
"""Threads that hang in the driver, and until when (monotonic) they are waited for. As daemons they keep no process
alive."""


class NoDriverError(InfraError):
    """There is nothing to ask; ``str()`` says why."""


class DriverHangsError(InfraError):
    """A call to the driver does not return."""


class GpuLostError(InfraError):
    """The driver says that a GPU is lost, or of no use before a reset."""


def bounded(look: Callable[[], T], seconds: float = ANSWER_S) -> T:
    """What ``look``, which asks the driver, returns or raises; it runs in a thread of its own.

    Raises DriverHangsError after ``seconds``, and soon while an earlier call still hangs.
    """
    require_answers()
    answers: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            answers.append(look())
        except BaseException as error:  # whatever it is, it is raised where the answer is wanted
            errors.append(error)

    thread = threading.Thread(target=run, name="llmperf-driver", daemon=True)
    thread.start()
    thread.join(seconds)
    if answers:
        return answers[0]
    if errors:
        raise errors[0]
    leave_behind(thread)
    raise DriverHangsError(f"the NVIDIA driver does not answer (waited {seconds:g} s): see the kernel's log")


def leave_behind(thread: threading.Thread, seconds: float = 0.0) -> None:
    """Note that ``thread``, a daemon, hangs in the driver; whoever asks next gives it ``seconds`` more."""
    _stuck.append((thread, time.monotonic() + seconds))


def require_answers() -> None:
    """Raises DriverHangsError while a call to the driver hangs: the next one would, too."""
    for thread, until in _stuck:
        thread.join(max(0.0, until - time.monotonic()))
    _stuck[:] = [(thread, until) for thread, until in _stuck if thread.is_alive()]
    if _stuck:
        raise DriverHangsError("the NVIDIA driver does not answer: an earlier call still hangs; see the kernel's log")


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
        except Exception as error:
            raise NoDriverError(f"nvidia-ml-py cannot be loaded: {type(error).__name__}: {error}") from None
        library = cls(pynvml)
        try:
            library.demand("nvmlInit")
        except (LookupError, GpuLostError) as error:
            raise NoDriverError(f"no NVIDIA driver ({error.args[0]})") from None
        return library

    def close(self) -> None:
        with suppress(LookupError, GpuLostError):
            self.demand("nvmlShutdown")

    def demand(self, function: str, *arguments: Any) -> Any:
        """The answer. Raises GpuLostError, and LookupError with the driver's words where there is none: not supported,
        not permitted, binding or driver too old, an answer that the binding cannot read."""
        call = getattr(self.binding, function, None)
        if call is None:
            raise LookupError(f"this version of nvidia-ml-py has no {function}")
        try:
            return call(*arguments)
        except Exception as error:
            if not isinstance(error, getattr(self.binding, "NVMLError", ())):
                raise LookupError(f"{function}: {type(error).__name__}: {error}") from None
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
        return answer.decode(errors="replace") if isinstance(answer, bytes) else str(answer) if answer else None

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
