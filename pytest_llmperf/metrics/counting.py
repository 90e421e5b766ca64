"""Whether the token counts of a trial can be believed: whose they are, and whether two of them agree."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pytest_llmperf.records import RequestRecord, TokenSource

__all__ = ["token_truth"]

COUNTS_OFF: Final = 0.02
COUNTS_APART: Final = 0.10
"""Of the server's output tokens: from where the two counts are said to differ, and from where one must be wrong."""
_INVISIBLE: Final = 2
"""Tokens of a request that its text does not show: end of text, end of reasoning."""


def token_truth(ok: Sequence[RequestRecord]) -> tuple[list[str], list[str]]:
    """Reasons against and notes on the counts of the requests in ``ok``, where a tokenizer counted too."""
    both = [
        (record.output_tokens, record.tokenizer_tokens)
        for record in ok
        if record.output_tokens is not None
        and record.tokenizer_tokens is not None
        and record.token_source is not TokenSource.TOKENIZER
    ]
    alone = sum(record.token_source is TokenSource.TOKENIZER for record in ok)
    notes = []
    if alone:
        notes.append(
            f"output tokens of {alone} of {len(ok)} requests were counted by the configured tokenizer, not by the "
            "server: nothing shows that it is the model's own"
        )
    served, counted = sum(by_server for by_server, _ in both), sum(by_text for _, by_text in both)
    # Each request may hide a few tokens; what is beyond that is a difference.
    off = sum(max(0, abs(by_server - by_text) - _INVISIBLE) for by_server, by_text in both)
    if not served or off <= COUNTS_OFF * served:
        return [], notes
    found = f"token counts differ: {served:,} output tokens by the server, {counted:,} by the tokenizer over the texts"
    if off > COUNTS_APART * served:
        remedy = (
            "it is another model's tokenizer, or the server miscounts (a model of random weights writes text that no "
            "tokenizer reads back: leave tokenizer out)"
        )
        return [f"{found}; {remedy}"], notes
    return [], [*notes, f"{found}; the server's are used"]
