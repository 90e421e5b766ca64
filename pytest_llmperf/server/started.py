"""What a launcher is given, and what every launcher gives: a started server, wherever it runs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, final

from pytest_llmperf.engines import Engine
from pytest_llmperf.engines.redact import spec_secrets
from pytest_llmperf.plan import ServerSpec
from pytest_llmperf.server.caches import cache_folders
from pytest_llmperf.server.provision import Provisioned

__all__ = ["Order", "StartedServer"]


@final
@dataclass(frozen=True, slots=True)
class Order:
    """One server to be started."""

    spec: ServerSpec
    engine: Engine
    given: Provisioned
    port: int
    """Where it is to listen; a command may put it elsewhere."""
    log_path: Path
    devices: Mapping[str, str] = field(default_factory=dict)
    """Environment variables that name the GPUs it may use."""

    def engine_command(self) -> list[str]:
        """The engine's own command line, with the program that was provisioned."""
        assert self.engine.command is not None  # else it was not provisioned
        # The version that is going to run decides which flags there are.
        spec = self.spec.model_copy(update={"version": self.given.version or self.spec.version})
        command = self.engine.command(spec, self.port, self.given.model)
        if self.given.program:
            command[:1] = self.given.program
        return command

    def environment(self) -> dict[str, str]:
        """Environment variables of the server's process: ours, those of the engine, and what the user says."""
        # Unbuffered: the last lines of a Python engine that crashes are the ones that matter.
        engine = self.engine.environment(self.spec, self.port)
        devices = {"CUDA_VISIBLE_DEVICES": ""} if self.spec.no_gpus else self.devices
        if self.spec.gpus and not devices:  # by the order of the bus, as NVML counts
            devices = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": ",".join(map(str, self.spec.gpus))}
        found = {"PYTHONUNBUFFERED": "1", **os.environ, **engine, **devices, **cache_folders(self.spec)}
        return {**found, **self.spec.env, "HF_HUB_OFFLINE": "1"}

    @property
    def hidden(self) -> frozenset[str]:
        """Secrets that its log must not hold, besides those that names of variables tell."""
        return spec_secrets(self.spec, os.environ)


class StartedServer(Protocol):
    """A server that has been started and is to be ended for sure."""

    log_path: Path
    command: tuple[str, ...]
    """What was started, with secrets replaced."""

    @property
    def pid(self) -> int | None:
        """Process id of the server itself; None where it is not known (yet), or not of this machine."""

    @property
    def exit_code(self) -> int | None:
        """As subprocess counts: negative for a signal. None while it runs, or where it can't be known."""

    @property
    def stop_failed(self) -> str | None:
        """After ``stop``: how ``stop`` of the configuration failed, where nothing else is left."""

    def trouble(self) -> str | None:
        """What of the machine, and not of the server, it came of that it has ended or is not ready; None: nothing."""

    def forgive(self, why: str) -> None:
        """Drop the lease though ``stop`` of the configuration has failed, and say so in the log."""

    def poll(self) -> bool:
        """Whether the server still runs, as far as can be told."""

    def remember(self) -> None:
        """Note what makes up the server now, to be ended whatever becomes of its guard."""

    def log_tail(self, lines: int = 20) -> tuple[str, ...]:
        """The last ``lines`` lines of its log, without colours and secrets."""

    def listens(self, port: int) -> bool | None:
        """Whether the server listens on TCP ``port``; None where that can't be told."""

    def stop(self, grace: float) -> tuple[str, ...]:
        """End all of it: SIGTERM, up to ``grace`` seconds, SIGKILL. May be called twice. What could not be ended."""
