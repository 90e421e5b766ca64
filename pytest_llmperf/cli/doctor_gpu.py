"""``pytest-llmperf doctor gpu``: what the driver tells of this machine's GPUs, and who has them.

Exit status: 0 told, 1 no GPU can be seen.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from typing import Final

from pytest_llmperf.cards import reasons_in
from pytest_llmperf.doctor.gpu import advice, describe
from pytest_llmperf.errors import InfraError
from pytest_llmperf.server.gpus import holder_of
from pytest_llmperf.telemetry.cards import read_cards

__all__ = ["TEXT", "configure", "run"]

TEXT: Final = (
    "what NVIDIA's driver tells of each GPU: memory, who is on it, clocks and what holds them down, heat, power, "
    "modes, and who has its lock; changes nothing (exit status 1: no GPU can be seen)"
)


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("--json", action="store_true", help="print it as JSON")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print what is seen."""
    try:
        cards, why = read_cards(), "the driver knows no GPU"
    except (InfraError, LookupError) as error:
        cards, why = (), str(error)
    holders = {card.uuid: holder_of(card.uuid) for card in cards}
    if arguments.json:
        gpus = [
            {
                **asdict(card),
                "held_down_by": None if card.throttle is None else reasons_in(card.throttle),
                "lock_holder": holders[card.uuid],
                "advice": advice(card, holders[card.uuid]),
            }
            for card in cards
        ]
        print(json.dumps({"gpus": gpus, "reason": None if cards else why}, indent=1))
    elif cards:
        print(f"NVIDIA driver {cards[0].driver or 'unknown'}")
        for card in cards:
            print("\n".join(describe(card, holders[card.uuid])))
    else:
        print(f"No GPU can be seen: {why}. Servers that compute on the CPU need none.", file=sys.stderr)
    return 0 if cards else 1
