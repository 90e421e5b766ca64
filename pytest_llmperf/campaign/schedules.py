"""The order of launches in a comparison: stored (two, then three of the candidate), interleaved, two running servers.

Launches are shared: each serves the loads of all tests that are still open, and a decided test leaves. A launch or
block that cannot be judged (invalid trial, a server that died) is discarded and run again, a few times at most.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, final

from pytest_llmperf.campaign.case import Case, Served
from pytest_llmperf.campaign.rig import Arm, Rig
from pytest_llmperf.errors import LlmperfError, ServerDiedError, ServerStartError
from pytest_llmperf.identity import Identity
from pytest_llmperf.measured import launch_values
from pytest_llmperf.plan import ServerSpec
from pytest_llmperf.server.provision import provision

__all__ = ["Budget", "Interleaving", "Start", "provided", "run_interleaved", "run_pair", "run_stored"]

FIRST: Final[tuple[tuple[Arm, Arm], tuple[Arm, Arm]]] = (("baseline", "candidate"), ("candidate", "baseline"))


@final
@dataclass(slots=True)
class Budget:
    """Time that a campaign may take; a block begins only if one of the usual length still fits."""

    seconds: float | None
    began: float = field(default_factory=time.monotonic)
    longest: float = 0.0

    def fits(self) -> bool:
        return self.seconds is None or time.monotonic() - self.began + self.longest <= self.seconds

    def note(self, seconds: float) -> None:
        """A block took this long."""
        self.longest = max(self.longest, seconds)


@dataclass(frozen=True, slots=True)
class Start:
    """Where a job of interleaved blocks begins: after those that earlier runs of the sequence have done."""

    block: int
    order: int


@dataclass(frozen=True, slots=True)
class Interleaving:
    """What a job of interleaved blocks is told."""

    specs: Mapping[Arm, ServerSpec]
    seed: int
    """Decides which arm goes first in the first block."""
    budget: Budget
    session: str
    begin: Callable[[Identity, Identity], Start]
    """Asked after the priming launches, before any load, with what the baseline and the candidate are. It finishes the
    cases whose arms differ in more than was declared."""
    look: Callable[[Case], None]
    """Judge the case by its blocks so far, and store them."""


def provided(cases: Sequence[Case], specs: Sequence[ServerSpec]) -> bool:
    """Whether all that these servers need is here; where not, every case has the trouble as its error."""
    try:
        for spec in specs:
            provision(spec)
    except LlmperfError as error:
        for case in cases:
            case.error = error
        return False
    return True


def run_stored(
    rig: Rig, cases: Sequence[Case], spec: ServerSpec, *, session: str, look: Callable[[Case, Identity], None]
) -> None:
    """Launches of the candidate until every case has as many as it wants; ``look`` is asked after each of them.

    ``look`` may raise ``wanted`` or finish the case.
    """
    order = 0
    while active := [case for case in cases if case.open and len(case.values["candidate"]) < case.wanted]:
        if not _started(rig, active, spec, "candidate", order):
            return
        for case in active:
            served = _serve(rig, case, "candidate", order=order, block=order, session=session)
            if served is None:
                continue
            if served.fault is not None:
                case.discard(rig, [served], served.fault)
                continue
            if served.errs:
                case.suspects.append(served.values)
            case.take(served)
            look(case, case.identities["candidate"])
        order += 1


def run_interleaved(rig: Rig, cases: Sequence[Case], how: Interleaving) -> None:
    """Blocks of two fresh launches, one per arm, in the order ABBA, until every case is decided or the time is over."""
    found = _prime(rig, cases, how)
    if found is None:
        return
    start = how.begin(*found)
    block, order = start.block, start.order
    arms = FIRST[(how.seed + block) % 2]
    while active := [case for case in cases if case.open]:
        if not how.budget.fits():
            for case in active:
                case.end("INCONCLUSIVE", "the time budget is spent")
            return
        began = time.monotonic()
        got: dict[str, list[Served]] = {case.plan.nodeid: [] for case in active}
        for arm in arms:
            if not _started(rig, active, how.specs[arm], arm, block):
                return
            for case in active:
                if not case.open or len(got[case.plan.nodeid]) < arms.index(arm):
                    continue  # its block is lost already
                served = _serve(rig, case, arm, order=order, block=block, session=how.session)
                if served is not None:
                    got[case.plan.nodeid].append(served)
            rig.stop()
            order += 1
        how.budget.note(time.monotonic() - began)
        for case in active:
            _close_block(rig, case, got[case.plan.nodeid], how)
        block, arms = block + 1, (arms[1], arms[0])


def _close_block(rig: Rig, case: Case, block: Sequence[Served], how: Interleaving) -> None:
    """Take a whole and sound block, and look; discard any other."""
    if not case.open:
        return
    if len(block) < 2:
        return  # lost, and noted so where it was
    faults = [f"{each.arm}: {each.fault}" for each in block if each.fault is not None]
    faults += [
        f"baseline: {each.values.n_failed} of {each.values.n_requests} requests failed"
        for each in block
        if each.arm == "baseline" and each.errs
    ]
    if faults:
        case.discard(rig, block, "; ".join(faults))
        return
    erring = [each.values for each in block if each.arm == "candidate" and each.errs]
    if erring:
        case.suspects += erring
        if len(case.suspects) < 2:
            case.discard(rig, block, "candidate: more than 1 % of the requests failed; the block is run again")
            return
    for each in block:
        case.take(each)
    how.look(case)


def run_pair(rig: Rig, case: Case, specs: Mapping[Arm, ServerSpec], replays: int, *, session: str) -> None:
    """Alternating replays of one test on two running servers, in the order ABBA."""
    arms = FIRST[case.plan.seed % 2]
    for block in range(replays):
        got = []
        for place, arm in enumerate(arms):
            if not _started(rig, [case], specs[arm], arm, block):
                return
            served = _serve(rig, case, arm, order=2 * block + place, block=block, session=session, replays=1)
            rig.stop()
            if served is None:
                return
            got.append(served)
        faults = [f"{each.arm}: {each.fault}" for each in got if each.fault is not None]
        if faults:
            case.discard(rig, got, "; ".join(faults))
        else:
            for each in got:
                case.take(each)
        arms = (arms[1], arms[0])


def _prime(rig: Rig, cases: Sequence[Case], how: Interleaving) -> tuple[Identity, Identity] | None:
    """One unjudged launch of each arm: caches are warm then, and what the arms are is known before a load is paid."""
    active = [case for case in cases if case.open]
    found: list[Identity] = []
    for arm in FIRST[0]:
        if not _started(rig, active, how.specs[arm], arm, None, priming=True):
            return None
        assert rig.live is not None
        found.append(rig.live.identity)
        rig.stop()
    return found[0], found[1]


def _started(
    rig: Rig, cases: Sequence[Case], spec: ServerSpec, arm: Arm, block: int | None, *, priming: bool = False
) -> bool:
    """Whether a fresh launch is there, on the second attempt if need be; where not, every case has what happened as
    its error."""
    try:
        try:
            live = rig.start(spec, arm, block, priming=priming)
        except ServerStartError:
            live = rig.start(spec, arm, block, priming=priming)
    except LlmperfError as error:
        for case in cases:
            case.error = error
            case.unstarted = arm if isinstance(error, ServerStartError) else None
        return False
    for case in cases:
        case.identities.setdefault(arm, live.identity)
    return True


def _serve(
    rig: Rig, case: Case, arm: Arm, *, order: int, block: int, session: str, replays: int | None = None
) -> Served | None:
    """The load of one test on the live launch; None where it broke off.

    Texts depend on block and replay, not on the arm: both arms are asked the same.
    """
    if rig.live is None:  # died under the test before
        return None
    launch, ready_s = rig.number, rig.live.time_to_ready
    plan = case.plan.model_copy(update={"server": rig.live.spec})
    numbers = range(replays or case.plan.replays or 1)
    try:
        trials = tuple(rig.replay(plan, number, f"{plan.nodeid}/{block}/{number}") for number in numbers)
    except ServerDiedError as death:
        rig.stop(death.what)
        case.lose(rig, launch, arm, death)
        return None
    except LlmperfError as error:
        case.error = error
        return None
    reports = tuple(each for each in rig.trials(case.plan) if each.launch == launch)
    values = launch_values(case.plan, trials, ready_s, order=order, block=block, session=session)
    return Served(arm, launch, trials, reports, ready_s, values)
