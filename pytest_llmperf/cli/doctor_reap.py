"""``pytest-llmperf doctor reap``: end what launches of this machine left behind, and nothing else."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from typing import Any, Final

from pytest_llmperf.server.leases import Found, Standing, end, forget, lease_folder, leases

__all__ = ["TEXT", "configure"]

TEXT: Final = (
    "list the servers that launches of this user hold on this machine, and end those whose pytest and guard have both "
    "gone; exit status: 0 nothing stale is left, 1 something stale is left (it could not be ended, or --dry-run)"
)
_SAYS: Final[dict[Standing, str]] = {
    "held": "in use: its pytest runs",
    "ending": "its pytest has gone and its guard is ending it",
    "stale": "stale: its pytest and its guard have gone",
    "elsewhere": "of another machine, container or user: not judged from here",
    "unreadable": "no lease that this version can read: left alone",
}


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("--dry-run", action="store_true", help="say what would be ended, and end nothing")
    parser.add_argument("--json", action="store_true", help="print the leases as JSON")
    parser.add_argument(
        "--forget",
        metavar="LEASE",
        help="remove this lease (the path or name of its file) and end nothing: its stop command can no longer work",
    )
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    found = leases()
    if arguments.forget is not None:
        return _forget(arguments.forget, found)
    told, left = [], 0
    for each in found:
        outcome = None
        if each.standing == "stale":
            problem = None if arguments.dry_run else end(each)
            outcome = "would be ended" if arguments.dry_run else f"not ended: {problem}" if problem else "ended"
            left += outcome != "ended"
        told.append((each, outcome))
    if arguments.json:
        print(json.dumps([_row(*each) for each in told], indent=1))
    elif not told:
        print(f"No launch holds anything ({lease_folder()}).")
    else:
        print("\n\n".join(_text(*each) for each in told))
    return 1 if left else 0


def _forget(named: str, found: Sequence[Found]) -> int:
    lease = next((each for each in found if named in (str(each.path), each.path.name, each.path.stem)), None)
    if lease is None:
        print(f"There is no lease {named} in {lease_folder()}.")
        return 1
    problem = forget(lease)
    print(_text(lease, f"not forgotten: {problem}" if problem else "forgotten: what its stop would end may still run"))
    return 1 if problem else 0


def _row(found: Found, outcome: str | None) -> dict[str, Any]:
    lease = found.lease.model_dump(mode="json", exclude={"env"}) if found.lease else None
    running = [pid for pid, _ in found.processes]
    return {
        "path": str(found.path), "standing": found.standing, "running": running, "outcome": outcome, "lease": lease,
    }  # fmt: skip


def _text(found: Found, outcome: str | None) -> str:
    lease = found.lease
    if lease is None:
        return f"{found.path}\n  {_SAYS[found.standing]}"
    lines = [
        f"{lease.server} ({lease.launcher}), since {lease.since}, by pid {lease.owner[0]} on {lease.host}",
        f"  {_SAYS[found.standing]}",
        f"  command:   {' '.join(lease.command)}",
    ]
    if lease.container:
        lines.append(f"  container: {lease.container}")
    elif lease.ended:
        lines.append(f"  stop:      {lease.stop}")
    if found.processes:
        lines.append(f"  running:   {', '.join(f'pid {pid}' for pid, _ in found.processes)}")
    if lease.report:
        lines.append(f"  report:    {lease.report}")
    if outcome:
        lines.append(f"  {outcome}")
    return "\n".join(lines)
