"""SM clocks held at one frequency while a campaign runs, and given back whatever ends it.

A process of its own, the keeper, sets the clocks and waits at its standard input: when whoever started it closes that,
or is gone in any way, it gives them back. It ignores the signals that end a test run. Needs the rights that the driver
asks of whoever changes clocks. The driver does not tell whether clocks were locked before: they are free afterwards.

    python -m pytest_llmperf.telemetry.clocks MHZ UUID ...     (MHZ 0: only give them back)
"""

from __future__ import annotations

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
            answer = self._keeper.stdout.readline().strip()
            if answer != _HELD:
                raise InfraError(f"lock_clocks = {mhz}: {answer or 'the driver gave no answer'}")
            _await_ceiling(mhz, look)
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        """Give the clocks back. Raises InfraError where that fails; safe to call twice."""
        keeper = self._keeper
        if keeper.stdin is None or keeper.stdin.closed:
            return
        with suppress(OSError):
            keeper.stdin.close()
        try:
            status = keeper.wait(_ANSWER_S)
        except subprocess.TimeoutExpired:
            keeper.kill()
            status = keeper.wait()
        if keeper.stdout is not None:
            keeper.stdout.close()
        if status not in (0, 1):  # it was killed itself: another one does its work
            again = subprocess.run(_command(0, self._uuids), check=False, capture_output=True, stdin=subprocess.DEVNULL)
            if again.returncode:
                raise InfraError(f"the clocks of {', '.join(self._uuids)} may still be locked: run nvidia-smi -rgc")


def keep(library: Library, mhz: int, uuids: Sequence[str], wait: Callable[[str], None]) -> int:
    """Lock the clocks, ``wait`` with what there is to say, give them back. 0: they were held, 1: refused."""
    locked: list[Any] = []
    try:
        for uuid in uuids:
            handle = library.demand("nvmlDeviceGetHandleByUUID", uuid)
            locked.append(handle)  # before it is tried: to give back too much does no harm
            if mhz:
                library.demand("nvmlDeviceSetGpuLockedClocks", handle, mhz, mhz)
        wait(_HELD)
        return 0
    except (LookupError, GpuLostError) as error:
        wait(f"refused by the driver: {error.args[0] if error.args else error}")
        return 1
    finally:
        for handle in locked:
            with suppress(GpuLostError):
                library.ask("nvmlDeviceResetGpuLockedClocks", handle)


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
        return 1


if __name__ == "__main__":
    sys.exit(_main(*sys.argv[1:]))
