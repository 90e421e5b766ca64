"""What to run next where a comparison ended undecided: one command that can decide, or why there is none."""

from __future__ import annotations

import shlex

from pytest_llmperf.campaign.conclusion import Comparison
from pytest_llmperf.plan import Plan
from pytest_llmperf.variables import unlaunchable_versions

__all__ = ["remedy"]


def remedy(plan: Plan, comparison: Comparison, option: str) -> str:
    """``option``: the ``--llmperf-ab`` or ``--llmperf-against`` of this run, with which a sequence goes on."""
    test = shlex.quote(plan.nodeid)
    if comparison.verdict == "NO_BASELINE":
        return f"pytest {test} --llmperf --llmperf-refresh --llmperf-reason 'first baseline'"
    if comparison.mode == "interleaved":
        judged = comparison.judgement
        if judged is not None and judged.blocks_needed is not None and judged.blocks_needed > comparison.max_blocks:
            return (
                f"about {judged.blocks_needed} blocks would decide: a quieter runner, more replays, a longer load or "
                "wider tolerances"
            )
        return f"within 24 h this goes on where it ended: pytest {test} --llmperf {option}"
    if plan.server.targeted:
        return f"pytest {test} --llmperf --llmperf-ab url=BASELINE_URL,{plan.server.url}"
    old = [each for each in comparison.differences if each.role == "declared" and each.kind == "input"]
    if comparison.variable is not None and old:
        reason = unlaunchable_versions(plan.server)
        if reason is None:
            return f"pytest {test} --llmperf --llmperf-against version={old[0].baseline}"
        return f"launches of both versions side by side would decide, but {reason}"
    return (
        "the same configuration measured on another day or host is all that differs: rerun on the baseline's host, or "
        f"refresh it there first: pytest {test} --llmperf --llmperf-refresh --llmperf-reason 'another day'"
    )
