"""What the client's reads are good for: when the times of single chunks cannot be told apart.

A read that holds two events which the server sent apart gives them one time: a gap of 0 and another that is too long.
A read without a kernel stamp among stamped ones has the time at which the client got round to it. Both touch only
what is made of gaps between chunks (ICL, ITL and what rests on them); first and last chunk of a request, and with them
TTFT, TPOT, E2E and throughput, are moved by no more than one wake-up of the client, so they stay as they are.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from pytest_llmperf.records import ClientStats

__all__ = ["GAP_FAMILIES", "READS_OFF", "gap_fault"]

READS_OFF: Final = 0.001
"""Share of chunks (or reads) beyond which gaps are INVALID."""
GAP_FAMILIES: Final = frozenset({"icl", "itl"})
_REMEDY: Final = "give the client a CPU core of its own, or lower the load per client process"


def gap_fault(clients: Iterable[ClientStats]) -> str | None:
    """Why ICL and ITL of these trials together are INVALID, with the remedy; None where they are sound.

    Chunks that the server itself merged into one write are not shared reads. The shares are each trial's own: a
    good replay does not make up for a bad one in the pooled percentiles.
    """
    found = []
    for client in clients:
        if client.shared_reads > READS_OFF * client.output_chunks:
            share = _percent(client.shared_reads, client.output_chunks)
            found.append(f"{share} of the chunks came in one read with an earlier one")
        if client.stamps == "kernel" and client.unstamped_reads > READS_OFF * client.reads:
            share = _percent(client.unstamped_reads, client.reads)
            found.append(f"{share} of the reads came without a kernel receive stamp")
    if not found:
        return None
    return f"{'; '.join(dict.fromkeys(found))} (at most {100 * READS_OFF:g} %): {_REMEDY}"


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.2g} %" if whole else f"{part}"
