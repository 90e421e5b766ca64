"""The options of comparisons: what with what, how far it may go, what is stored of it."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Final

import pytest

if TYPE_CHECKING:
    from pytest_llmperf.campaign.terms import Terms
    from pytest_llmperf.settings import Settings

__all__ = ["add_comparison_options", "launching_option", "read_terms"]

NOISE_BLOCKS: Final = (2, 12)
ONE_AT_A_TIME: Final = ("llmperf_ab", "llmperf_against", "llmperf_refresh", "llmperf_noise")


def add_comparison_options(group: pytest.OptionGroup) -> None:
    group.addoption(
        "--llmperf-ab",
        metavar="KEY=VALUE",
        action="append",
        help="launch the server and the same with this one change side by side, e.g. max_num_seqs=32, version=0.33.0, "
        "args.--flag=x, env.NAME=x, variant=fp8, server=other, url=A,B",
    )
    group.addoption(
        "--llmperf-against",
        metavar="latest|none|version=X",
        help="stored baseline to compare with (default latest: the same version, else the highest lower one)",
    )
    group.addoption(
        "--llmperf-allow",
        metavar="KEY",
        action="append",
        default=[],
        help="a field that may differ besides the one variable",
    )
    group.addoption("--llmperf-budget", metavar="TIME", help="most that a campaign may take, e.g. '30 min' or '6 GPUh'")
    group.addoption("--llmperf-baselines", metavar="DIR|URL", help="store of baselines (default: baselines)")
    group.addoption(
        "--llmperf-refresh",
        action="store_true",
        default=False,
        help="store what is measured as a new session of the baseline; needs --llmperf-reason",
    )
    group.addoption("--llmperf-reason", metavar="TEXT", help="why the baseline is refreshed; stored with it")
    group.addoption(
        "--llmperf-replace", action="store_true", default=False, help="with --llmperf-refresh: keep no earlier session"
    )
    group.addoption(
        "--llmperf-force",
        action="store_true",
        default=False,
        help="with --llmperf-refresh: store also launches that look bimodal or not valid",
    )
    group.addoption(
        "--llmperf-noise",
        metavar="BLOCKS",
        help="launch the same server twice in every block, to learn how much this runner varies",
    )


def read_terms(config: pytest.Config, settings: Settings) -> Terms:
    """Command line and configuration file together. Raises ConfigError."""
    from pytest_llmperf.baseline.select import check_against
    from pytest_llmperf.campaign.terms import Terms
    from pytest_llmperf.errors import ConfigError
    from pytest_llmperf.settings.model import Budget
    from pytest_llmperf.variables import parse_allow

    given = [f"--{name.replace('_', '-')}" for name in ONE_AT_A_TIME if config.getoption(name)]
    if len(given) > 1:
        raise ConfigError(given[0], "", f"and {given[1]} exclude each other")
    written_ab = config.getoption("llmperf_ab") or []
    if len(written_ab) > 1:
        problem = "a comparison has one variable; several keys as one are a variant=NAME of the configuration"
        raise ConfigError("--llmperf-ab", ", ".join(written_ab), problem)
    ab = (written_ab[0] if written_ab else None) or (None if given else settings.ab)
    against = config.getoption("llmperf_against") or (None if given else settings.against)
    if ab and against:
        raise ConfigError(settings.source, "ab", "and against exclude each other; keep one of them")
    refresh, reason = bool(config.getoption("llmperf_refresh")), config.getoption("llmperf_reason")
    if refresh and not (reason or "").strip():
        raise ConfigError(
            "--llmperf-refresh", "", "say why with --llmperf-reason 'text'; it is stored with the baseline"
        )
    for name in ("llmperf_reason", "llmperf_replace", "llmperf_force"):
        if config.getoption(name) and not refresh:
            raise ConfigError(f"--{name.replace('_', '-')}", "", "goes with --llmperf-refresh")
    written = config.getoption("llmperf_budget")
    try:
        budget = Budget.parse(written) if written is not None else settings.budget
    except ValueError as error:
        raise ConfigError("--llmperf-budget", "", str(error)) from None
    allowed = config.getoption("llmperf_allow")
    return Terms(
        against=check_against(against or "latest"),
        explicit=against not in (None, "none"),
        ab=ab,
        allow=parse_allow(allowed) if allowed else parse_allow(settings.allow, settings.source),
        budget=budget,
        refresh=refresh,
        replace=bool(config.getoption("llmperf_replace")),
        force=bool(config.getoption("llmperf_force")),
        reason=(reason or "").strip(),
        noise_blocks=_noise_blocks(config.getoption("llmperf_noise")),
        pool=settings.pool,
        given=_given(config),
        accepted=settings.accept,
        prices=settings.prices,
    )


def launching_option(terms: Terms) -> str | None:
    """The option, if any, by which all tests of a server are compared in launches that they share."""
    asked = {"--llmperf-ab": terms.ab, "--llmperf-refresh": terms.refresh, "--llmperf-noise": terms.noise_blocks}
    return next((option for option, value in asked.items() if value), None)


def _given(config: pytest.Config) -> str:
    """The options that choose server and store, as a command would repeat them."""
    from pytest_llmperf.campaign.terms import without_secret

    words = []
    for name in ("llmperf_server", "llmperf_baselines"):
        if (value := config.getoption(name)) is not None:
            words += [f"--{name.replace('_', '-')}", value]
    for assignment in config.getoption("llmperf_set"):
        words += ["--llmperf-set", without_secret(assignment)]
    return shlex.join(words)


def _noise_blocks(written: str | None) -> int | None:
    from pytest_llmperf.errors import ConfigError

    if written is None:
        return None
    low, high = NOISE_BLOCKS
    if not (written.isdecimal() and len(written) < 4 and low <= int(written) <= high):
        raise ConfigError("--llmperf-noise", "", f"{written!r} is not a whole number of blocks from {low} to {high}")
    return int(written)
