"""The error tree. Every message says what happened, with which value, and what would be right.

LlmperfError
├── UsageError            what the user wrote is wrong: pytest's usage or collection error
│   ├── ConfigError       a key of ``[tool.llmperf]``, ``llmperf.toml``, a workload file or ``--llmperf-set``
│   │   └── SuiteError    a key of a suite, ``*.llmperf.toml``
│   └── MarkerError       an argument of a marker
├── BaselineError         a stored baseline that cannot be used: truncated, of another schema, not what its path says
├── InfraError            trouble that says nothing about performance (port taken, disk full, no download)
│   └── ServerTakenError  the server ended by no fault of its own
└── ServerError           the server under test
    ├── ServerStartError  it did not become ready; holds command, exit code and last log lines
    ├── ServerDiedError   it ended while it was needed; the same evidence
    └── TargetError       a running server refused us: wrong URL, 401, unknown model, TLS
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

__all__ = [
    "BaselineError",
    "ConfigError",
    "InfraError",
    "LlmperfError",
    "MarkerError",
    "ServerDiedError",
    "ServerError",
    "ServerStartError",
    "ServerTakenError",
    "SuiteError",
    "TargetError",
    "UsageError",
    "nearest",
]

LOG_LINES_SHOWN: Final = 20


class LlmperfError(Exception):
    """Base of every error that this package raises on purpose; ``str()`` is the whole message."""


class UsageError(LlmperfError):
    """The user's own input is wrong."""


class ConfigError(UsageError):
    """A configuration value is wrong.

    ``where`` names the file (or option), ``key`` the dotted key, ``problem`` the value and what is allowed.
    """

    def __init__(self, where: str, key: str, problem: str) -> None:
        self.where, self.key, self.problem = where, key, problem
        super().__init__(f"{where}: {key}: {problem}" if key else f"{where}: {problem}")


class SuiteError(ConfigError):
    """A suite is wrong. ``where`` is its file as node ids have it, ``key`` e.g. ``tests.chat.sla.ttft_p95``."""


class MarkerError(UsageError):
    """A marker argument is wrong. ``marker`` is e.g. ``sla``, ``argument`` the keyword."""

    def __init__(self, marker: str, argument: str, problem: str) -> None:
        self.marker, self.argument, self.problem = marker, argument, problem
        subject = f"@pytest.mark.{marker}({argument}=...)" if argument else f"@pytest.mark.{marker}"
        super().__init__(f"{subject}: {problem}")


class BaselineError(LlmperfError):
    """A file of the baseline store is refused.

    ``path`` names it, ``problem`` says what is wrong with it, ``remedy`` what to do.
    """

    def __init__(self, path: str, problem: str, remedy: str) -> None:
        self.path, self.problem, self.remedy = path, problem, remedy
        super().__init__(f"{path}: {problem}; {remedy}")


class InfraError(LlmperfError):
    """Trouble of the machine or the network that says nothing about performance."""


class ServerTakenError(InfraError):
    """The server ended while it was needed, by no fault of its own: its container was taken away, a disk is full."""

    def __init__(self, what: str) -> None:
        self.what = what
        super().__init__(what)


class ServerError(LlmperfError):
    """The server under test is in trouble."""


class _ServerProcessError(ServerError):
    def __init__(
        self, what: str, *, command: Sequence[str], exit_code: int | None, log_tail: Sequence[str], log_path: str
    ) -> None:
        self.what, self.command, self.exit_code = what, tuple(command), exit_code
        self.log_tail, self.log_path = tuple(log_tail), log_path
        shown = self.log_tail[-LOG_LINES_SHOWN:]
        code = "still running" if exit_code is None else _exit_text(exit_code)
        lines = [what, f"  command:   {' '.join(self.command)}", f"  exit code: {code}", f"  log:       {log_path}"]
        lines.append(f"  last {len(shown)} log lines:" if shown else "  (no log lines)")
        lines += [f"    {line}" for line in shown]
        super().__init__("\n".join(lines))


class ServerStartError(_ServerProcessError):
    """The server did not become ready."""


class ServerDiedError(_ServerProcessError):
    """The server ended while it was still needed."""


class TargetError(ServerError):
    """A running server refused what we asked. ``url`` is what was asked, without credentials.

    ``status`` is that of HTTP, None where it did not come to one.
    """

    def __init__(self, url: str, problem: str, status: int | None = None) -> None:
        self.url, self.problem, self.status = url, problem, status
        super().__init__(f"{url}: {problem}")


def nearest(word: str, known: Sequence[str]) -> str:
    """``"; did you mean 'x'?"`` for the known word closest to ``word``, else the list of known words."""
    from difflib import get_close_matches

    close = get_close_matches(word, known, n=1, cutoff=0.6)
    return f"; did you mean {close[0]!r}?" if close else f"; known: {', '.join(known)}"


def _exit_text(code: int) -> str:
    """``-9`` as subprocess reports a signal, else the plain number."""
    return f"killed by signal {-code}" if code < 0 else str(code)
