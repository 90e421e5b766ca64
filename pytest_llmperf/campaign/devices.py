"""The GPUs of a campaign: taken before its first launch, kept to its end, and seen to around every launch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import final

from pytest_llmperf.cards import Card
from pytest_llmperf.engines import engine_of
from pytest_llmperf.errors import InfraError
from pytest_llmperf.plan import ServerSpec
from pytest_llmperf.server.gpu_memory import levels, require_returned, require_room, visible
from pytest_llmperf.server.gpus import GpuLocks, Wish, require_there, take
from pytest_llmperf.telemetry.cards import read_cards
from pytest_llmperf.telemetry.clocks import ClockLock
from pytest_llmperf.telemetry.nvml import NoDriverError

__all__ = ["Devices"]


@final
class Devices:
    """Nothing is taken for a server that computes on the CPU, runs already, or does not say which GPUs it has."""

    def __init__(self) -> None:
        self._locks: GpuLocks | None = None
        self._wish: Wish | None = None
        self._clocks: ClockLock | None = None
        self._mhz: int | None = None
        self._before: dict[str, int] = {}

    @property
    def environment(self) -> dict[str, str]:
        """Variables for the server: the GPUs that are ours, and no others."""
        return {} if self._locks is None else visible(self._locks.cards)

    def require(self, specs: Sequence[ServerSpec]) -> None:
        """Raise InfraError where the GPUs of one of these servers are not in this machine; waits for none."""
        for spec in specs:
            wish = _wish(spec)
            if wish is not None:
                require_there(wish, _cards(spec))

    def acquire(self, spec: ServerSpec, tell: Callable[[float, str], None]) -> ServerSpec:
        """``spec`` with the GPUs that are ours now, seen to be free for it. Raises InfraError.

        Those that are held already stay; ``tell`` hears for whom it waits.
        """
        wish = _wish(spec)
        if wish is None:
            self.release()
            return spec
        if self._locks is None or wish != self._wish:
            self.release()
            self._locks, self._wish = take(wish, lambda: _cards(spec), tell=tell), wish
        indices = tuple(card.index for card in self._locks.cards)
        ours = spec.model_copy(update={"gpus": indices, "any_gpus": 0})
        share = engine_of(spec).memory_share(spec)
        require_room(replace(wish, gpus=indices, memory_share=share), lambda: _cards(ours))
        self._before = {} if wish.shared else levels(_cards(ours))
        self._hold(spec.lock_clocks)
        return ours

    def _hold(self, mhz: int | None) -> None:
        """Hold the SM clocks of our GPUs at ``mhz``, or as they are by themselves."""
        if mhz == self._mhz or self._locks is None:
            return
        self._free()
        if mhz is not None:
            gpus = tuple(card.index for card in self._locks.cards)
            self._clocks = ClockLock([card.uuid for card in self._locks.cards], mhz, lambda: _read(gpus))
            self._mhz = mhz

    def _free(self) -> None:
        clocks, self._clocks, self._mhz = self._clocks, None, None
        if clocks is not None:
            clocks.release()

    def returned(self) -> None:
        """After the end of a server: wait until its GPUs' memory is back. Raises InfraError where it is not."""
        before, self._before = self._before, {}
        if before and self._wish is not None and self._locks is not None:
            gpus = tuple(card.index for card in self._locks.cards)
            require_returned(before, lambda: _read(gpus))

    def release(self) -> None:
        """Safe to call twice. Raises InfraError where the clocks cannot be given back."""
        try:
            self._free()
        finally:
            if self._locks is not None:
                self._locks.release()
            self._locks = self._wish = None
            self._before = {}


def _wish(spec: ServerSpec) -> Wish | None:
    if spec.targeted or not spec.gpu_count or engine_of(spec).cpu:
        return None
    return Wish(spec.gpus, spec.any_gpus, spec.gpu_wait, spec.gpu_shared)


def _cards(spec: ServerSpec) -> tuple[Card, ...]:
    """The GPUs that come into question. Without NVIDIA's driver those that the configuration names, by index alone."""
    try:
        return _read(spec.gpus)
    except NoDriverError as error:
        if not spec.gpus:
            raise InfraError(f"gpus = 'any:{spec.any_gpus}' needs NVIDIA's driver to choose: {error}") from None
        return tuple(Card(index, f"index-{index}") for index in spec.gpus)


def _read(gpus: tuple[int, ...]) -> tuple[Card, ...]:
    try:
        return read_cards(gpus)
    except LookupError as error:
        raise InfraError(error.args[0]) from None
