"""Whether a server of the configuration can be started as it is written, before anything is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pytest_llmperf.errors import ConfigError
from pytest_llmperf.plan import ServerSpec

if TYPE_CHECKING:
    from pytest_llmperf.engines import Engine

__all__ = ["key_of_flag", "require_launchable"]

_PORT: Final = 64_937
_MODEL: Final = "/model/of/the/launch"
"""Stand for what a launch will have: where the engine writes them, it says port and model."""
_OWN: Final = {"--port": "port", "--model": "model"}


def require_launchable(spec: ServerSpec, where: str) -> None:
    """Raise ConfigError where ``spec`` is neither a running server nor one that this version can start."""
    from pytest_llmperf.engines import engine_of, launchable
    from pytest_llmperf.engines.engine import SETTABLE
    from pytest_llmperf.engines.redact import redact

    prefix = f"servers.{spec.name}"
    if spec.url is not None:
        return
    for key in ("start", "logs", "stop"):
        words = getattr(spec, key)
        if redact(words) != words:
            problem = "holds a secret, which would be shown and stored; let the command read it from a variable"
            raise ConfigError(where, f"{prefix}.{key}", problem)
    if spec.launched_by == "command" and not spec.uses_engine_command:
        for key in ("version", *SETTABLE):
            if getattr(spec, key) is not None and not spec.passes(key):
                problem = f"does not reach the server: write {{{key}}} into start, or {{command}} for all of them"
                raise ConfigError(where, f"{prefix}.{key}", problem)
        if spec.extra_args:
            problem = "do not reach the server: write {command} into start, or the arguments themselves"
            raise ConfigError(where, f"{prefix}.extra_args", problem)
        return
    engine = engine_of(spec)
    if spec.engine not in launchable():
        has = "has no command line of its own here" if spec.launched_by == "command" else "is not started by itself"
        problem = f'{engine.title} {has}: give the command that starts it (launcher = "command" with start, ready_url'
        raise ConfigError(where, f"{prefix}.engine", f"{problem}, stop), or start it yourself and give its url")
    if spec.launched_by == "container" and spec.engine == "embedded":
        key = "image" if spec.image else "image_template"
        problem = f"{engine.title} is part of this package and in no image; name the engine of the image"
        raise ConfigError(where, f"{prefix}.{key}", problem)
    _require_consistent(spec, engine, where, prefix)


def key_of_flag(engine: Engine, flag: str) -> str | None:
    """The key of a server that says what ``flag`` of its engine says; None where there is none."""
    from pytest_llmperf.engines.flags import flags_of
    from pytest_llmperf.engines.parameters import named_words

    bare = ServerSpec(name="", engine=engine.name)
    stands = {str(_PORT): "port", _MODEL: "model"}
    written = flags_of(_words(engine, bare)[1:])
    known = {**_OWN, **{name: stands[value] for name, value in written.items() if value in stands}}
    known |= {**named_words(engine.parameters), **engine.spellings}
    return {_spelt(name): key for name, key in known.items()}.get(_spelt(flag))


def _require_consistent(spec: ServerSpec, engine: Engine, where: str, prefix: str) -> None:
    """Raise ConfigError for parameters that the engine lacks, and where two places say the same thing."""
    from pytest_llmperf.engines.engine import check_parameters
    from pytest_llmperf.engines.flags import flags_of
    from pytest_llmperf.engines.parameters import arguments, written

    try:
        check_parameters(engine, spec)
        arguments(engine.parameters, spec)
        if spec.extra_args:
            _words(engine, spec)
    except ConfigError as error:
        raise ConfigError(where, f"{prefix}.{error.key}", error.problem) from None
    for flag in flags_of(spec.extra_args):
        if (key := key_of_flag(engine, flag)) is not None:
            raise ConfigError(where, f"{prefix}.extra_args", f"{flag} is the flag of {key}; write {key} = … instead")
    by_key = {words[0]: key for key, words in written(engine.parameters, spec).items() if words[0].startswith("-")}
    for flag in flags_of(spec.extra_args):
        if flag in by_key:
            key = by_key[flag]
            raise ConfigError(where, f"{prefix}.extra_args", f"{flag} is what {key} = {getattr(spec, key)!r} sets too")
    for name, key in _variables(engine).items() if spec.env else ():
        if name in spec.env:
            raise ConfigError(where, f"{prefix}.env.{name}", f"is the variable of {key}; write {key} = … instead")


def _words(engine: Engine, spec: ServerSpec) -> list[str]:
    """The engine's command line with stand-ins; empty where it cannot be told yet. Raises ConfigError."""
    if engine.command is None:
        return []
    try:
        return engine.command(spec, _PORT, _MODEL)
    except ConfigError:
        raise
    except Exception:  # a user's engine may look for what is not there yet: the launch will tell
        return []


def _variables(engine: Engine) -> dict[str, str]:
    """Environment variable of the engine's process → the key that it is set from."""
    given = engine.environment(ServerSpec(name="", engine=engine.name), _PORT)
    found = {name: "port" for name, value in given.items() if str(_PORT) in value}
    for key, flag in engine.parameters.items():
        words = (flag,) if isinstance(flag, str) else (flag.words, flag.off or "")
        names = [word.split()[0] for word in words if word.split()]
        found |= {name: key for name in names if name.isidentifier()}
    return found


def _spelt(flag: str) -> str:
    """Engines take ``--max_num_seqs`` for ``--max-num-seqs``."""
    return flag.replace("_", "-")
