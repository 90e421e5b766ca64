"""The command-line options, and the settings that they and the configuration file add up to."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

import pytest

from pytest_llmperf.comparison_options import add_comparison_options, launching_option, read_terms

if TYPE_CHECKING:
    from pytest_llmperf.campaign.terms import Terms
    from pytest_llmperf.settings import Overrides, Settings

__all__ = ["RunOptions", "add_options", "enabled", "is_controller", "read_options", "refuse_shared_workers"]

PLAIN_HELP: Final = "run the performance tests (without it they are skipped)"


@dataclass(frozen=True, slots=True)
class RunOptions:
    """Everything that one invocation was told, file and command line together."""

    settings: Settings
    overrides: Overrides
    clients: int | Literal["auto"] | None
    """From the command line; wins over markers and file."""
    replays: int | None
    """From the command line; wins over markers. The file's value is ``settings.replays``."""
    report_dir: Path
    benchmark_json: Path | None
    """Where the results go in the form of pytest-benchmark."""
    undecided: str
    dry_run: bool
    terms: Terms
    """How tests are compared."""
    store: str | Path
    """Of baselines."""
    worker: str
    """Name of this xdist worker; empty without xdist."""
    gpus: tuple[int, ...]
    """Devices that this xdist worker owns; empty without xdist."""


def add_options(parser: pytest.Parser) -> None:
    group = parser.getgroup("llmperf", "LLM inference server performance")
    group.addoption("--llmperf", action="store_true", default=False, help=PLAIN_HELP)
    group.addoption("--llmperf-server", metavar="NAME", help="server of the configuration that all tests run on")
    group.addoption("--llmperf-url", metavar="URL", help="a running OpenAI-compatible server that all tests run on")
    group.addoption(
        "--llmperf-api-key-env", metavar="NAME", help="environment variable that holds the server's API key"
    )
    group.addoption(
        "--llmperf-set",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="override a key of the server configuration, e.g. max_num_seqs=4, env.NAME=x, limits.first_token='30 s'",
    )
    group.addoption("--llmperf-replays", metavar="N", help="replays of every test's load per launch")
    group.addoption(
        "--llmperf-clients",
        metavar="N|auto",
        help="processes that send the load (default auto: one for every 50,000 tokens/s planned)",
    )
    group.addoption("--llmperf-report", metavar="DIR", help="where the report goes (default: llmperf-report)")
    add_comparison_options(group)
    group.addoption(
        "--llmperf-benchmark-json", metavar="FILE", help="write the results in the form of pytest-benchmark's JSON"
    )
    group.addoption(
        "--llmperf-undecided",
        choices=("warn", "fail"),
        help="what an INCONCLUSIVE or NO_BASELINE test does to the run (default: warn)",
    )
    group.addoption(
        "--llmperf-dry-run",
        action="store_true",
        default=False,
        help="print the campaign and its cost, run nothing",
    )


def enabled(config: pytest.Config) -> bool:
    """Whether the run measures. Raises pytest.UsageError where it was told how, but not that it should."""
    if config.getoption("llmperf"):
        return True
    stray = [argument for argument in config.invocation_params.args if str(argument).startswith("--llmperf-")]
    if stray:
        raise pytest.UsageError(f"{stray[0]} needs --llmperf beside it: without it performance tests are skipped")
    return False


def read_options(config: pytest.Config) -> RunOptions:
    """Settings and command line as one value. Raises ConfigError."""
    from pytest_llmperf.errors import ConfigError
    from pytest_llmperf.settings import Overrides, load_settings

    settings = load_settings(config.rootpath)
    written = config.getoption("llmperf_replays")
    replays = int(written) if written is not None and written.isdecimal() and len(written) < 9 else None
    if written is not None and (replays is None or not 1 <= replays <= 100):
        raise ConfigError("--llmperf-replays", "", f"{written!r} is not a whole number from 1 to 100")
    clients: int | Literal["auto"] | None = None
    asked = config.getoption("llmperf_clients")
    if asked is not None:
        if asked != "auto" and (not asked.isdecimal() or not 1 <= int(asked) <= 256):
            raise ConfigError("--llmperf-clients", "", f"{asked!r} is neither auto nor a whole number from 1 to 256")
        clients = "auto" if asked == "auto" else int(asked)
    report_dir = Path(config.getoption("llmperf_report") or settings.report)
    base = config.invocation_params.dir if config.getoption("llmperf_report") else config.rootpath
    worker = _worker(config)
    return RunOptions(
        settings=settings,
        overrides=Overrides(
            server=config.getoption("llmperf_server"),
            url=config.getoption("llmperf_url"),
            api_key_env=config.getoption("llmperf_api_key_env"),
            assignments=tuple(config.getoption("llmperf_set")),
        ),
        clients=clients,
        replays=replays,
        report_dir=base / report_dir / worker if worker else base / report_dir,
        benchmark_json=_benchmark_json(config, settings),
        undecided=config.getoption("llmperf_undecided") or settings.undecided,
        dry_run=bool(config.getoption("llmperf_dry_run")),
        terms=read_terms(config, settings),
        store=_store(config, settings),
        worker=worker,
        gpus=settings.workers[worker].gpus if worker in settings.workers else (),
    )


def _store(config: pytest.Config, settings: Settings) -> str | Path:
    """A URL as it stands; a folder relative to where the option was given, or to the configuration file."""
    written = config.getoption("llmperf_baselines")
    location = written or settings.baselines
    base = config.invocation_params.dir if written else config.rootpath
    return location if "://" in location else base / location


def _benchmark_json(config: pytest.Config, settings: Settings) -> Path | None:
    from pytest_llmperf.errors import ConfigError

    written = config.getoption("llmperf_benchmark_json")
    base = config.invocation_params.dir if written is not None else config.rootpath
    if (name := written if written is not None else settings.benchmark_json) is None:
        return None
    if not name or (base / name).is_dir():
        where = "--llmperf-benchmark-json" if written is not None else settings.source
        raise ConfigError(where, "" if written is not None else "benchmark_json", f"{name!r} is not the name of a file")
    return base / name


def refuse_shared_workers(config: pytest.Config, told: RunOptions) -> None:
    """Under pytest-xdist every worker must own devices of its own, else loads disturb each other.

    Raises pytest.UsageError.
    """
    count = _workers(config)
    if not count:
        return
    known = told.settings.workers
    names = [told.worker] if told.worker else [f"gw{number}" for number in range(count)]
    missing = [name for name in names if name not in known]
    owned = [gpu for devices in known.values() for gpu in devices.gpus]
    if missing or len(owned) != len(set(owned)):
        fault = f"{', '.join(missing)} own none" if missing else "two workers own the same one"
        raise pytest.UsageError(
            f"--llmperf under pytest-xdist needs devices of its own for every worker ({fault}): run with -n0, or give "
            "[tool.llmperf.workers.gw0] gpus = [0] and so on"
        )
    if count > 1 and (option := launching_option(told.terms)):
        # Launches are shared by all tests of a server, so each worker would run them for the tests of the others too.
        raise pytest.UsageError(f"{option} under pytest-xdist would run every comparison in each worker: run with -n0")


def is_controller(config: pytest.Config) -> bool:
    """Whether this process hands its tests to xdist workers."""
    return not _worker(config) and _workers(config) > 0


def _workers(config: pytest.Config) -> int:
    """How many xdist workers the run has, 0 without xdist."""
    given: dict[str, object] = getattr(config, "workerinput", {})
    return int(str(given.get("workercount") or config.getoption("numprocesses", None) or 0))


def _worker(config: pytest.Config) -> str:
    """The xdist worker's name, "" in a plain run."""
    given: dict[str, object] = getattr(config, "workerinput", {})
    return str(given.get("workerid", ""))
