"""What to run next where a comparison ended undecided: one command that can decide, or why there is none."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Final

from pytest_llmperf.campaign.conclusion import Comparison
from pytest_llmperf.comparisons import DifferenceReport
from pytest_llmperf.plan import Plan
from pytest_llmperf.settings.changes import VARIABLES
from pytest_llmperf.variables import unlaunchable_versions

__all__ = ["remedy"]

ELSEWHERE: Final = ("driver", "host", "system", "pool")
REFRESH: Final = "--llmperf-refresh --llmperf-reason"
_NO_VALUES: Final = ("not set", "unknown", "default")


def remedy(plan: Plan, comparison: Comparison, option: str, given: str = "") -> str:
    """``option``: the ``--llmperf-ab`` or ``--llmperf-against`` of this run, with which a sequence goes on.

    ``given``: the options by which this run chose its server, which every command has to repeat. Both are shown as
    they are: secrets are hidden in them.
    """
    test = f"pytest {shlex.quote(plan.nodeid)} --llmperf"
    command = f"{test} {given}" if given else test
    if comparison.verdict == "NO_BASELINE":
        return _first_baseline(plan, command, option)
    if comparison.mode == "interleaved":
        judged = comparison.judgement
        if judged is not None and judged.blocks_needed is not None and judged.blocks_needed > comparison.max_blocks:
            return (
                f"about {judged.blocks_needed} blocks would decide: a quieter runner, more replays, a longer load or "
                "wider tolerances"
            )
        return f"within 24 h this goes on where it ended: {command} {option}"
    if plan.server.targeted:
        if option.startswith("--llmperf-ab"):
            return (
                "a longer load (more requests or duration) shows smaller changes; more servers of each kind, compared "
                "in pairs, tell the change from one unlucky launch"
            )
        return f"{command} --llmperf-ab url=BASELINE_URL,{plan.server.url}"
    changed = [each for each in comparison.differences if each.role == "declared" and each.kind == "input"]
    version = next((each for each in changed if each.name == "version"), None)
    if version is not None:
        reason = unlaunchable_versions(plan.server)
        if reason is None:
            return f"{command} --llmperf-against {shlex.quote(f'version={version.baseline}')}"
        return f"launches of both versions side by side would decide, but {reason}"
    if changed:
        return _side_by_side(test, command, changed)
    if any(each.name in ELSEWHERE for each in comparison.differences):
        return (
            "another host is all that differs: rerun on the baseline's host, or measure it here first: "
            f"{command} {REFRESH} 'on this host'"
        )
    return (
        "nothing that was set differs, so there is nothing to launch side by side: learn how this runner varies with "
        f"pytest-llmperf doctor noise {shlex.quote(plan.nodeid)}, then more replays, a longer load or wider tolerances"
    )


def _first_baseline(plan: Plan, command: str, option: str) -> str:
    """Of the version that was asked for, where one was: a refresh of the candidate would not be it."""
    refresh = f"{REFRESH} 'first baseline'"
    name, _, wanted = shlex.split(option)[-1].partition("=") if option else ("", "", "")
    if not option.startswith("--llmperf-against") or name != "version":
        return f"{command} {refresh}"
    if plan.server.targeted:
        return f"measure version {wanted} and refresh it: {command} --llmperf-url URL_OF_THAT_VERSION {refresh}"
    reason = unlaunchable_versions(plan.server)
    if reason is None:
        chosen = shlex.quote(f"version={wanted}")
        return f"measure version {wanted} and refresh it: {command} --llmperf-set {chosen} {refresh}"
    return f"measure version {wanted} and refresh it; {reason}. With that version configured: {command} {refresh}"


def _side_by_side(test: str, command: str, changed: Sequence[DifferenceReport]) -> str:
    """The baseline's value is set for the run, the candidate's is the one change of its A/B comparison."""
    commands = [
        f"{command} --llmperf-set {shlex.quote(f'{each.name}={each.baseline}')} "
        f"--llmperf-ab {shlex.quote(f'{each.name}={each.candidate}')}"
        for each in changed
        if _settable(each)
    ]
    if len(commands) < len(changed):
        names = ", ".join(f"{each.name} {each.baseline}" for each in changed)
        return (
            f"launches of both side by side would decide: configure a server with the baseline's {names} and one as it "
            f"is now, then: {test} --llmperf-server BASELINE --llmperf-ab server=CANDIDATE"
        )
    return commands[0] if len(commands) == 1 else f"one variable at a time: {'; '.join(commands)}"


def _settable(each: DifferenceReport) -> bool:
    """Whether an option takes the name and both values; one that is not set cannot be unset."""
    named = each.name in VARIABLES or each.name.startswith("env.")
    return named and each.baseline not in _NO_VALUES and each.candidate not in _NO_VALUES
