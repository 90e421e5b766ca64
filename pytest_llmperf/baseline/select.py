"""Which stored measurement to compare with, and why this one; or why none, and what comes nearest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Final

from packaging.version import InvalidVersion, Version

from pytest_llmperf.baseline.keys import Key, slug
from pytest_llmperf.baseline.schema import BaselineFile, Entry
from pytest_llmperf.baseline.store import Store
from pytest_llmperf.errors import BaselineError, UsageError
from pytest_llmperf.identity import Fact, Identity

__all__ = ["NoPartner", "Partner", "check_against", "file_created", "pep440", "select"]

_NAMED: Final = 5
"""Versions or fields that a sentence names."""


@dataclass(frozen=True, slots=True)
class Partner:
    """A stored entry to compare with."""

    key: Key
    digest: str
    entry: Entry
    differing: tuple[str, ...]
    """Inputs whose values differ, the version apart."""
    explanation: str
    """One sentence: what was chosen, why, and what was there besides."""


@dataclass(frozen=True, slots=True)
class NoPartner:
    """There is nothing to compare with."""

    explanation: str
    """One or two sentences: what is missing, and the nearest there is."""
    nearest: Key | None = None
    differing: tuple[str, ...] = ()
    """Parts of the key in which the nearest differs."""


def check_against(against: str) -> str:
    """``against`` where it is ``latest``, ``none`` or ``version=X``. Raises UsageError."""
    if against in ("latest", "none") or (against.startswith("version=") and against.removeprefix("version=").strip()):
        return against
    raise UsageError(f"--llmperf-against: {against!r} is none of 'latest', 'none', 'version=X' (e.g. 'version=0.32.0')")


def select(store: Store, key: Key, identity: Identity, against: str) -> Partner | NoPartner:
    """The partner of a measurement of ``identity`` under ``key``.

    ``latest``: the same version where it is stored, else the highest lower one by PEP 440; where versions are not
    of that form, the one with the newest session. Of the entries there, the one with the fewest differing inputs,
    the newest among equals. Raises BaselineError where what would be chosen cannot be trusted, UsageError for
    another ``against``.
    """
    if check_against(against) == "none":
        return NoPartner("no comparison: --llmperf-against none")
    stored = store.versions(key)
    if not stored:
        return _nothing(store, key)
    if against == "latest":
        chosen, why = _latest(store, key, stored)
    else:
        wanted = against.removeprefix("version=").strip()
        chosen = next((each for each in stored if _same(each.version, wanted)), None)
        why = "as asked for" if chosen else f"version {wanted}"
    if chosen is None:
        nearest = stored[-1]
        there = f"stored for this test: {_listed([each.version for each in stored])}"
        return NoPartner(f"{store.location} has no {why} of {key}; {there}", nearest, ("version",))
    file = store.read(chosen)
    if file is None:  # removed since
        return _nothing(store, key)
    return _closest(chosen, file, identity, f"stored {chosen.engine} {chosen.version}, {why}{_besides(chosen, stored)}")


def _latest(store: Store, key: Key, stored: Sequence[Key]) -> tuple[Key | None, str]:
    for each in stored:
        if each.version == key.version:
            return each, "the same version"
    ours = pep440(key.version)
    if ours is not None:
        ranked = [(version, each) for each in stored if (version := pep440(each.version)) is not None]
        lower = [(version, each) for version, each in ranked if version <= ours]
        if lower:
            return max(lower, key=lambda pair: pair[0])[1], f"the highest version below {key.version}"
        if ranked:
            return None, f"version {key.version} or lower"
    newest = [(file_created(file), each) for each in stored if (file := store.read(each)) is not None]
    if not newest:
        return None, f"version {key.version}"
    return max(newest, key=lambda pair: pair[0])[1], "the newest, as versions here have no order by PEP 440"


def file_created(file: BaselineFile) -> str:
    """Time of the newest session."""
    return max(session.created for entry in file.entries.values() for session in entry.sessions)


def _closest(key: Key, file: BaselineFile, identity: Identity, why: str) -> Partner:
    ranked = sorted(file.entries.items(), key=lambda item: item[1].sessions[-1].created, reverse=True)
    digest, entry = min(ranked, key=lambda item: len(_differing(item[1].input, identity.input)))
    differing = _differing(entry.input, identity.input)
    same = f"with other {_listed(differing)}" if differing else "with the same inputs"
    number = len(file.entries)
    of = f", the closest of {number} parameter sets," if number > 1 else ""
    sessions = len(entry.sessions)
    launches = sum(len(session.launches) for session in entry.sessions)
    plural = "s" if sessions > 1 else ""
    counted = f"{launches} launches in {sessions} session{plural}, the last of {entry.sessions[-1].created}"
    text = f"{why};{of} {same}: {counted}"
    return Partner(key, digest, entry, differing, text)


def _differing(one: dict[str, Fact], other: dict[str, Fact]) -> tuple[str, ...]:
    """Names of the inputs that are not the same text on both sides; one that a side lacks differs."""
    names = sorted({*one, *other} - {"version"})
    return tuple(name for name in names if _value(one, name) != _value(other, name))


def _value(facts: dict[str, Fact], name: str) -> str | None:
    return facts[name].value if name in facts else None


def _besides(chosen: Key, stored: Sequence[Key]) -> str:
    others = [each.version for each in stored if each != chosen]
    return f" (also stored: {_listed(others)})" if others else ""


def _nothing(store: Store, key: Key) -> NoPartner:
    """Same test first, then the fewest differing parts of the path."""
    own = key.path.split("/")
    paths = store.paths()
    if not paths:
        return NoPartner(f"{store.location} holds no baseline yet; make one with pytest --llmperf --llmperf-refresh")
    ranked = sorted(paths, key=lambda path: _distance(path.split("/"), own))
    try:
        file = store.load(ranked[0])
    except BaselineError as error:
        return NoPartner(f"{store.location} has nothing for {key}; the nearest cannot be used: {error}")
    if file is None:
        return NoPartner(f"{store.location} has nothing for {key}")
    nearest = Key.of(next(iter(file.entries.values())).identity(), file.test)
    parts = [field.name for field in fields(Key) if getattr(nearest, field.name) != getattr(key, field.name)]
    told = "; ".join(f"{part} {getattr(nearest, part)}, not {getattr(key, part)}" for part in parts)
    return NoPartner(f"{store.location} has nothing for {key}; the nearest has {told}", nearest, tuple(parts))


def _distance(path: Sequence[str], own: Sequence[str]) -> tuple[bool, int]:
    return path[-1] != own[-1], sum(one != other for one, other in zip(path, own, strict=False)) + abs(
        len(path) - len(own)
    )


def pep440(version: str) -> Version | None:
    """``version`` as something that has an order; None where it is not of that form."""
    try:
        return Version(version)
    except InvalidVersion:
        return None


def _same(version: str, wanted: str) -> bool:
    return (
        version == wanted
        or slug(version) == wanted
        or (pep440(version) is not None and pep440(version) == pep440(wanted))
    )


def _listed(words: Sequence[str]) -> str:
    shown = ", ".join(words[:_NAMED])
    return f"{shown} and {len(words) - _NAMED} more" if len(words) > _NAMED else shown
