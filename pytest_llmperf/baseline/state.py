"""What the gate remembers between runs, in ``_state/`` of the store: sequences, runner noise, times, undecided runs.

None of it is a measurement that someone accepted, so a file that cannot be trusted stops nothing: it is set aside
(``….refused``), said so, and the gate goes on as if it had never been.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from hashlib import sha256
from typing import Final, Literal, TypeVar, final

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, FiniteFloat

from pytest_llmperf.baseline.codec import dump, parse
from pytest_llmperf.baseline.files import STATE
from pytest_llmperf.baseline.provenance import utc_now
from pytest_llmperf.baseline.schema import StoredLaunch
from pytest_llmperf.baseline.store import Store, retried
from pytest_llmperf.errors import BaselineError, InfraError

__all__ = ["BLIND", "BlockSequence", "Durations", "NoiseKey", "PriorRow", "SequenceKey", "State", "StoredNoise"]

SCHEMA: Final = "pytest-llmperf/state/1"
CONTINUED: Final = timedelta(hours=24)
NOISE_AGE: Final = timedelta(days=90)
NOISE_GROUPS: Final = 12
TIMES_KEPT: Final = 12
BLIND: Final = 3
"""Undecided runs of a test in a row after which its gate is blind."""
_LARGEST: Final = 16 << 20
_SKEW: Final = timedelta(hours=1)
"""Clocks of runners may differ; what is later than that is not from our time."""


class _Remembered(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)


class _File(_Remembered):
    schema_: Literal["pytest-llmperf/state/1"] = Field(default=SCHEMA, alias="schema")


Kept = TypeVar("Kept", bound=_File)


@dataclass(frozen=True, slots=True)
class SequenceKey:
    """The pair whose blocks belong together; a change of any part is another sequence."""

    baseline: str
    """Digest of the input identity."""
    candidate: str
    test: str
    workload: str
    pool: str | None
    config: str
    """Digest of the suite's and the gate's configuration."""


@dataclass(frozen=True, slots=True)
class NoiseKey:
    """Measurements that share their noise."""

    runner: str
    """Fingerprint: GPU model and count, driver, host class."""
    workload: str
    engine: str
    """Family."""
    quantization: str


class PriorRow(_Remembered):
    """What was believed of a metric's noise before the first block."""

    s0_squared: FiniteFloat = Field(ge=0)
    d0: FiniteFloat = Field(gt=0)


class BlockSequence(_File):
    """The blocks of one pair until it is decided. Its prior is frozen: it is that of the first block for good."""

    key: dict[str, str | None]
    number: int = Field(default=1, ge=1)
    """How many sequences this pair has had, this one included."""
    earlier: tuple[str, ...] = ()
    """Verdicts of those before."""
    status: Literal["open", "decided"] = "open"
    verdict: str | None = None
    """The last, also of an open one."""
    baseline: tuple[StoredLaunch, ...] = ()
    candidate: tuple[StoredLaunch, ...] = ()
    prior: dict[str, PriorRow]
    created: AwareDatetime
    updated: AwareDatetime


class StoredNoise(_Remembered):
    """How the launches of one arm of one job varied."""

    created: AwareDatetime
    spread: dict[str, tuple[FiniteFloat, int]]
    """Metric → (variance of one launch's log value, launches that it rests on, two or more)."""
    within: dict[str, FiniteFloat] = Field(default_factory=dict)
    """Metric → variance between the log values of replays of one launch."""
    replays: int = 1
    """Per launch."""


class _Noise(_File):
    key: dict[str, str]
    groups: tuple[StoredNoise, ...] = ()


class Durations(_File):
    """Seconds that launches of one server and replays of its tests have taken, oldest first."""

    launch_s: tuple[FiniteFloat, ...] = ()
    replay_s: dict[str, tuple[FiniteFloat, ...]] = Field(default_factory=dict)
    """By node id."""
    noise: dict[str, dict[str, str]] = Field(default_factory=dict)
    """By node id: where the noise of that test on this server is kept."""


class _Undecided(_File):
    test: str
    runs: int = Field(default=0, ge=0)


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
        found, _ = self._read(_path("noise", key), _Noise)
        return () if found is None or found.key != asdict(key) else self._recent(found.groups)

    def learn(self, key: NoiseKey, groups: Sequence[StoredNoise]) -> None:
        """Add what a job showed, one group per arm; one without a metric tells nothing and is left out."""
        telling = [group for group in groups if group.spread]

        def add(found: _Noise) -> _Noise:
            before = found.groups if found.key == asdict(key) else ()
            return _Noise(key=asdict(key), groups=self._recent((*before, *telling)))

        self._update(_path("noise", key), _Noise(key=asdict(key)), add)

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
            tests = {test: (*found.replay_s.get(test, ()), *taken)[-TIMES_KEPT:] for test, taken in replay_s.items()}
            launches = (*found.launch_s, *launch_s)[-TIMES_KEPT:]
            keys = {test: asdict(key) for test, key in noise.items()}
            replays = {**found.replay_s, **tests}
            return Durations(launch_s=launches, replay_s=replays, noise={**found.noise, **keys})

        self._update(_path("durations", server), Durations(), add)

    def undecided(self, test: str) -> int:
        """Runs of the test in a row that ended undecided; from ``BLIND`` on its gate is blind."""
        found, _ = self._read(_path("undecided", test), _Undecided)
        return 0 if found is None else found.runs

    def count(self, test: str, *, undecided: bool) -> int:
        """One more run: the number of undecided ones in a row, 0 after a decided one."""
        after = self._update(
            _path("undecided", test),
            _Undecided(test=test),
            lambda found: _Undecided(test=test, runs=found.runs + 1 if undecided else 0),
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


def _path(kind: str, key: SequenceKey | NoiseKey | str) -> str:
    text = key if isinstance(key, str) else repr(sorted(asdict(key).items()))
    return f"{STATE}/{kind}/{sha256(text.encode('utf-8', 'surrogatepass')).hexdigest()[:24]}.json"
