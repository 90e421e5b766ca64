"""Who takes a baseline, from which commit, where and when."""

from __future__ import annotations

import datetime
import getpass
import platform
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex
from typing import Final

__all__ = ["Provenance", "provenance", "session_id", "utc_now"]

_GIT_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class Provenance:
    """Of one invocation: taken before anything is written, which would make the work tree dirty."""

    by: str
    """Git's user name, else that of the operating system."""
    commit: str | None
    """Forty digits, with ``-dirty`` where tracked files had changed; None outside of a repository."""
    node: str
    created: str
    """ISO 8601, UTC."""
    session: str
    """Begins with its time; unlike any other."""


def provenance(root: Path) -> Provenance:
    """Of a run of the project at ``root``."""
    now = utc_now()
    return Provenance(
        by=_git(root, "config", "user.name") or _os_user(),
        commit=_commit(root),
        node=platform.node() or "unknown",
        created=now.isoformat(timespec="seconds"),
        session=session_id(now),
    )


def utc_now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


def session_id(now: datetime.datetime) -> str:
    """``20270102T030405Z-`` and six random digits."""
    return f"{now.astimezone(datetime.UTC):%Y%m%dT%H%M%SZ}-{token_hex(3)}"


def _commit(root: Path) -> str | None:
    head = _git(root, "rev-parse", "--verify", "HEAD")
    if not head:
        return None
    changed = _git(root, "status", "--porcelain", "--untracked-files=no")
    return f"{head}-dirty" if changed else head


def _git(root: Path, *arguments: str) -> str | None:
    """The answer in one piece; None where git is absent, has none, or hangs."""
    git = shutil.which("git")
    if git is None:
        return None
    try:
        run = subprocess.run(
            [git, "-C", str(root), *arguments], capture_output=True, text=True, check=False, timeout=_GIT_S
        )
    except (OSError, subprocess.TimeoutExpired, UnicodeDecodeError):
        return None
    return run.stdout.strip() or None if run.returncode == 0 else None


def _os_user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a container's user without a name
        return "unknown"
