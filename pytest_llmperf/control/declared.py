"""What the user says of a server that cannot tell it itself; what it does tell wins, and must agree."""

from __future__ import annotations

import shlex
from collections.abc import Mapping

from pytest_llmperf.engines.flags import flags_of
from pytest_llmperf.errors import ConfigError
from pytest_llmperf.identity import UNKNOWN, Fact, Identity, fact_class

__all__ = ["declare"]


def declare(identity: Identity, declared: Mapping[str, str], where: str) -> Identity:
    """``identity`` with the fields of ``declared`` filled in where it has no value for them.

    ``args = "--a 1 --b"`` (or ``"none"``) and ``args.--a`` list all flags of a server that tells none, and so do
    ``env.NAME`` and ``env = "none"``. Raises ConfigError (``where`` holds the table) for a field that the server, or
    what it was started with, contradicts.
    """
    facts = {"input": dict(identity.input), "environment": dict(identity.environment)}
    for group in ("args", "env"):
        if any(name.partition(".")[0] == group for name in declared):
            facts["input"].pop(group, None)
    for name, value in _listed(declared, where).items():
        kind = fact_class(name)
        assert kind is not None  # the configuration was checked when it was read
        known = facts[kind].get(name, UNKNOWN)
        if known == UNKNOWN:
            facts[kind][name] = Fact(value=value, source="declared")
        elif known.value.casefold() != value.casefold():
            teller = "the server says" if known.source == "live" else "the configuration says"
            raise ConfigError(where, f"identity.{name}", f"{value!r} is declared, but {teller} {known.value!r}")
    return identity.model_copy(update=facts)


def _listed(declared: Mapping[str, str], where: str) -> dict[str, str]:
    """``declared`` with ``args`` as the flags that it lists."""
    found = {name: value for name, value in declared.items() if name not in ("args", "env")}
    if declared.get("env", "none") != "none":
        raise ConfigError(where, "identity.env", f"{declared['env']!r}: write 'none', or env.NAME for each variable")
    if declared.get("args", "none") != "none":
        try:
            found |= {f"args.{flag}": value for flag, value in flags_of(shlex.split(declared["args"])).items()}
        except ValueError as error:
            raise ConfigError(where, "identity.args", f"{declared['args']!r}: {error}") from None
    return found
