"""What the gate remembers between runs, in ``_state/`` of the store: sequences, runner noise, times, undecided runs.

None of it is a measurement that someone accepted, so a file that cannot be trusted stops nothing: it is set aside
(``….refused``), said so, and the gate goes on as if it had never been.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime, timedelta
from hashlib import sha256
from typing import Final, TypeVar, final

from pytest_llmperf.baseline.codec import dump, parse
from pytest_llmperf.baseline.files import STATE
from pytest_llmperf.baseline.provenance import utc_now
from pytest_llmperf.baseline.remembered import (
    SCHEMA,
    BlockSequence,
    Durations,
    Noise,
    NoiseKey,
    PriorRow,
    Remembered,
    SequenceKey,
    StoredNoise,
    Undecided,
)
from pytest_llmperf.baseline.store import Store, retried
from pytest_llmperf.errors import BaselineError, InfraError

__all__ = ["BLIND", "BlockSequence", "Durations", "NoiseKey", "PriorRow", "SequenceKey", "State", "StoredNoise"]

CONTINUED: Final = timedelta(hours=24)
NOISE_AGE: Final = timedelta(days=90)
NOISE_GROUPS: Final = 12
TIMES_KEPT: Final = 12
BLIND: Final = 3
"""Undecided runs of a test in a row after which its gate is blind."""
_LARGEST: Final = 16 << 20
_SKEW: Final = timedelta(hours=1)
"""Clocks of runners may differ; what is later than that is not from our time."""


Kept = TypeVar("Kept", bound=Remembered)


@final
class State:
    """Reads never fail; writes raise InfraError where the store cannot be written."""

    def __init__(self, store: Store, warn: Callable[[str], None], now: Callable[[], datetime] = utc_now) -> None:
        """``warn`` is told what was set aside."""
        self._store, self._files, self._warn, self._now = store, store.files, warn, now
        self._began: dict[str, str | None] = {}

    @property
    def writable(self) -> bool:
        """Where it is not, say "sequence not continued"."""
        return self._store.writable

    def begin(self, key: SequenceKey, prior: Mapping[str, PriorRow]) -> BlockSequence:
        """The sequence to add blocks to: the undecided one of the last 24 h with *its* prior, else a new one.

        Nothing is written.
        """
        path = _path("sequences", key)
        found, self._began[path] = self._read(path, BlockSequence)
        now = self._now()
        if found is not None and found.key != asdict(key):
            found = None  # a hash that met another: no continuation
        if found is not None and found.status == "open" and -_SKEW <= now - found.updated <= CONTINUED:
            return found
        number, earlier = (0, ()) if found is None else (found.number, (*found.earlier, found.verdict or "unfinished"))
        return BlockSequence(
            key=asdict(key), number=number + 1, earlier=earlier, prior=dict(prior), created=now, updated=now
        )

    def save(self, sequence: BlockSequence) -> BlockSequence:
        """Store it as of now. Raises InfraError too where another run has gone on with it since ``begin``."""
        key = SequenceKey(**sequence.key)  # type: ignore[arg-type]  # None only where it may be
        path = _path("sequences", key)
        stored = sequence.model_copy(update={"updated": self._now()})

        def change() -> None:
            _, tag = self._read(path, BlockSequence)
            if tag != self._began.get(path):
                raise InfraError(
                    f"{self._where(path)}: another run goes on with this sequence; run one after the other"
                )
            self._files.write(path, dump(stored), tag)
            self._began[path] = self._read(path, BlockSequence)[1]

        retried(self._files, self._where(path), change)
        return stored

    def noise(self, key: NoiseKey) -> tuple[StoredNoise, ...]:
        """At most the 12 newest groups of the last 90 days, oldest first."""
        found, _ = self._read(_path("noise", key), Noise)
        return () if found is None or found.key != asdict(key) else self._recent(found.groups)

    def learn(self, key: NoiseKey, groups: Sequence[StoredNoise]) -> None:
        """Add what a job showed, one group per arm; one without a metric tells nothing and is left out."""
        telling = [group for group in groups if group.spread]

        def add(found: Noise) -> Noise:
            before = found.groups if found.key == asdict(key) else ()
            return Noise(key=asdict(key), groups=self._recent((*before, *telling)))

        self._update(_path("noise", key), Noise(key=asdict(key)), add)

    def durations(self, server: str) -> Durations:
        """Of the server whose specification has the digest ``server``; empty where it never ran."""
        return self._read(_path("durations", server), Durations)[0] or Durations()

    def note_durations(
        self,
        server: str,
        launch_s: Sequence[float],
        replay_s: Mapping[str, Sequence[float]],
        noise: Mapping[str, NoiseKey],
    ) -> None:
        """Add the seconds of launches (until ready) and of replays by node id; the newest 12 of each stay."""

        def add(found: Durations) -> Durations:
            tests = {test: _newest(found.replay_s.get(test, ()), taken) for test, taken in replay_s.items()}
            launches = _newest(found.launch_s, launch_s)
            keys = {test: asdict(key) for test, key in noise.items()}
            replays = {**found.replay_s, **tests}
            return Durations(launch_s=launches, replay_s=replays, noise={**found.noise, **keys})

        self._update(_path("durations", server), Durations(), add)

    def undecided(self, test: str) -> int:
        """Runs of the test in a row that ended undecided; from ``BLIND`` on its gate is blind."""
        found, _ = self._read(_path("undecided", test), Undecided)
        return 0 if found is None else found.runs

    def count(self, test: str, *, undecided: bool) -> int:
        """One more run: the number of undecided ones in a row, 0 after a decided one."""
        after = self._update(
            _path("undecided", test),
            Undecided(test=test),
            lambda found: Undecided(test=test, runs=found.runs + 1 if undecided else 0),
        )
        return after.runs

    def _recent(self, groups: Sequence[StoredNoise]) -> tuple[StoredNoise, ...]:
        now = self._now()
        known = [group for group in groups if -_SKEW <= now - group.created <= NOISE_AGE]
        return tuple(sorted(known, key=lambda group: group.created)[-NOISE_GROUPS:])

    def _update(self, path: str, empty: Kept, change: Callable[[Kept], Kept]) -> Kept:
        def once() -> Kept:
            found, tag = self._read(path, type(empty))
            after = change(found or empty)
            self._files.write(path, dump(after), tag)
            return after

        return retried(self._files, self._where(path), once)

    def _read(self, path: str, model: type[Kept]) -> tuple[Kept | None, str | None]:
        """The file and its tag; one that is not to be trusted is set aside and counts as absent."""
        try:
            found = self._files.read(path, _LARGEST)
            if found is None:
                return None, None
            return parse(found.data, self._where(path), model, SCHEMA, "it is set aside"), found.tag
        except BaselineError as error:
            self._warn(f"{error.path}: {error.problem}; set aside as {path.rpartition('/')[2]}.refused and not used")
        except InfraError as error:
            self._warn(f"{error}; not used")
            return None, None
        try:
            self._files.set_aside(path)
        except (BaselineError, InfraError) as error:
            self._warn(str(error))
        return None, None

    def _where(self, path: str) -> str:
        return f"{self._store.location}/{path}"


def _newest(before: Sequence[float], taken: Sequence[float]) -> tuple[float, ...]:
    """What broke off before it began took no time, and tells none."""
    return (*before, *(seconds for seconds in taken if seconds > 0))[-TIMES_KEPT:]


def _path(kind: str, key: SequenceKey | NoiseKey | str) -> str:
    text = key if isinstance(key, str) else repr(sorted(asdict(key).items()))
    return f"{STATE}/{kind}/{sha256(text.encode('utf-8', 'surrogatepass')).hexdigest()[:24]}.json"
