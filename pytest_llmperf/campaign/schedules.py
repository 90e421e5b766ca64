"""The order of launches in a comparison: stored (two, then three of the candidate), interleaved, two running servers.

Launches are shared: each serves the loads of all tests that are still open, and a decided test leaves. A launch or
block that cannot be judged (invalid trial, a server that died) is discarded and run again, a few times at most.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pytest_llmperf.campaign.budget import Budget
from pytest_llmperf.campaign.case import Case, Served
from pytest_llmperf.campaign.rig import Arm, Rig
from pytest_llmperf.differences import changes
from pytest_llmperf.errors import LlmperfError, ServerDiedError, ServerStartError, ServerTakenError
from pytest_llmperf.identity import Identity
from pytest_llmperf.measured import launch_values
from pytest_llmperf.plan import ServerSpec
from pytest_llmperf.server.caches import cold

__all__ = ["Interleaving", "Start", "provided", "run_interleaved", "run_pair", "run_stored"]

FIRST: Final[tuple[tuple[Arm, Arm], tuple[Arm, Arm]]] = (("baseline", "candidate"), ("candidate", "baseline"))


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


def provided(rig: Rig, cases: Sequence[Case], specs: Sequence[ServerSpec]) -> bool:
    """Whether all that these servers need is here; where not, every open case has the trouble as its error."""
    try:
        rig.require(specs)
    except LlmperfError as error:
        _fail(cases, error)
        return False
    return True


def run_stored(
    rig: Rig,
    cases: Sequence[Case],
    spec: ServerSpec,
    *,
    session: str,
    budget: Budget,
    meet: Callable[[Case], None],
    look: Callable[[Case], None],
) -> None:
    """Launches of the candidate until every case has as many as it wants.

    ``meet`` is asked once for each case, when its server is known: it finds what the case is compared with. ``look``
    is asked after each of its launches. Both may raise ``wanted`` or finish the case.
    """
    if cold(spec):
        if not _started(rig, cases, spec, "candidate", None, priming=True):
            return
        rig.stop()
    order, met = 0, set[str]()
    while active := [case for case in cases if case.open and len(case.values["candidate"]) < case.wanted]:
        if order and not budget.fits():
            _end(active, "the time budget is spent")
            return
        began = time.monotonic()
        if not _started(rig, active, spec, "candidate", order):
            return
        for case in active:
            if case.plan.nodeid not in met:
                met.add(case.plan.nodeid)
                _asked(case, meet)
            if not case.open:
                continue
            served = _serve(rig, case, "candidate", order=order, block=order, session=session)
            if served is not None and _sound(rig, case, [served]):
                case.take(served)
                _asked(case, look)
        budget.note(time.monotonic() - began)
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
            _end(active, "the time budget is spent")
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
            _close_block(rig, case, got[case.plan.nodeid], how.look)
        block, arms = block + 1, (arms[1], arms[0])


def run_pair(
    rig: Rig,
    case: Case,
    specs: Mapping[Arm, ServerSpec],
    replays: int,
    *,
    session: str,
    budget: Budget,
    meet: Callable[[Case], None],
    look: Callable[[Case], None],
) -> None:
    """Alternating replays of one test on two running servers, in the order ABBA; ``look`` is asked at the end.

    ``meet`` is asked when both servers are known, before any load.
    """
    arms, block = FIRST[case.plan.seed % 2], 0
    for arm in arms:
        if not _started(rig, [case], specs[arm], arm, None, priming=True):
            return
        rig.stop()
    _asked(case, meet)
    while case.open and len(case.values["candidate"]) < replays:
        if not budget.fits():
            _end([case], "the time budget is spent")
            return
        began, got = time.monotonic(), list[Served]()
        for place, arm in enumerate(arms):
            if len(got) == place and _started(rig, [case], specs[arm], arm, block):
                served = _serve(rig, case, arm, order=2 * block + place, block=block, session=session, replays=1)
                rig.stop()
                if served is not None:
                    got.append(served)
        budget.note(time.monotonic() - began)
        _close_block(rig, case, got, lambda _: None)
        block, arms = block + 1, (arms[1], arms[0])
    if case.open:
        _asked(case, look)


def _close_block(rig: Rig, case: Case, block: Sequence[Served], look: Callable[[Case], None]) -> None:
    """Take a whole and sound block, and look; discard any other."""
    if len(block) < 2 or not case.open:
        for each in block:
            rig.discard(case.plan, each.launch, "the other launch of its block is lost")
    elif _sound(rig, case, block):
        for each in block:
            case.take(each)
        _asked(case, look)


def _sound(rig: Rig, case: Case, launches: Sequence[Served]) -> bool:
    """Whether these launches count; if not they are discarded, to be run again.

    Too many errors of the candidate may be luck once; a second launch with them is a FAIL. Where nothing is compared
    the limits judge them.
    """
    erring = [each for each in launches if each.errs and case.strict]
    own = [each for each in erring if each.arm == "candidate"]
    case.suspects += [each.values for each in own]
    if own and len(case.suspects) > 1:
        case.end("FAIL", f"{_errors(own[0])}, in {len(case.suspects)} launches of the candidate", regressed=("errors",))
    faults = [f"{each.arm}: {each.fault}" for each in launches if each.fault is not None]
    faults += [f"{each.arm}: {_errors(each)}" for each in erring]
    if faults:
        case.discard(rig, launches, "; ".join(faults))
    return not faults


def _errors(served: Served) -> str:
    return f"{served.values.n_failed} of {served.values.n_requests} requests failed"


def _asked(case: Case, what: Callable[[Case], None]) -> None:
    """Trouble with the baseline of one test is the trouble of that test."""
    try:
        what(case)
    except LlmperfError as error:
        case.error = error


def _end(cases: Sequence[Case], reason: str) -> None:
    for case in cases:
        case.end("INCONCLUSIVE", reason)


def _fail(cases: Sequence[Case], error: LlmperfError, unstarted: Arm | None = None) -> None:
    for case in cases:
        if case.open:
            case.error, case.unstarted = error, unstarted


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
        _fail(cases, error, arm if isinstance(error, ServerStartError) else None)
        return False
    for case in cases:
        if priming:
            case.starts[arm].append(live.start)
        changed = changes(case.identities.setdefault(arm, live.identity), live.identity)
        if changed and case.open:
            case.error = LlmperfError(f"the {arm} is not what it was in an earlier launch: {'; '.join(changed)}")
    return True


def _serve(
    rig: Rig, case: Case, arm: Arm, *, order: int, block: int, session: str, replays: int | None = None
) -> Served | None:
    """The load of one test on the live launch; None where it broke off.

    Texts depend on block and replay, not on the arm: both arms are asked the same.
    """
    if rig.live is None:  # died under the test before
        return None
    live, launch = rig.live, rig.number
    plan = case.plan.model_copy(update={"server": live.spec})
    numbers = range(replays or case.plan.replays or 1)
    try:
        trials = tuple(rig.replay(plan, number, f"{plan.nodeid}/{block}/{number}") for number in numbers)
    except ServerDiedError as death:
        rig.stop(death.what)
        case.lose(rig, launch, arm, death)
        return None
    except ServerTakenError as loss:
        rig.stop(loss.what)
        case.error = loss
        return None
    except LlmperfError as error:
        case.error = error
        return None
    reports = tuple(each for each in rig.trials(case.plan) if each.launch == launch)
    start = live.start  # only now: a log that is followed from elsewhere may tell of it late
    values = launch_values(case.plan, trials, start, order=order, block=block, session=session)
    return Served(arm, launch, trials, reports, start, values)
