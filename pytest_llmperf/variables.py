"""The one variable of an A/B comparison: ``key=value`` made into two specifications that differ in nothing else."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from pydantic import ValidationError

from pytest_llmperf.engines import engine_of
from pytest_llmperf.engines.flags import flags_of
from pytest_llmperf.engines.redact import public_env, redact
from pytest_llmperf.errors import ConfigError, nearest
from pytest_llmperf.identity import ENVIRONMENT, INPUTS, fact_class
from pytest_llmperf.plan import LAUNCH_ONLY, ServerSpec
from pytest_llmperf.settings import Overrides, Settings, describe_validation_error, server_named
from pytest_llmperf.settings.changes import VARIABLES, changed, flat
from pytest_llmperf.settings.faults import given_value
from pytest_llmperf.settings.servers import BUILT_IN_SERVERS

__all__ = ["Arms", "against_version", "parse_ab", "parse_allow", "unlaunchable_versions"]

AB: Final = "--llmperf-ab"
_KEYS: Final = (*VARIABLES, "env.NAME", "args.--FLAG", "variant", "server", "url")


@dataclass(frozen=True, slots=True)
class Arms:
    """Two specifications and what makes them two."""

    baseline: ServerSpec
    candidate: ServerSpec
    declared: tuple[str, ...]
    """Names of the identity's facts that are the one variable, with those that can only follow it."""
    text: str
    """``key: baseline → candidate``, for a person; secrets hidden."""


def parse_ab(written: str, spec: ServerSpec, settings: Settings, overrides: Overrides) -> Arms:
    """``spec`` as it is configured against the same with ``written`` (``key=value``) changed.

    ``args.--flag`` alone sets a switch, ``args.--flag=`` removes the flag; ``variant=NAME`` changes all keys of that
    table; ``server=NAME`` and ``url=A,B`` compare whole servers. Starts and asks nothing. Raises ConfigError for an
    unknown key (with the nearest), a value that the key does not take, a parameter that the engine lacks, and for a
    value that is the configured one.
    """
    key, equals, value = (part.strip() for part in written.partition("="))
    outer, _, inner = key.partition(".")
    if outer == "args" and inner:
        return _arms(spec, {key: value if equals else True}, key)
    if not key or not equals or (not value and outer != "env"):
        raise ConfigError(AB, written, "write key=value, e.g. max_num_seqs=8")
    if key == "variant":
        table = _entry(value, settings.variants, "variant", settings)
        return _arms(spec, flat(table, settings.source, f"variants.{value}"), f"variant {value}")
    if key == "server":
        return _servers(spec, value, settings, overrides)
    if key == "url":
        return _urls(spec, value)
    if key in VARIABLES:
        return _arms(spec, {key: given_value(key, value)}, key)
    if outer == "env" and inner:
        return _arms(spec, {key: value}, key)
    raise ConfigError(AB, key, f"unknown variable{nearest(key, _KEYS)}")


def against_version(version: str, spec: ServerSpec) -> Arms:
    """Version ``version`` of ``spec`` as the baseline, ``spec`` as it is configured as the candidate.

    Raises ConfigError where versions of it cannot be launched, or where it is of that version.
    """
    where = "--llmperf-against"
    reason = unlaunchable_versions(spec)
    if reason is not None:
        raise ConfigError(where, "version", reason)
    baseline = changed(spec, {"version": version}, where)
    texts = _value(baseline, "version"), _value(spec, "version")
    _require_change(texts[0] != texts[1], "version", texts[1], where)
    return Arms(baseline, spec, ("version",), f"version: {texts[0]} → {texts[1]}")


def unlaunchable_versions(spec: ServerSpec) -> str | None:
    """Why other versions of ``spec`` cannot be launched from here; None where they can."""
    if spec.targeted:
        return "the server runs already (url), so another version of it cannot be launched"
    engine = engine_of(spec)
    if spec.launched_by == "command" and not spec.uses_engine_command:
        return None if spec.passes("version") else "start is the same for every version; write {version} into it"
    if engine.command is None:
        return f"{engine.title} cannot be launched by this version"
    if spec.image:
        return f"image = {spec.image!r} is one image; write image_template with {{version}} in it"
    if spec.image_template:
        return None
    if spec.executable is not None and "{version}" not in spec.executable:
        return f"executable = {spec.executable!r} is one build; write {{version}} into its path"
    if spec.executable is None and engine.distribution is None:
        return f"{engine.title} is on no package index; give executable with {{version}} in it"
    return None


def parse_allow(names: Iterable[str], where: str = "--llmperf-allow") -> tuple[str, ...]:
    """Facts that may differ besides the variable. Raises ConfigError, with the nearest, where there is no such fact."""
    for name in names:
        if fact_class(name) is None:
            problem = f"no identity has such a field{nearest(name, (*INPUTS, *ENVIRONMENT, 'env.NAME', 'args.--FLAG'))}"
            raise ConfigError(where, name, problem)
    return tuple(dict.fromkeys(names))


def _arms(spec: ServerSpec, changes: Mapping[str, Any], label: str) -> Arms:
    candidate = changed(spec, changes, AB)
    texts = {key: (_value(spec, key), _value(candidate, key)) for key in changes}
    differing = {key: pair for key, pair in texts.items() if _differs(spec, candidate, key, pair)}
    _require_change(bool(differing), label, ", ".join(now for now, _ in texts.values()), AB)
    names = tuple(dict.fromkeys(name for key in changes for name in _with_followers(key, spec, candidate)))
    steps = ", ".join(f"{key}: {before} → {after}" for key, (before, after) in differing.items())
    return Arms(spec, candidate, names, steps if label in changes else f"{label} ({steps})")


def _differs(spec: ServerSpec, candidate: ServerSpec, key: str, texts: tuple[str, str]) -> bool:
    """Whether ``key`` differs as it is, which for secrets is more than what is shown of it."""
    outer, _, inner = key.partition(".")
    if outer == "env":
        return spec.env.get(inner) != candidate.env.get(inner)
    if outer == "args":
        return flags_of(spec.extra_args).get(inner) != flags_of(candidate.extra_args).get(inner)
    return texts[0] != texts[1]


def _with_followers(key: str, spec: ServerSpec, candidate: ServerSpec) -> tuple[str, ...]:
    """``key`` and the facts that are another way to see it: the version of an image, the digest of a model."""
    if key in ("engine", "image", "executable"):
        return (key, "version")
    if key == "model":
        own = spec.quantization is None and candidate.quantization is None
        return (key, "model_digest", "model_revision", *(("quantization",) if own else ()))
    return (key,)


def _value(spec: ServerSpec, key: str) -> str:
    """What ``key`` is in ``spec``, for a person: the engine's own value where nothing is set."""
    outer, _, inner = key.partition(".")
    engine = engine_of(spec)
    if outer == "env":
        if inner not in spec.env:
            return "not set"
        return public_env(spec)[inner]
    if outer == "args":
        return flags_of(redact(spec.extra_args)).get(inner, "not set")
    value = getattr(spec, key)
    if value is None and key == "version" and spec.executable is None and engine.launch_version is not None:
        value = engine.launch_version()
    if value is None:
        return engine.defaults.get(key, "default")
    if key in ("swap_space", "kv_offloading_size"):
        return f"{value:g} GiB"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _servers(spec: ServerSpec, name: str, settings: Settings, overrides: Overrides) -> Arms:
    _entry(name, {**BUILT_IN_SERVERS, **settings.servers}, "server", settings)
    candidate = server_named(name, settings, overrides.model_copy(update={"server": name, "url": None}))
    label = {"name": "", "folder": None}
    _require_change(candidate.model_copy(update=label) != spec.model_copy(update=label), "server", spec.name, AB)
    for each in (spec, candidate):
        if each.targeted:
            problem = f"server {each.name!r} is a running one (url), which cannot take turns; use url=A,B"
            raise ConfigError(AB, "server", problem)
    return Arms(spec, candidate, ("server",), f"server: {spec.name} → {candidate.name}")


def _urls(spec: ServerSpec, written: str) -> Arms:
    urls = [url.strip() for url in written.split(",")]
    if len(urls) != 2 or not all(urls):
        raise ConfigError(AB, "url", f"{written!r}: write the URLs of two running servers, url=A,B")
    kept = {name: value for name, value in spec.model_dump().items() if name not in LAUNCH_ONLY}
    if not spec.targeted:
        kept["gpus"] = ()
    arms = []
    for url in urls:
        try:
            arms.append(ServerSpec.model_validate({**kept, "url": url}))
        except ValidationError as error:
            raise ConfigError(AB, "url", describe_validation_error(error, ServerSpec)[1]) from None
    _require_change(arms[0].url != arms[1].url, "url", str(arms[0].url), AB)
    return Arms(arms[0], arms[1], ("url",), f"url: {arms[0].url} → {arms[1].url}")


def _entry(name: str, known: Mapping[str, dict[str, Any]], key: str, settings: Settings) -> dict[str, Any]:
    if name not in known:
        listed = nearest(name, tuple(known)) if known else f"; {settings.source} has none"
        raise ConfigError(AB, key, f"no {key} {name!r}{listed}")
    return known[name]


def _require_change(differs: bool, key: str, value: str, where: str) -> None:
    if not differs:
        raise ConfigError(where, key, f"both arms would have {value!r}: nothing would be compared")
