"""The store that a command works on, and the entries that a word on the command line means."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_llmperf.baseline.keys import SUFFIX, Key, slug
from pytest_llmperf.baseline.schema import BaselineFile, Entry
from pytest_llmperf.baseline.store import Store
from pytest_llmperf.errors import BaselineError, UsageError

__all__ = ["Chosen", "add_store", "choose", "choose_one", "location", "open_store"]

_SHOWN = 8


@dataclass(frozen=True, slots=True)
class Chosen:
    """One entry and where it lies."""

    path: str
    test: str
    digest: str
    entry: Entry

    @property
    def key(self) -> Key:
        return Key.of(self.entry.identity(), self.test)

    @property
    def name(self) -> str:
        """What names it on the command line, and nothing else."""
        return f"{self.path}#{self.digest}"


def add_store(parser: argparse.ArgumentParser) -> None:
    """Declare what every command on the store takes."""
    parser.add_argument(
        "--baselines", metavar="DIR|URL", help="the store (default: of the configuration, else the folder 'baselines')"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def location(arguments: argparse.Namespace) -> str:
    """Where the store is."""
    if arguments.baselines is not None:
        return str(arguments.baselines)
    from pytest_llmperf.settings import load_settings

    return load_settings(Path.cwd(), servers=False).baselines


def open_store(arguments: argparse.Namespace) -> Store:
    """The store that the command line or the configuration names."""
    return Store(location(arguments))


def choose(store: Store, word: str) -> list[Chosen]:
    """The entries that ``word`` means, sorted.

    A path in the store (with or without the store before it, or ``.json`` behind; or a folder), a node id or its end,
    or six or more digits of an entry's digest; ``#DIGEST`` behind a path or node id picks one of its parameter sets.
    Raises UsageError where that is nothing, BaselineError where what it means is refused.
    """
    what, _, digest = word.partition("#")
    path = what.removeprefix(f"{store.location}/").removesuffix(SUFFIX).strip("/")
    paths = store.paths()
    by_path = [place for place in paths if place.removesuffix(SUFFIX) == path or place.startswith(f"{path}/")]
    by_test = [place for place in paths if place.endswith(f"/{slug(what)}{SUFFIX}")]
    found: list[Chosen] = []
    for place in by_path or by_test or paths:
        try:
            file = store.load(place)
        except BaselineError:
            if by_path or by_test:
                raise
            continue
        if file is not None:
            found += _matching(place, file, what, digest, whole=bool(by_path))
    if not found:
        raise UsageError(
            f"{word!r} is no path, node id or digest in {store.location}; see: pytest-llmperf baseline list"
        )
    return found


def _matching(place: str, file: BaselineFile, what: str, digest: str, *, whole: bool) -> list[Chosen]:
    by_test = file.test == what or file.test.endswith((f"/{what}", f"::{what}"))
    by_digest = re.fullmatch(r"[0-9a-f]{6,16}", what) is not None
    return [
        Chosen(place, file.test, key, entry)
        for key, entry in file.entries.items()
        if ((whole or by_test) and key.startswith(digest)) or (by_digest and key.startswith(what))
    ]


def choose_one(store: Store, word: str) -> Chosen:
    """As ``choose``, where it has to be a single entry. Raises UsageError that lists what it could be."""
    found = choose(store, word)
    if len(found) > 1:
        raise UsageError(f"{word!r} means {len(found)} entries; name one of them:\n{_names(found)}")
    return found[0]


def _names(found: Sequence[Chosen]) -> str:
    more = [f"  … {len(found) - _SHOWN} more"] if len(found) > _SHOWN else []
    return "\n".join([f"  {each.name}" for each in found[:_SHOWN]] + more)
