"""What earlier launches on this runner have shown: how they varied, how long they took."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Final, final

from pytest_llmperf.baseline.provenance import utc_now
from pytest_llmperf.baseline.state import Durations, NoiseKey, State, StoredNoise
from pytest_llmperf.campaign.case import Case
from pytest_llmperf.campaign.replication import replays_for, within_launches
from pytest_llmperf.campaign.rig import Arm
from pytest_llmperf.differences import workload_digest
from pytest_llmperf.identity import Identity
from pytest_llmperf.plan import Plan, ServerSpec
from pytest_llmperf.result import LaunchReport, TrialReport
from pytest_llmperf.stats.launches import LaunchValues
from pytest_llmperf.stats.prior import NoiseGroup, Prior

__all__ = ["RUNNER", "Experience"]

RUNNER: Final = ("gpu", "gpu_count", "driver", "host", "pool")
"""Environment facts that together are a runner: a change of any of them makes its noise unknown."""


@final
class Experience:
    """As the store has it."""

    def __init__(self, state: State) -> None:
        self._state = state

    def prior(self, identity: Identity, plan: Plan) -> Prior:
        """How this runner has varied for this load."""
        groups = self._state.noise(noise_key(identity, plan))
        return Prior.from_history([NoiseGroup(each.created.timestamp(), each.spread) for each in groups])

    def learn(self, case: Case, trials: Sequence[TrialReport], session: str) -> None:
        """How the launches of this job varied, for the priors of later ones.

        Only launches of this run count, and of its blocks those that were not pruned.
        """
        pruned = () if case.judgement is None else case.judgement.blocks_pruned
        arms: dict[Arm, list[LaunchValues]] = {
            arm: [launch for launch in launches if launch.session == session and launch.block not in pruned]
            for arm, launches in case.values.items()
        }
        now = utc_now()
        if not self._state.writable:
            return
        for arm, launches in arms.items():
            identity = case.identities.get(arm)
            if len(launches) < 2 or identity is None:
                continue
            own = [trial for trial in trials if trial.arm == arm and trial.discarded is None]
            group = StoredNoise(
                created=now,
                spread=dict(NoiseGroup.of(launches, now.timestamp()).spread),
                within=within_launches(own),
                replays=case.plan.replays or 1,
            )
            self._state.learn(noise_key(identity, case.plan), [group])

    def replays(self, spec: ServerSpec, plan: Plan, tests: int) -> int | None:
        """Replays per launch that are worth their time for this test, one of ``tests`` that share the launches."""
        times = self.durations(spec)
        key = times.noise.get(plan.nodeid)
        return None if key is None else replays_for(self._state.noise(NoiseKey(**key)), times, plan.nodeid, tests)

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
                launch.start_up.time_to_ready_s
                for launch in launches
                if launch.index in own and launch.start_up.time_to_ready_s is not None
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


def noise_key(identity: Identity, plan: Plan) -> NoiseKey:
    return NoiseKey(
        runner=" | ".join(identity.value(name) for name in RUNNER),
        workload=workload_digest(plan),
        engine=identity.value("engine"),
        quantization=identity.value("quantization"),
    )


def _digest(spec: ServerSpec) -> str:
    return hashlib.sha256(spec.model_dump_json().encode()).hexdigest()[:16]
