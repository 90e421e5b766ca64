"""The store of baselines: a directory, or a URL (see ``urls``). Every change is explicit, whole and kept apart."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final, TypeVar, final
from urllib.parse import urlsplit

from pytest_llmperf.baseline import samples as sampling
from pytest_llmperf.baseline.codec import LARGEST, decode, encode
from pytest_llmperf.baseline.files import STATE, Changed, Files, LocalFiles
from pytest_llmperf.baseline.keys import SUFFIX, Key, slug, unslug
from pytest_llmperf.baseline.samples import LaunchSamples, SampleLine
from pytest_llmperf.baseline.schema import BaselineFile, Entry, Session
from pytest_llmperf.errors import BaselineError, InfraError
from pytest_llmperf.identity import Identity

__all__ = ["KEPT_SESSIONS", "Store", "retried"]

KEPT_SESSIONS: Final = 6
_ATTEMPTS: Final = 50
_SAMPLES: Final = ".samples.jsonl.gz"

T = TypeVar("T")


def retried(files: Files, where: str, change: Callable[[], T]) -> T:
    """``change`` as the only writer, or again for as often as another one comes first. Raises InfraError."""
    for attempt in range(_ATTEMPTS):
        try:
            with files.exclusive():
                return change()
        except Changed:
            time.sleep(random.uniform(0, min(0.5, 0.01 * 2**attempt)))
    raise InfraError(f"{where}: others change it all the time: {_ATTEMPTS} attempts; try again")


@final
class Store:
    """Baselines by key. Files that cannot be trusted raise BaselineError, everything else that fails InfraError."""

    def __init__(self, location: str | Path) -> None:
        """``location``: a directory, which need not exist yet, or a URL. Raises UsageError for a URL without driver."""
        self.files: Files = _open(location)

    @property
    def location(self) -> str:
        return self.files.location

    @property
    def writable(self) -> bool:
        return self.files.writable

    def read(self, key: Key) -> BaselineFile | None:
        """What is stored under ``key``; None where there is nothing."""
        file = self.load(key.path)
        if file is not None and file.test != key.test:
            raise BaselineError(self._where(key.path), f"it is of {file.test}, not {key.test}", "delete one of them")
        return file

    def load(self, path: str) -> BaselineFile | None:
        """As ``read``, by path."""
        return self._tagged(path)[0]

    def _tagged(self, path: str) -> tuple[BaselineFile | None, str | None]:
        found = self.files.read(path, LARGEST)
        return (None, None) if found is None else (decode(found.data, self._where(path), path), found.tag)

    def samples(self, path: str, entry: str) -> list[SampleLine]:
        """What is kept of the requests behind the sessions of ``entry`` in the file at ``path``."""
        file = self.load(path)
        if file is None or entry not in file.entries:
            return []
        known = {(entry, session.id) for session in file.entries[entry].sessions}
        content = self.files.read(_beside(path), sampling.LARGEST)
        if content is None:
            return []
        return [line for line in sampling.decode_samples(content.data, self._where(_beside(path)))
                if line.place in known]  # fmt: skip

    def append(
        self,
        key: Key,
        identity: Identity,
        session: Session,
        *,
        samples: Sequence[LaunchSamples] = (),
        definitions: Mapping[str, str],
        replace: bool = False,
    ) -> None:
        """Add ``session`` to the entry of ``identity``'s input; the newest six stay, ``replace`` keeps no earlier one.

        ``definitions`` is metric → definition id. Raises BaselineError where the file is not to be trusted, or holds
        values of other definitions. A stored session of the same id is replaced.
        """
        if Key.of(identity, key.test) != key or not session.launches:
            raise ValueError(f"{key} is not the key of that identity, or the session has no launches")
        lines = sampling.lines_of(identity.digest(), session.id, samples)

        def change() -> None:
            file, tag = self._tagged(key.path)
            before = {} if file is None else file.entries
            entry = self._extended(key, before.get(identity.digest()), identity, session, definitions, replace)
            after = BaselineFile(test=key.test, entries={**before, identity.digest(): entry})
            # More samples than sessions are harmless, fewer are a loss: theirs come first, and go last.
            self._change_samples(key.path, lambda kept: [*kept, *lines])
            self.files.write(key.path, encode(after), tag)
            self._trim(key.path, before, after.entries)

        retried(self.files, self._where(key.path), change)

    def _extended(
        self, key: Key, entry: Entry | None, identity: Identity, session: Session, definitions: Mapping[str, str],
        replace: bool,
    ) -> Entry:  # fmt: skip
        if entry is None or replace:
            return Entry(input=identity.input, definitions=dict(definitions), sessions=(session,))
        for name, definition in definitions.items():
            earlier = entry.definitions.get(name, definition)
            if earlier != definition:
                problem = f"{name} is stored by definition {earlier}, now it is {definition}: not comparable"
                raise BaselineError(self._where(key.path), problem, "start anew with --replace")
        others = [each for each in entry.sessions if each.id != session.id]
        sessions = tuple(sorted((*others, session), key=lambda each: each.id)[-KEPT_SESSIONS:])
        return Entry(input=identity.input, definitions={**entry.definitions, **definitions}, sessions=sessions)

    def remove(self, path: str, sessions: Mapping[str, Collection[str]] | None = None) -> None:
        """Remove a file and its samples, or of it only some ``sessions`` (entry → session ids); what gets empty goes.

        A file that cannot be read can only be removed whole.
        """

        def change() -> None:
            if sessions is not None:
                file, tag = self._tagged(path)
                if file is None:
                    return
                left = {digest: _without(entry, sessions.get(digest, ())) for digest, entry in file.entries.items()}
                kept = {digest: entry for digest, entry in left.items() if entry is not None}
                if kept:
                    self.files.write(path, encode(BaselineFile(test=file.test, entries=kept)), tag)
                    self._trim(path, file.entries, kept)
                    return
            self.files.remove(path)
            self.files.remove(_beside(path))

        retried(self.files, self._where(path), change)

    def versions(self, key: Key) -> list[Key]:
        """Keys of the files that differ from ``key`` in the engine's version alone, ``key`` itself among them."""
        engine, _, *rest = key.path.split("/")
        found = []
        for segment in self.files.folders(engine):
            path = "/".join((engine, segment, *rest))
            if not self.files.exists(path):
                continue
            version = unslug(segment)
            if version is None and (file := self.load(path)) is not None:  # only its hash is in the name
                version = next(iter(file.entries.values())).identity().value("version")
            if version is not None and slug(version) == segment:
                found.append(replace(key, version=version))
        return found

    def paths(self) -> list[str]:
        """Of all baseline files, sorted."""
        return [path for path in self.files.walk() if path.endswith(SUFFIX) and not path.startswith(f"{STATE}/")]

    def walk(self) -> Iterator[tuple[str, BaselineFile | BaselineError]]:
        """Every file by its path, or why it is refused."""
        for path in self.paths():
            try:
                file = self.load(path)
            except BaselineError as error:
                yield path, error
            else:
                if file is not None:
                    yield path, file

    def _trim(self, path: str, before: Mapping[str, Entry], after: Mapping[str, Entry]) -> None:
        """Samples of sessions that are gone; under a lock also what a writer left that was killed."""
        kept = _places(after)
        gone = _places(before) - kept
        if self.files.locked:
            self._change_samples(path, lambda lines: [line for line in lines if line.place in kept])
        elif gone:
            self._change_samples(path, lambda lines: [line for line in lines if line.place not in gone])

    def _change_samples(self, path: str, change: Callable[[list[SampleLine]], list[SampleLine]]) -> None:
        beside = _beside(path)
        found = self.files.read(beside, sampling.LARGEST)
        before = [] if found is None else sampling.decode_samples(found.data, self._where(beside))
        after = list({(line.place, line.order, line.family): line for line in change(before)}.values())
        if not after and found is not None:
            self.files.remove(beside)
        elif set(after) != set(before):
            self.files.write(beside, sampling.encode_samples(after), None if found is None else found.tag)

    def _where(self, path: str) -> str:
        return f"{self.location}/{path}"


def _open(location: str | Path) -> Files:
    """A one-letter scheme is a drive, ``file://`` a directory."""
    text = str(location)
    if "://" not in text:
        return LocalFiles(Path(location))
    if text.startswith("file://"):
        return LocalFiles(Path(urlsplit(text).path))
    from pytest_llmperf.baseline.urls import UrlFiles

    return UrlFiles(text)


def _beside(path: str) -> str:
    return f"{path.removesuffix(SUFFIX)}{_SAMPLES}"


def _places(entries: Mapping[str, Entry]) -> set[tuple[str, str]]:
    return {(digest, session.id) for digest, entry in entries.items() for session in entry.sessions}


def _without(entry: Entry, ids: Collection[str]) -> Entry | None:
    left = tuple(session for session in entry.sessions if session.id not in ids)
    return entry.model_copy(update={"sessions": left}) if left else None
