"""What a campaign takes from the store of baselines and leaves in it: partners, sequences, noise, times, refreshes."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, final

from pytest_llmperf.baseline.keys import Key, slug
from pytest_llmperf.baseline.provenance import Provenance, utc_now
from pytest_llmperf.baseline.schema import Entry, Session, StoredLaunch
from pytest_llmperf.baseline.select import Partner, select
from pytest_llmperf.baseline.state import BLIND, Durations, NoiseKey, PriorRow, SequenceKey, State, StoredNoise
from pytest_llmperf.baseline.store import Store
from pytest_llmperf.campaign.case import Case
from pytest_llmperf.campaign.rig import Arm
from pytest_llmperf.catalog import metric
from pytest_llmperf.differences import with_test, workload_digest
from pytest_llmperf.gate import VerdictName
from pytest_llmperf.identity import Identity
from pytest_llmperf.plan import Plan, ServerSpec
from pytest_llmperf.result import LaunchReport, TrialReport
from pytest_llmperf.stats.launches import LaunchValues
from pytest_llmperf.stats.prior import NoiseGroup, Prior

__all__ = ["Found", "Memory", "Missing", "from_stored", "stored_launch"]

RUNNER: Final = ("gpu", "gpu_count", "driver", "host", "pool")
"""Environment facts that together are a runner: a change of any of them makes its noise unknown."""


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
        notes = []
        if len(found.entry.sessions) == 1:
            notes.append(
                "the baseline is one session: it rarely acquits and convicts of gross changes only; refresh it on "
                "other days"
            )
        launches, left_out = _comparable(found.entry)
        if left_out:
            notes.append(f"stored by another definition, so not compared: {', '.join(left_out)}")
        return Found(
            identity=found.entry.identity(),
            launches=launches,
            explanation=found.explanation,
            variable=f"version: {found.key.version} → {key.version}" if other else None,
            notes=tuple(notes),
        )

    def prior(self, identity: Identity, plan: Plan) -> Prior:
        """How this runner has varied for this load."""
        groups = self._state.noise(noise_key(identity, plan))
        return Prior.from_history([NoiseGroup(each.created.timestamp(), each.spread) for each in groups])

    def learn(self, case: Case) -> None:
        """How the launches of this job varied, for the priors of later ones."""
        arms = [case.values["candidate"]]
        if case.ready_s["baseline"]:  # launched here, not stored
            arms.append(case.values["baseline"])
        telling, now = [arm for arm in arms if len(arm) > 1], utc_now()
        identity = case.identities.get("candidate")
        if identity is None or not telling or not self._state.writable:
            return
        self._state.learn(
            noise_key(identity, case.plan),
            [StoredNoise(created=now, spread=dict(NoiseGroup.of(arm, now.timestamp()).spread)) for arm in telling],
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
            pool=self.pool,
            config=hashlib.sha256(repr((case.config, case.plan.replays)).encode()).hexdigest()[:16],
        )
        rows = {name: PriorRow(s0_squared=s0, d0=d0) for name, (s0, d0) in case.prior.items() if s0 > 0}
        case.sequence = sequence = self._state.begin(key, rows)
        case.prior = Prior({name: (row.s0_squared, row.d0) for name, row in sequence.prior.items()})
        case.values = {
            "baseline": [from_stored(each, "") for each in sequence.baseline],
            "candidate": [from_stored(each, "") for each in sequence.candidate],
        }
        if sequence.candidate:
            case.notes.append(f"continues a sequence of {len(sequence.candidate)} blocks")
        if sequence.number > 1:
            case.notes.append(f"sequence {sequence.number} for this pair; before: {', '.join(sequence.earlier)}")
        if not self._state.writable:
            case.notes.append(f"sequence not continued: {self.store.location} is not writable")

    def save(self, case: Case) -> None:
        """The blocks so far; a decided sequence is closed."""
        if case.sequence is None or not self._state.writable:
            return
        judged = case.judgement
        decided = judged is not None and (
            judged.result in ("PASS", "FAIL") or len(case.values["candidate"]) >= case.config.max_blocks
        )
        case.sequence = self._state.save(
            case.sequence.model_copy(
                update={
                    "baseline": tuple(map(stored_launch, case.values["baseline"])),
                    "candidate": tuple(map(stored_launch, case.values["candidate"])),
                    "status": "decided" if decided else "open",
                    "verdict": None if judged is None else judged.result,
                }
            )
        )

    # --- times and runs

    def durations(self, spec: ServerSpec) -> Durations:
        """Of earlier launches of this specification."""
        return self._state.durations(_digest(spec))

    def note_times(
        self,
        specs: Mapping[Arm, ServerSpec],
        launches: Sequence[LaunchReport],
        trials: Mapping[str, Sequence[TrialReport]],
        cases: Sequence[Case],
    ) -> None:
        """How long the launches and replays of a campaign took, for the plans of later ones."""
        if not self._state.writable:
            return
        for arm, spec in specs.items():
            own = {launch.index for launch in launches if launch.arm == arm}
            ready = [
                launch.time_to_ready_s
                for launch in launches
                if launch.index in own and launch.time_to_ready_s is not None
            ]
            replays = {
                nodeid: [trial.client.wall_seconds for trial in each if trial.launch in own]
                for nodeid, each in trials.items()
            }
            noise = {
                case.plan.nodeid: noise_key(case.identities[arm], case.plan) for case in cases if arm in case.identities
            }
            if ready:
                known = {name: each for name, each in replays.items() if each}
                self._state.note_durations(_digest(spec), ready, known, noise)

    def last_priors(self, spec: ServerSpec, plans: Sequence[Plan]) -> Prior | None:
        """The prior of the first test that ran on ``spec`` here before; None where none did."""
        keys = self.durations(spec).noise
        for plan in plans:
            key = keys.get(plan.nodeid)
            if key is not None and (groups := self._state.noise(NoiseKey(**key))):
                return Prior.from_history([NoiseGroup(each.created.timestamp(), each.spread) for each in groups])
        return None

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
            launches=tuple(
                stored_launch(each).model_copy(update={"replays": case.plan.replays or 1})
                for each in case.values["candidate"]
            ),
        )


def noise_key(identity: Identity, plan: Plan) -> NoiseKey:
    return NoiseKey(
        runner=" | ".join(identity.value(name) for name in RUNNER),
        workload=workload_digest(plan),
        engine=identity.value("engine"),
        quantization=identity.value("quantization"),
    )


def stored_launch(launch: LaunchValues) -> StoredLaunch:
    """Infinite values become None: no finite value."""
    return StoredLaunch(
        order=launch.order,
        block=launch.block,
        n_requests=launch.n_requests,
        n_failed=launch.n_failed,
        n_tokens=launch.n_tokens,
        metrics={name: value if math.isfinite(value) else None for name, value in sorted(launch.metrics.items())},
        time_to_ready_s=launch.metrics.get("time_to_ready"),
    )


def from_stored(launch: StoredLaunch, session: str) -> LaunchValues:
    return LaunchValues(
        metrics={name: math.inf if value is None else value for name, value in launch.metrics.items()},
        order=launch.order,
        block=launch.block,
        session=session,
        n_requests=launch.n_requests,
        n_failed=launch.n_failed,
        n_tokens=launch.n_tokens,
    )


def _comparable(entry: Entry) -> tuple[tuple[LaunchValues, ...], list[str]]:
    """The launches without the metrics whose definition has changed since, and these."""
    changed = []
    for name, definition in entry.definitions.items():
        try:
            if metric(name).definition != definition:
                changed.append(name)
        except KeyError:  # of another catalog
            changed.append(name)
    launches = []
    for session in entry.sessions:
        for each in session.launches:
            kept = {name: value for name, value in each.metrics.items() if name not in changed}
            launches.append(from_stored(each.model_copy(update={"metrics": kept}), session.id))
    return tuple(launches), sorted(changed)


def _digest(spec: ServerSpec) -> str:
    return hashlib.sha256(spec.model_dump_json().encode()).hexdigest()[:16]


def _plugin_version() -> str:
    from importlib.metadata import version

    return version("pytest-llmperf")
