"""SM clocks held at one frequency while a campaign runs, and given back whatever ends it.

A process of its own, the keeper, sets the clocks and waits at its standard input: when whoever started it closes that,
or is gone in any way, it gives them back. It ignores the signals that end a test run. Needs the rights that the driver
asks of whoever changes clocks. The driver does not tell whether clocks were locked before: they are free afterwards.

    python -m pytest_llmperf.telemetry.clocks MHZ UUID ...     (MHZ 0: only give them back)
"""

from __future__ import annotations

import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final, final

from pytest_llmperf.cards import STEP_MHZ, Card
from pytest_llmperf.errors import InfraError
from pytest_llmperf.telemetry.nvml import GpuLostError, Library, NoDriverError, opened

__all__ = ["ClockLock", "keep"]

_HELD: Final = "held"
_GIVEN_BACK, _NEVER_HELD, _LEFT = 0, 3, 4
"""Exit status of the keeper; a Python that fails ends with 1 or 2."""
_ANSWER_S: Final = 20.0
_SETTLE_S: Final = 5.0


@final
class ClockLock:
    """Clocks of GPUs, held from the constructor to ``release``. Raises InfraError where they cannot be."""

    def __init__(self, uuids: Sequence[str], mhz: int, look: Callable[[], Sequence[Card]]) -> None:
        self._uuids = tuple(uuids)
        self._keeper = _start(mhz, self._uuids)
        try:
            assert self._keeper.stdout is not None
            answered, _, _ = select.select([self._keeper.stdout], [], [], _ANSWER_S)
            answer = self._keeper.stdout.readline().strip() if answered else ""
            if answer != _HELD:
                raise InfraError(f"lock_clocks = {mhz}: {answer or 'the driver gave no answer'}")
            _await_ceiling(mhz, look)
        except InfraError as error:
            try:
                self.release()
            except InfraError as left:
                raise InfraError(f"{error}; {left}") from error
            raise
        except BaseException:  # Ctrl-C
            self.release()
            raise

    def release(self) -> None:
        """Give the clocks back. Raises InfraError where that fails; safe to call twice."""
        keeper = self._keeper
        if keeper.stdin is None or keeper.stdin.closed:
            return
        with suppress(OSError):
            keeper.stdin.close()
        status = _status(keeper)
        if keeper.stdout is not None:
            keeper.stdout.close()
        # Where it was killed itself, or refused, another one tries.
        if status not in (_GIVEN_BACK, _NEVER_HELD) and _freed(self._uuids) != _GIVEN_BACK:
            raise InfraError(f"the clocks of {', '.join(self._uuids)} may still be locked: run nvidia-smi -rgc as root")


def keep(library: Library, mhz: int, uuids: Sequence[str], wait: Callable[[str], None]) -> int:
    """Lock the clocks, ``wait`` with what there is to say, give them back.

    0: they were held, 3: the driver refused, 4: it does not take back what was locked.
    """
    locked: list[Any] = []
    status = _GIVEN_BACK
    try:
        for uuid in uuids:
            handle = library.demand("nvmlDeviceGetHandleByUUID", uuid)
            if mhz:
                library.demand("nvmlDeviceSetGpuLockedClocks", handle, mhz, mhz)
            locked.append(handle)
        wait(_HELD)
    except (LookupError, GpuLostError) as error:
        status = _NEVER_HELD
        wait(f"refused by the driver: {error.args[0] if error.args else error}")
    for handle in locked:
        try:
            library.demand("nvmlDeviceResetGpuLockedClocks", handle)
        except GpuLostError:  # a reset of the GPU, which it needs now, frees its clocks too
            continue
        except LookupError:
            status = _LEFT
    return status


def _status(keeper: subprocess.Popen[str]) -> int | None:
    """How it ended; None where not even SIGKILL ends it, for the driver hangs."""
    with suppress(subprocess.TimeoutExpired):
        return keeper.wait(_ANSWER_S)
    keeper.kill()
    with suppress(subprocess.TimeoutExpired):
        return keeper.wait(_ANSWER_S)
    return None


def _freed(uuids: Sequence[str]) -> int | None:
    """Give the clocks back without having held them; how that went."""
    try:
        done = subprocess.run(
            _command(0, uuids), check=False, capture_output=True, stdin=subprocess.DEVNULL, timeout=_ANSWER_S
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.returncode


def _await_ceiling(mhz: int, look: Callable[[], Sequence[Card]]) -> None:
    """Idle GPUs show that they run no faster; that they run no slower shows under load."""
    deadline = time.monotonic() + _SETTLE_S
    while above := [card for card in look() if (card.sm_clock_mhz or 0) > mhz + STEP_MHZ]:
        if time.monotonic() >= deadline:
            card = above[0]
            runs = f"GPU {card.index} does not hold it, it runs at {card.sm_clock_mhz} MHz"
            raise InfraError(f"lock_clocks = {mhz}: {runs}")
        time.sleep(0.1)


def _command(mhz: int, uuids: Sequence[str]) -> list[str]:
    return [sys.executable, "-P", "-m", "pytest_llmperf.telemetry.clocks", str(mhz), *uuids]


def _start(mhz: int, uuids: Sequence[str]) -> subprocess.Popen[str]:
    try:
        return subprocess.Popen(
            _command(mhz, uuids), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
    except OSError as error:
        raise InfraError(f"the process that keeps the clocks cannot be started: {error.strerror}") from None


def _main(mhz: str, *uuids: str) -> int:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)

    def wait(text: str) -> None:
        with suppress(OSError):  # nobody hears it any more
            sys.stdout.write(f"{text}\n")
            sys.stdout.flush()
        sys.stdin.read()

    try:
        with opened() as library:
            return keep(library, int(mhz), uuids, wait)
    except NoDriverError as error:
        wait(str(error))
        return _NEVER_HELD


if __name__ == "__main__":
    sys.exit(_main(*sys.argv[1:]))
