"""What a campaign takes from the store of baselines and leaves in it: partners, sequences, noise, times, refreshes."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import final

from pytest_llmperf.baseline.keys import Key, slug
from pytest_llmperf.baseline.launches import from_stored, stored_launch
from pytest_llmperf.baseline.provenance import Provenance
from pytest_llmperf.baseline.schema import Entry, Session
from pytest_llmperf.baseline.select import Partner, select
from pytest_llmperf.baseline.state import BLIND, PriorRow, SequenceKey, State
from pytest_llmperf.baseline.store import Store
from pytest_llmperf.campaign.case import Case
from pytest_llmperf.campaign.experience import RUNNER, Experience
from pytest_llmperf.catalog import metric
from pytest_llmperf.differences import with_test, workload_digest
from pytest_llmperf.errors import InfraError
from pytest_llmperf.gate import VerdictName
from pytest_llmperf.identity import Identity
from pytest_llmperf.plan import Plan
from pytest_llmperf.stats.launches import LaunchValues
from pytest_llmperf.stats.prior import Prior

__all__ = ["Found", "Memory", "Missing"]


@dataclass(frozen=True, slots=True)
class Found:
    """A stored baseline to compare with."""

    identity: Identity
    launches: tuple[LaunchValues, ...]
    explanation: str
    variable: str | None
    """``version: 0.32.0 → 0.33.0`` where it is of another version."""
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Missing:
    """There is none, and why."""

    reason: str
    nearest: str


@final
class Memory:
    """One store, as one run sees it. Raises BaselineError and InfraError as the store does."""

    def __init__(self, store: Store, provenance: Provenance, pool: str | None, warn: Callable[[str], None]) -> None:
        self.session = provenance.session
        self.store = store
        self.provenance = provenance
        self.pool = pool
        self._warn = warn
        self._state = State(store, warn)
        self.experience = Experience(self._state)
        self._began: dict[str, SequenceKey] = {}
        self._priors: dict[str, dict[str, PriorRow]] = {}

    def has(self, plans: Sequence[Plan]) -> bool:
        """Whether the store holds a baseline of one of these tests, of whatever server."""
        names = {f"{slug(plan.nodeid)}.json" for plan in plans}
        return any(path.rpartition("/")[2] in names for path in self.store.paths())

    def partner(self, identity: Identity, plan: Plan, against: str) -> Found | Missing:
        """The stored baseline of a test that ran on ``identity``."""
        key = Key.of(identity, plan.nodeid)
        found = select(self.store, key, identity, against)
        if not isinstance(found, Partner):
            return Missing(found.explanation, "" if found.nearest is None else f"nearest: {found.nearest}")
        other = found.key.version != key.version
        launches, notes = _comparable(found.entry)
        return Found(
            identity=found.entry.identity(),
            launches=launches,
            explanation=found.explanation,
            variable=f"version: {found.key.version} → {key.version}" if other else None,
            notes=tuple(notes),
        )

    # --- sequences

    def resume(self, case: Case) -> None:
        """Blocks and prior of the undecided sequence of this pair, where an earlier run has left one."""
        baseline, candidate = case.identities["baseline"], case.identities["candidate"]
        key = SequenceKey(
            baseline=baseline.digest(),
            candidate=candidate.digest(),
            test=case.plan.nodeid,
            workload=workload_digest(case.plan),
            pool=" | ".join((self.pool or "", *(candidate.value(name) for name in RUNNER))),
            config=_written(case),
        )
        rows = {name: PriorRow(s0_squared=s0, d0=d0) for name, (s0, d0) in case.prior.items()}
        case.sequence = sequence = self._state.begin(key, rows)
        if sequence.candidate and set(case.config.tolerances) <= set(sequence.metrics):  # fixed before its first block
            case.config = replace(case.config, metrics=sequence.metrics, max_blocks=sequence.max_blocks)
        else:
            case.sequence = sequence.model_copy(
                update={"metrics": case.config.metrics or (), "max_blocks": case.config.max_blocks}
            )
        case.prior = Prior({name: (row.s0_squared, row.d0) for name, row in sequence.prior.items()})
        case.values = {
            "baseline": [from_stored(each, "") for each in sequence.baseline],
            "candidate": [from_stored(each, "") for each in sequence.candidate],
        }
        if sequence.candidate:
            # The replays of its first block are those of all.
            case.plan = case.plan.model_copy(update={"replays": sequence.candidate[0].replays})
            case.notes.append(f"continues a sequence of {len(sequence.candidate)} blocks")
        if sequence.number > 1:
            case.notes.append(f"sequence {sequence.number} for this pair; before: {', '.join(sequence.earlier)}")
        if not self._state.writable:
            case.notes.append(f"sequence not continued: {self.store.location} is not writable")

    def save(self, case: Case) -> None:
        """The blocks so far; a decided sequence is closed."""
        if case.sequence is None or not self._state.writable:
            return
        judged, replays = case.judgement, case.plan.replays or 1
        decided = judged is not None and judged.result != "CONTINUE"
        sequence = case.sequence.model_copy(
            update={
                "baseline": tuple(stored_launch(each, replays) for each in case.values["baseline"]),
                "candidate": tuple(stored_launch(each, replays) for each in case.values["candidate"]),
                "status": "decided" if decided else "open",
                "verdict": judged.result if judged is not None and decided else "INCONCLUSIVE",
            }
        )
        try:
            case.sequence = self._state.save(sequence)
        except InfraError as error:
            case.notes.append(f"sequence not continued: {error}")
            case.sequence = None

    # --- runs

    def count(self, nodeid: str, verdict: VerdictName) -> str | None:
        """One more run of a compared test; what to say where its gate has become blind."""
        if not self._state.writable:
            return None
        runs = self._state.count(nodeid, undecided=verdict in ("INCONCLUSIVE", "NO_BASELINE"))
        if runs < BLIND:
            return None
        return f"this gate is blind: {runs} undecided runs in a row; more blocks, a quieter runner or wider tolerances"

    # --- refresh

    def entry(self, identity: Identity, nodeid: str) -> Entry | None:
        """What is stored for exactly these inputs."""
        file = self.store.read(Key.of(identity, nodeid))
        return None if file is None else file.entries.get(identity.digest())

    def new_session(self, case: Case, reason: str) -> Session:
        """The candidate's launches as a session of a baseline."""
        identity, who = with_test(case.identities["candidate"], case.plan), self.provenance
        return Session(
            id=who.session,
            created=who.created,
            by=who.by,
            reason=reason,
            commit=who.commit,
            node=who.node,
            pool=self.pool,
            plugin_version=_plugin_version(),
            environment=identity.environment,
            consequence=identity.consequence,
            launches=tuple(stored_launch(each, case.plan.replays or 1) for each in case.values["candidate"]),
        )


def _written(case: Case) -> str:
    """Digest of what the user wrote of the gate: not of what follows from earlier runs, which may change."""
    regression = case.plan.regression
    told = None if regression is None else regression.model_dump_json()
    tolerances = sorted((name, each) for name, each in case.config.tolerances.items())
    return hashlib.sha256(repr((told, tolerances, case.replays_given)).encode()).hexdigest()[:16]


def _comparable(entry: Entry) -> tuple[tuple[LaunchValues, ...], list[str]]:
    """The launches of the sessions that ran the newest one's load, and what was left out, in words.

    A metric whose definition has changed since is left out of them.
    """
    changed, notes = [], []
    for name, definition in entry.definitions.items():
        try:
            if metric(name).definition != definition:
                changed.append(name)
        except KeyError:  # of another catalog
            changed.append(name)
    if changed:
        notes.append(f"stored by another definition, so not compared: {', '.join(sorted(changed))}")
    load = _load_of(entry.sessions[-1])
    sessions = [session for session in entry.sessions if _load_of(session) == load]
    if len(sessions) < len(entry.sessions):
        notes.append(f"{len(entry.sessions) - len(sessions)} stored session(s) of another load are left out")
    launches = []
    for session in sessions:
        for each in session.launches:
            kept = {name: value for name, value in each.metrics.items() if name not in changed}
            launches.append(from_stored(each.model_copy(update={"metrics": kept}), session.id))
    return tuple(launches), notes


def _load_of(session: Session) -> str | None:
    fact = session.environment.get("workload")
    return None if fact is None else fact.value


def _plugin_version() -> str:
    from importlib.metadata import version

    return version("pytest-llmperf")
