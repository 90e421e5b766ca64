"""Room on a server's GPUs: nobody else there, memory free before a launch and given back after it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from pytest_llmperf.cards import Card, gib
from pytest_llmperf.errors import InfraError
from pytest_llmperf.server.gpus import Wish, users_of

__all__ = ["levels", "require_returned", "require_room", "visible"]

Look = Callable[[], Sequence[Card]]

_POLL_S: Final = 0.5
_LEAVING_S: Final = 30.0
"""How long processes of others, and memory of a server that has ended, may take to go."""
_SHARE: Final = 0.9
"""Of a GPU's memory that must be free for a server alone on it that does not say how much it needs."""
_SLACK: Final = 256 * 2**20
"""Bytes that a driver may keep longer than the process they were for."""


def visible(cards: Sequence[Card]) -> dict[str, str]:
    """Environment variables that let a CUDA program see these GPUs and no others, in this order."""
    names = [str(card.index) if card.uuid.startswith("index-") else card.uuid for card in cards]
    # Without a UUID the index is NVML's, which counts as the PCI bus does.
    return {"CUDA_VISIBLE_DEVICES": ",".join(names), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"} if names else {}


def require_room(wish: Wish, look: Look, *, patience_s: float = _LEAVING_S) -> None:
    """Wait a little until nobody else computes on our GPUs and they have the memory that the server needs.

    ``look`` gives them as they are. Asked before every launch, with the locks held. Where ``wish`` allows others, only
    memory that the configuration asks for must be free. Raises InfraError with the process or the numbers.
    """
    _await(lambda: [fault for card in look() if (fault := _fault(card, wish)) is not None], patience_s)


def levels(cards: Sequence[Card]) -> dict[str, int]:
    """Memory in use, by UUID, of the GPUs that tell."""
    return {card.uuid: card.used_bytes for card in cards if card.used_bytes is not None}


def require_returned(before: Mapping[str, int], look: Look, *, patience_s: float = _LEAVING_S) -> None:
    """Wait a little until the GPUs' memory in use is back at its level ``before`` a launch.

    Raises InfraError with the numbers: the next launch would find less room than this one.
    """

    def kept() -> list[str]:
        return [
            f"GPU {card.index} still has {gib(used)} in use after the server ended, {gib(before[card.uuid])} before "
            f"it was launched{f': {users_of(card)}' if card.processes else ''}"
            for card in look()
            if (used := card.used_bytes) is not None and used > before.get(card.uuid, used) + _SLACK
        ]

    _await(kept, patience_s)


def _await(faults: Callable[[], list[str]], patience_s: float) -> None:
    """Until there are none; raises InfraError with those that stay."""
    deadline = time.monotonic() + patience_s
    while found := faults():
        if time.monotonic() >= deadline:
            raise InfraError("; ".join(found))
        time.sleep(_POLL_S)


def _fault(card: Card, wish: Wish) -> str | None:
    if card.processes and not wish.shared:
        who = f"GPU {card.index} is in use by {users_of(card)}, which holds no lock of pytest-llmperf"
        return f"{who}: end it, or write gpu_shared = true if it may stay"
    share = wish.memory_share if wish.shared else wish.memory_share or _SHARE
    if share is None or card.free_bytes is None or card.total_bytes is None:
        return None
    # What the driver reserves is nobody's: a share of all may ask for a little more than there can be.
    most = card.total_bytes - (card.reserved_bytes or 0)
    if card.free_bytes >= min(share * card.total_bytes, 0.98 * most):
        return None
    room = f"GPU {card.index} has {gib(card.free_bytes)} of {gib(card.total_bytes)} free"
    return f"{room}, and {100 * share:.0f} % are needed: see who holds the rest (pytest-llmperf doctor gpu)"
