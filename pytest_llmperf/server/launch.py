"""From a specification to a server that answers: started here, or connected to."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Final, Self, final

from pytest_llmperf.control.client import open_client
from pytest_llmperf.control.identify import read_identity
from pytest_llmperf.control.probe import launched_model
from pytest_llmperf.control.target import base_url, connect, request_headers
from pytest_llmperf.engines import Engine, engine_of
from pytest_llmperf.errors import (
    InfraError,
    LlmperfError,
    ServerDiedError,
    ServerError,
    ServerStartError,
    ServerTakenError,
)
from pytest_llmperf.identity import Fact, Identity
from pytest_llmperf.plan import Launcher, ServerSpec
from pytest_llmperf.records import Endpoint
from pytest_llmperf.samples import StartUp
from pytest_llmperf.server.caches import cold, note_warm
from pytest_llmperf.server.command import start_command
from pytest_llmperf.server.container import start_container
from pytest_llmperf.server.own import start_process
from pytest_llmperf.server.ports import HOST, free_port, require_free
from pytest_llmperf.server.provision import Provisioned, provision
from pytest_llmperf.server.readiness import Progress, await_answer, await_ready, require_own, start_error
from pytest_llmperf.server.started import Order, StartedServer
from pytest_llmperf.server.vacancy import await_vacant, stop_server

__all__ = ["Launch", "launch"]

_LAUNCHERS: Final[dict[Launcher, Callable[[Order], StartedServer]]] = {
    "process": start_process,
    "command": start_command,
    "container": start_container,
}
Watch = Callable[[int], AbstractContextManager[object]]

_ATTEMPTS: Final = 3
_STOP_GRACE: Final = 30.0
_STOP_GRACE_CPU: Final = 10.0
_RETURNED: Final = "; where start returns and leaves the server running, write detached = true, and stop, which ends it"


@final
@dataclass(slots=True)
class Launch:
    """A server that answers. Leaving the ``with`` block stops it if it was started here."""

    spec: ServerSpec
    engine: Engine
    endpoint: Endpoint
    identity: Identity
    command: tuple[str, ...] = ()
    """What was started, secrets replaced; empty for a targeted server."""
    log_path: Path | None = None
    pid: int | None = None
    """The server's own process; its tree hangs below it."""
    start: StartUp = field(default_factory=StartUp)
    _process: StartedServer | None = field(default=None, repr=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def exit_code(self) -> int | None:
        """Of the server's process, as subprocess counts; None while it runs and for a targeted server."""
        return None if self._process is None else self._process.exit_code

    def check_alive(self) -> None:
        """Raise ServerDiedError where the server was started here and has ended, ServerTakenError where by no fault
        of its own."""
        process = self._process
        if process is not None and not process.poll():
            if (trouble := process.trouble()) is not None:
                raise ServerTakenError(
                    f"the server ended while it was still needed: {trouble} (log: {process.log_path})"
                )
            raise ServerDiedError(
                "the server ended while it was still needed",
                command=process.command,
                exit_code=process.exit_code,
                log_tail=process.log_tail(),
                log_path=str(process.log_path),
            )

    def stop(self) -> None:
        """End the server and everything that came of it, if it was started here. May be called twice.

        Raises InfraError where a process outlasts SIGKILL, or ``stop`` of the configuration fails: something may still
        hold a GPU.
        """
        if self._process is None:
            return
        grace = _STOP_GRACE_CPU if self.engine.cpu else _STOP_GRACE
        left = stop_server(self._process, self.spec, self.engine, self.endpoint, grace=grace, answered=True)
        if left:
            raise InfraError(f"{self.spec.name} could not be ended: {', '.join(left)}; see pytest-llmperf doctor reap")


def launch(
    spec: ServerSpec,
    *,
    log_dir: Path,
    on_progress: Progress | None = None,
    provisioned: Provisioned | None = None,
    environment: Mapping[str, Fact] | None = None,
    devices: Mapping[str, str] | None = None,
    watch: Watch | None = None,
) -> Launch:
    """Start the server of ``spec`` (or connect to it, where it has a URL) and return it when it has answered.

    The log goes to a new file in ``log_dir``. ``provisioned`` is what ``provision(spec)`` gave (None: it is asked
    now), ``environment`` what is known of this machine besides its host: GPUs, pool. ``devices`` are variables that let
    it see its GPUs; ``watch`` is given its process id, for a ``with`` block that lasts until it is ready. Raises
    ConfigError for an engine, parameter or model that can't be launched, InfraError for a taken port, ServerStartError
    where the server does not come up, TargetError for a running server that refuses.
    """
    if spec.targeted:
        endpoint, identity = connect(spec)
        return Launch(spec, engine_of(spec.model_copy(update={"engine": endpoint.engine})), endpoint, identity)
    given = provisioned or provision(spec)
    engine = engine_of(spec)
    for attempt in range(1, _ATTEMPTS + 1):
        if spec.port is not None:
            require_free(spec.port)
        port = spec.port or free_port()
        try:
            order = Order(spec, engine, given, port, _new_log(spec, log_dir), devices or {})
            return _start(_Asked(order, on_progress or _no_progress, environment or {}, watch))
        except ServerStartError as error:
            lost_port = error.exit_code is not None and error.exit_code == engine.retry_exit_code
            if lost_port and spec.port is not None:
                require_free(spec.port)  # names who took it meanwhile
            if not lost_port or attempt == _ATTEMPTS:
                raise
    raise AssertionError("unreachable")


@final
@dataclass(frozen=True, slots=True)
class _Asked:
    """What one attempt to start a server is given."""

    order: Order
    on_progress: Progress
    environment: Mapping[str, Fact]
    watch: Watch | None


@final
class _Watched:
    """``watch`` of the server's process, from when its pid is known: a container has none before it runs."""

    def __init__(self, asked: _Asked, process: StartedServer) -> None:
        self._asked, self._process = asked, process
        self._stack, self._begun = ExitStack(), asked.watch is None

    def __enter__(self) -> Self:
        self._look()
        return self

    def __exit__(self, *_: object) -> None:
        self._look()
        self._stack.close()

    def progress(self, seconds: float, line: str) -> None:
        self._look()
        self._asked.on_progress(seconds, line)

    def _look(self) -> None:
        if self._begun or self._asked.watch is None or (pid := self._process.pid) is None:
            return
        self._begun = True
        self._stack.enter_context(self._asked.watch(pid))


def _start(asked: _Asked) -> Launch:
    """One attempt. Whatever goes wrong, nothing of it is left running."""
    order = asked.order
    spec, engine, given = order.spec, order.engine, order.given
    by_command, needs_compiling = spec.launched_by == "command", cold(spec)
    base, host, port, tls = f"http://{HOST}:{order.port}", HOST, order.port, False
    if by_command:
        base, host, port, tls = base_url(spec.ready_at(port))
    headers = request_headers(spec) if by_command else {}
    endpoint, answered = Endpoint(base, host, port, tls, "", engine.name, headers), False
    with open_client(endpoint, ca_file=spec.ca_file, timeout=min(60.0, spec.startup_timeout)) as control:
        if by_command:
            await_vacant(spec, control, engine.ready_path, asked.on_progress)
        begun = time.monotonic()
        process = _LAUNCHERS[spec.launched_by](order)
        try:
            with _Watched(asked, process) as watched:
                await_ready(
                    process,
                    control,
                    engine.ready_path,
                    begun=begun,
                    timeout=spec.startup_timeout,
                    on_progress=watched.progress,
                    returned=_RETURNED if by_command and not spec.detached else "",
                )
                answered = True
                models, name = launched_model(control, endpoint, engine, given.model or spec.model or "")
                endpoint = Endpoint(base, host, port, tls, name, engine.name, headers)
                answer = await_answer(process, control, endpoint, engine.apis)
                time_to_ready = time.monotonic() - begun
                require_own(process, port)
                identity = read_identity(
                    endpoint,
                    spec,
                    engine,
                    client=control,
                    models=models,
                    model_path=Path(given.model) if given.model else None,
                    fingerprint=answer.system_fingerprint,
                    version=given.version,
                    image=given.image or None,
                    environment=asked.environment,
                )
            note_warm(spec)
        except BaseException as error:  # Ctrl-C too
            failure = error
            if isinstance(error, ServerError) and not isinstance(error, ServerStartError):
                failure = start_error(process, f"the server is up but does not answer: {error}")
            left = stop_server(process, spec, engine, endpoint, grace=0, answered=answered)
            if left and isinstance(failure, LlmperfError):
                stays = f"{', '.join(left)} could not be ended; see pytest-llmperf doctor reap"
                raise InfraError(f"{failure}\n{spec.name}: {stays}") from error
            if failure is error:
                raise
            raise failure from error
    return Launch(
        spec=spec,
        engine=engine,
        endpoint=endpoint,
        identity=identity,
        command=process.command,
        log_path=order.log_path,
        pid=process.pid,
        start=StartUp(time_to_ready_s=time_to_ready, cold=needs_compiling),
        _process=process,
    )


def _no_progress(_seconds: float, _line: str) -> None:
    return


def _new_log(spec: ServerSpec, log_dir: Path) -> Path:
    """A log file of its own for every launch: ``<server>-<n>.log`` with the first free number."""
    stem = re.sub(r"[^A-Za-z0-9._-]+", "-", spec.name) or "server"
    number = 1
    while True:
        path = log_dir / f"{stem}-{number}.log"
        try:
            log_dir.mkdir(parents=True, exist_ok=True)
            path.touch(exist_ok=False)
        except OSError as error:
            if path.exists():
                number += 1
                continue
            raise InfraError(f"can't write the server's log {path}: {error}") from error
        return path
