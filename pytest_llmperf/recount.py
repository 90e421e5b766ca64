"""Output tokens by a tokenizer, over whole texts and after the load: the second source of counts, behind the server's.

Never chunk by chunk: the pieces of a text do not have as many tokens as the text. And never with special tokens: the
text comes without them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Final, final

from pytest_llmperf.errors import ConfigError
from pytest_llmperf.records import Outcome, RequestRecord, TokenSource

__all__ = ["Tokenizer", "check_tokenizer", "load_tokenizer", "recount"]

_INSTALL: Final = "pip install 'pytest-llmperf[tokenizer]'"


@final
class Tokenizer:
    """The ``tokenizer.json`` of a model. Raises ConfigError where the file or the library is missing or unusable."""

    def __init__(self, path: Path, where: str) -> None:
        if find_spec("tokenizers") is None:
            raise ConfigError(where, "tokenizer", f"the library for it is not installed: {_INSTALL}")
        import tokenizers

        self.name = path.name if path.name != "tokenizer.json" else f"{path.parent.name}/{path.name}"
        try:
            self._tokenizer = tokenizers.Tokenizer.from_file(str(path.expanduser()))
        except Exception as error:  # the library raises nothing more precise
            raise ConfigError(where, "tokenizer", f"{path} is no tokenizer.json: {error}") from None
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()

    def count(self, texts: Sequence[str]) -> list[int]:
        """Tokens of each text."""
        return [len(found) for found in self._tokenizer.encode_batch(list(texts), add_special_tokens=False)]


def check_tokenizer(path: Path, where: str, key: str) -> None:
    """Raise ConfigError where ``path`` cannot be used: at collection, not after the first load."""
    if not path.expanduser().is_file():
        raise ConfigError(where, key, f"{str(path)!r} is no file; give the path of the model's tokenizer.json")
    if find_spec("tokenizers") is None:
        raise ConfigError(where, key, f"needs a library: {_INSTALL}")


@lru_cache(maxsize=4)
def load_tokenizer(path: Path, where: str) -> Tokenizer:
    """``Tokenizer(path, where)``, read once: large vocabularies take a second."""
    return Tokenizer(path, where)


def recount(records: Sequence[RequestRecord], tokenizer: Tokenizer) -> tuple[RequestRecord, ...]:
    """``records`` with ``tokenizer_tokens`` where their texts were kept, and without the texts.

    The server's count stays what is used; where it states none, the tokenizer's takes its place, marked as such. A
    reply without its end has no count: part of a text may end within a token.
    """
    known = [(place, record.texts) for place, record in enumerate(records) if record.texts]
    counts = iter(tokenizer.count([text for _, texts in known for text in texts]))
    totals = {place: sum(next(counts) for _ in texts) for place, texts in known}
    return tuple(_recounted(record, totals.get(place)) for place, record in enumerate(records))


def _recounted(record: RequestRecord, total: int | None) -> RequestRecord:
    if total is None:
        return replace(record, texts=None)
    if record.token_source is not TokenSource.UNKNOWN or record.outcome is not Outcome.OK:
        return replace(record, texts=None, tokenizer_tokens=total)
    return replace(record, texts=None, tokenizer_tokens=total, output_tokens=total, token_source=TokenSource.TOKENIZER)
