"""How two identities differ, variable by variable, and what each difference means for a comparison.

A comparison is of one variable. Of the others, inputs and environment must agree, else nothing that it shows can be
laid to the variable; consequences may follow from it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from pytest_llmperf.identity import UNKNOWN, Fact, FactClass, Identity
from pytest_llmperf.plan import Plan

__all__ = ["WHOLE", "Difference", "changes", "differences", "with_test", "workload_digest"]

WHOLE: Final = frozenset({"server", "url"})
"""Declared "variables" that are a whole server: one input may differ, whichever it is."""

Role = Literal["declared", "confounding", "escalating", "came_with", "unverified"]
_ORDER: Final[tuple[Role, ...]] = ("declared", "confounding", "escalating", "came_with", "unverified")
_ESCALATING: Final = frozenset({"driver", "host", "system", "pool"})
_NOT_SET: Final = Fact(value="not set", source="configured")
_ISOLATED_BY: Final = {
    "n_ctx": "max_model_len",
    "max_model_len": "max_model_len",
    "slots": "max_num_seqs",
    "cache_dtype": "kv_cache_dtype",
    "kv_cache_dtype": "kv_cache_dtype",
    "block_size": "block_size",
    "page_size": "block_size",
    "gpu_memory_utilization": "gpu_memory_utilization",
    "dtype": "args.--dtype",
    "tp_size": "tensor_parallel_size",
    "tensor_parallel_size": "tensor_parallel_size",
    "max_num_batched_tokens": "max_num_batched_tokens",
}
"""Consequence → the variable that sets the same thing."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One fact in which two identities differ, or that neither has. Fields as in ``comparisons.DifferenceReport``."""

    name: str
    kind: FactClass
    baseline: str
    candidate: str
    role: Role
    note: str | None = None


def differences(
    baseline: Identity,
    candidate: Identity,
    declared: Collection[str],
    *,
    stored: bool,
    allowed: Collection[str] = (),
) -> tuple[Difference, ...]:
    """Every difference with its role, the weightiest roles first. Where a fact was learnt makes no difference.

    ``declared`` names the facts of the one variable (``"server"`` or ``"url"``: the one input that differs, if it is
    one), ``allowed`` those that may differ besides. ``stored``: the baseline was measured earlier, perhaps on another
    host, so that a differing driver or host asks for launches side by side and is no reproach.
    """
    one_variable = frozenset(declared) | frozenset(allowed)
    found = [
        *_inputs(baseline, candidate, one_variable),
        *_environment(baseline, candidate, one_variable, stored=stored),
        *_consequences(baseline, candidate, one_variable),
    ]
    unnamed = [each for each in found if each.role == "confounding" and each.kind == "input"]
    if WHOLE & frozenset(declared) and len(unnamed) == 1 and UNKNOWN.value not in _sides(unnamed[0]):
        found = [replace(each, role="declared") if each is unnamed[0] else each for each in found]
    return tuple(sorted(found, key=lambda each: _ORDER.index(each.role)))


def with_test(identity: Identity, plan: Plan) -> Identity:
    """``identity`` with what a comparison of this test rests on besides: its load.

    Limits are no part of it, since they change nothing that is measured. Definitions are compared metric by metric,
    where the values are.
    """
    load = Fact(value=workload_digest(plan), source="configured")
    return identity.model_copy(update={"environment": {**identity.environment, "workload": load}})


def workload_digest(plan: Plan) -> str:
    """Sixteen hex digits over everything that makes the requests and their times: equal digests, equal loads.

    Files count by content; neither their paths nor the workload's name matter.
    """
    load = {"workload": plan.workload.model_dump(mode="json"), "load": plan.load.model_dump(mode="json")}
    load["workload"].pop("name", None)
    text = json.dumps([_without_paths(load), plan.seed], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _without_paths(value: Any) -> Any:
    if isinstance(value, Mapping):
        file = "path" in value and "digest" in value
        return {key: _without_paths(each) for key, each in value.items() if not (file and key == "path")}
    return [_without_paths(each) for each in value] if isinstance(value, list | tuple) else value


def _inputs(baseline: Identity, candidate: Identity, one_variable: frozenset[str]) -> Iterator[Difference]:
    ours, theirs = dict(baseline.input), dict(candidate.input)
    for group in ("args", "env"):
        if group in ours or group in theirs:
            # A server that does not tell its flags at all can't be compared flag by flag.
            yield from _input(group, _group(ours, group), _group(theirs, group), one_variable)
            ours, theirs = _without(ours, group), _without(theirs, group)
    for name in sorted(ours.keys() | theirs.keys()):
        absent = _NOT_SET if name.startswith(("args.", "env.")) else UNKNOWN
        yield from _input(name, ours.get(name, absent), theirs.get(name, absent), one_variable)


def _input(name: str, ours: Fact, theirs: Fact, one_variable: frozenset[str]) -> Iterator[Difference]:
    role: Role = "declared" if name in one_variable else "confounding"
    yield from _difference(name, "input", ours, theirs, role)


def _environment(
    baseline: Identity, candidate: Identity, one_variable: frozenset[str], *, stored: bool
) -> Iterator[Difference]:
    for name in sorted(baseline.environment.keys() | candidate.environment.keys()):
        ours, theirs = baseline.environment.get(name, UNKNOWN), candidate.environment.get(name, UNKNOWN)
        role: Role = "escalating" if stored and name in _ESCALATING else "confounding"
        yield from _difference(name, "environment", ours, theirs, "declared" if name in one_variable else role)


def _consequences(baseline: Identity, candidate: Identity, one_variable: frozenset[str]) -> Iterator[Difference]:
    for name in sorted(baseline.consequence.keys() | candidate.consequence.keys()):
        ours, theirs = baseline.consequence.get(name, UNKNOWN), candidate.consequence.get(name, UNKNOWN)
        if (ours.value, theirs.value) == (baseline.value(name), candidate.value(name)) and name in baseline.input:
            continue  # the input as the server repeats it
        key = _ISOLATED_BY.get(name)
        isolates = key is not None and key not in one_variable and theirs.value != UNKNOWN.value
        note = f"to see it alone: pytest --llmperf --llmperf-ab {key}={theirs.value}" if isolates else None
        yield from _difference(name, "consequence", ours, theirs, "came_with", note)


def _difference(
    name: str, kind: FactClass, ours: Fact, theirs: Fact, role: Role, note: str | None = None
) -> Iterator[Difference]:
    unknown = [fact.value == UNKNOWN.value for fact in (ours, theirs)]
    if all(unknown):
        note = "neither side tells it: not verified to be the same"
        yield Difference(name, kind, ours.value, theirs.value, "unverified", note)
    elif ours.value != theirs.value:
        if any(unknown) and kind != "consequence":
            note = f"the {'baseline' if unknown[0] else 'candidate'} does not tell it"
        yield Difference(name, kind, ours.value, theirs.value, role, note)


def _group(facts: Mapping[str, Fact], group: str) -> Fact:
    """All flags (or variables) of one side as one fact."""
    if group in facts:
        return facts[group]
    members = {name.partition(".")[2]: fact.value for name, fact in facts.items() if name.startswith(f"{group}.")}
    listed = " ".join(name if value == "set" else f"{name}={value}" for name, value in sorted(members.items()))
    return Fact(value=listed or "none", source="configured")


def _without(facts: Mapping[str, Fact], group: str) -> dict[str, Fact]:
    return {name: fact for name, fact in facts.items() if name.partition(".")[0] != group}


def _sides(each: Difference) -> tuple[str, str]:
    return each.baseline, each.candidate


def changes(earlier: Identity, later: Identity) -> list[str]:
    """Inputs and environment that differ between two launches of one specification, in words; a fact that only one of
    them has is none."""
    found = []
    for kind in ("input", "environment"):
        before, after = earlier.facts(kind), later.facts(kind)
        for name in before.keys() & after.keys():
            if before[name].value != after[name].value:
                found.append(f"{name} {before[name].value} → {after[name].value}")
    return sorted(found)
