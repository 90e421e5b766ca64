"""What this user's launches on this machine hold, in one file each, so that what none can end any more is found.

``$XDG_STATE_HOME/pytest-llmperf/leases/LAUNCH.json`` (``~/.local/state`` where that is not set). The guard of a launch
writes it before it starts anything and removes it when nothing is left; it stays where guard and pytest were killed
together, or where something could not be ended.
"""

from __future__ import annotations

import datetime
import os
import platform
import shlex
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, Self, final
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, ValidationError, field_validator, model_validator

from pytest_llmperf.engines.folders import home
from pytest_llmperf.engines.redact import redact
from pytest_llmperf.errors import InfraError
from pytest_llmperf.plan import Launcher
from pytest_llmperf.server.sweep import run_ended, survivors, sweep
from pytest_llmperf.server.tree import Process, runs, started

__all__ = ["Found", "Lease", "Standing", "end", "end_all", "forget", "lease_folder", "leases", "new_lease", "noted"]

Standing = Literal["held", "ending", "stale", "elsewhere", "unreadable"]
"""``held``: its pytest runs. ``ending``: its pytest has gone, its guard has not yet. ``stale``: both have gone.
``elsewhere``: of another machine, container or user, and not ours to judge."""

_GRACE: Final = 3.0
_ASK_SECONDS: Final = 10.0
_MOST_PID: Final = 2**31


@final
class Lease(BaseModel):
    """One launch: whose it is, what belongs to it, what ends it. No secrets."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    launch: str
    server: str
    launcher: Launcher
    host: str
    boot: str
    """Of the machine: start times count from it. Empty where it isn't told."""
    namespace: str
    """Of the pids: a container counts its own."""
    user: int
    owner: Process
    """The pytest that launched it."""
    guard: Process | None = None
    leader: Process | None = None
    processes: tuple[Process, ...] = ()
    """All that were below the guard when it last looked."""
    container: str | None = None
    command: tuple[str, ...] = ()
    """What was started, secrets replaced."""
    ended: tuple[str, ...] = ()
    """Ends what runs elsewhere: a container, a job of a cluster."""
    env: dict[str, str] = {}
    """What ``ended`` needs besides the environment of the day, secrets left out."""
    ready: str = ""
    """Where it answers once it is up, of a launch by a command that stays; without keys."""
    cwd: str
    since: str
    report: str = ""

    @field_validator("owner", "guard", "leader")
    @classmethod
    def _is_process(cls, process: Process | None) -> Process | None:
        if process is not None and not 0 < process[0] < _MOST_PID:
            raise ValueError(f"{process[0]} is the pid of no process")
        return process

    @field_validator("processes")
    @classmethod
    def _are_processes(cls, processes: tuple[Process, ...]) -> tuple[Process, ...]:
        for each in processes:
            cls._is_process(each)
        return processes

    @model_validator(mode="after")
    def _can_be_run(self) -> Self:
        words = (*self.ended, self.cwd, *self.env, *self.env.values())
        if any("\0" in word for word in words) or any("=" in name or not name for name in self.env):
            raise ValueError("holds what no command line or environment can")
        return self

    @property
    def path(self) -> Path:
        return lease_folder() / f"{self.launch}.json"

    @property
    def stop(self) -> str:
        """``ended`` as it is shown."""
        return shlex.join(redact(self.ended))


@final
@dataclass(frozen=True, slots=True)
class Found:
    """A lease file and how it stands."""

    path: Path
    standing: Standing
    lease: Lease | None = None
    processes: tuple[Process, ...] = ()
    """What still runs of it, looked for where it is stale."""


def lease_folder() -> Path:
    """Raises InfraError where there is no home folder to put it in."""
    state = os.environ.get("XDG_STATE_HOME") or home("XDG_STATE_HOME") / ".local" / "state"
    return Path(state) / "pytest-llmperf" / "leases"


def new_lease(
    command: Sequence[str],
    *,
    server: str = "server",
    launcher: Launcher = "process",
    report: Path | None = None,
    container: str | None = None,
    ended: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    launch: str | None = None,
    ready: str = "",
) -> Lease:
    """The lease of a launch that is about to be, its folder made. Raises InfraError where that can't be."""
    folder = lease_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        problem = f"the folder of the leases of launched servers, {folder}, can't be made: {error.strerror}"
        raise InfraError(f"{problem}; XDG_STATE_HOME says where it is to be") from error
    return Lease(
        launch=launch or uuid.uuid4().hex,
        server=server,
        launcher=launcher,
        host=platform.node(),
        boot=_boot(),
        namespace=_namespace(),
        user=os.getuid(),
        owner=(os.getpid(), started(os.getpid())),
        container=container,
        command=redact(command),
        ended=tuple(ended),
        env=dict(env or {}),
        ready=ready,
        cwd=str(Path.cwd()),
        since=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        report=str(report.absolute()) if report else "",
    )


def leases() -> tuple[Found, ...]:
    """All leases of this user, oldest first, those that can't be read last."""
    try:
        paths = sorted(lease_folder().glob("*.json"))
    except OSError:
        return ()
    found = [each for each in map(_found, paths) if each is not None]
    return tuple(sorted(found, key=lambda each: each.lease.since if each.lease else "~"))


def end(found: Found) -> str | None:
    """End what a stale lease names, and nothing else, and remove it. What could not be done, or None."""
    lease = found.lease
    if lease is None or found.standing != "stale":
        raise ValueError(f"{found.path} is not stale")
    problems = []
    known = _known(lease) if lease.boot == _boot() else None
    left, failed, _ = end_all(lease, known, {**os.environ, **lease.env}, grace=_GRACE)
    if left:
        problems.append(f"{', '.join(f'pid {pid}' for pid in left)} outlasted SIGKILL")
    if failed and (left or not _over(lease)):
        problems.append(f"{lease.stop}: {failed}")
    if not problems:
        found.path.unlink(missing_ok=True)
    return "; ".join(problems) or None


def end_all(
    lease: Lease, known: Sequence[Process] | None, env: Mapping[str, str], *, grace: float = 0.0
) -> tuple[tuple[int, ...], str | None, str]:
    """End what ``lease`` names, without its guard; ``known`` None: no process of it can be left.

    Returns pids that outlasted SIGKILL, how ``ended`` failed, and what it said. A command of the user's runs first: it
    may need the server running.
    """
    left: tuple[int, ...] = ()
    failed, said = None, ""
    cwd = lease.cwd if Path(lease.cwd).is_dir() else "/"
    if lease.ended and lease.launcher == "command":
        failed, said = run_ended(lease.ended, env, cwd)
    if known is not None:
        left = sweep(lease.launch, known, grace=grace)
    if lease.ended and lease.launcher != "command":
        failed, said = run_ended(lease.ended, env, cwd)
    return left, failed, said


def noted(path: Path) -> tuple[Process, ...]:
    """The processes that the guard wrote into the lease at ``path``; none where it can't be read."""
    try:
        return _known(Lease.model_validate_json(path.read_bytes()))
    except (OSError, ValueError):
        return ()


def forget(found: Found) -> str | None:
    """Remove the lease without ending what it names. Why that may not be, or None."""
    if found.standing in ("held", "ending"):
        return "it is in use"
    if found.processes:
        return "processes of it still run; without --forget they are ended"
    found.path.unlink(missing_ok=True)
    return None


def _over(lease: Lease) -> bool:
    """Whether nothing serves any more where the server of ``lease`` did, as far as can be told without its key."""
    if not lease.ready:
        return False
    from pytest_llmperf.control.client import open_client  # httpx, which the command needs for nothing else
    from pytest_llmperf.control.probe import absent
    from pytest_llmperf.control.target import base_url
    from pytest_llmperf.records import Endpoint

    parts = urlsplit(lease.ready)
    base, host, port, tls = base_url(f"{parts.scheme}://{parts.netloc}")
    with open_client(Endpoint(base, host, port, tls, "", ""), timeout=_ASK_SECONDS) as client:
        return absent(client, parts.path, answered=False)


def _found(path: Path) -> Found | None:
    try:
        lease = Lease.model_validate_json(path.read_bytes())
    except FileNotFoundError:  # removed meanwhile
        return None
    except (OSError, ValidationError):
        return Found(path, "unreadable")
    if lease.host != platform.node() or lease.user != os.getuid():
        return Found(path, "elsewhere", lease)
    if lease.boot != _boot():
        return Found(path, "stale", lease)  # the machine was restarted: no process is left
    if lease.namespace != _namespace():
        return Found(path, "elsewhere", lease)
    if runs(lease.owner):
        return Found(path, "held", lease)
    if lease.guard is not None and runs(lease.guard):
        return Found(path, "ending", lease)
    return Found(path, "stale", lease, tuple(survivors(lease.launch, _known(lease))))


def _known(lease: Lease) -> tuple[Process, ...]:
    return (*((lease.leader,) if lease.leader else ()), *lease.processes)


def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _namespace() -> str:
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return ""
