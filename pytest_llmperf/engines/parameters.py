"""Parameters of a server as an engine writes them: which flag, in which of its versions, and how "off" is said."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, final

from packaging.version import InvalidVersion, Version

from pytest_llmperf.errors import ConfigError
from pytest_llmperf.plan import ServerSpec

__all__ = [
    "CANONICAL",
    "DTYPES",
    "SETTABLE",
    "Flag",
    "Parameters",
    "arguments",
    "before",
    "flag_problem",
    "named_words",
    "same_version",
    "written",
]

CANONICAL: Final = (
    *("max_num_seqs", "max_model_len", "gpu_memory_utilization", "block_size", "swap_space", "kv_offloading_size"),
    *("enable_prefix_caching", "enable_chunked_prefill", "max_num_batched_tokens", "tensor_parallel_size", "threads"),
)
"""Fields of ``ServerSpec`` that mean the same for every engine that has them."""

SETTABLE: Final = (*CANONICAL, "quantization", "kv_cache_dtype")
"""Canonical parameters, and what else of a model's numbers a launch can set where the engine has a flag for it."""


DTYPES: Final = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
"""Data types of weights → as a quantization is called."""


@final
@dataclass(frozen=True, slots=True)
class Flag:
    """How one parameter is written, and in which versions it exists.

    ``words`` are separated by blanks; ``{}`` stands for the value, which otherwise comes last: ``"--tp"``,
    ``"-ctk {} -ctv {}"``. Words that begin with no dash are no flags but names of environment variables or of keys in
    a file, which the engine's own functions write.
    """

    words: str
    """Of a parameter that is on or off: what says "on"; empty where it is on by itself."""
    off: str | None = None
    """What says "off": empty where it is off by itself. None: the parameter has a value instead."""
    since: str | None = None
    """First version that has it; None: all that are known."""
    until: str | None = None
    """First version that does not have it any more."""
    instead: str = ""
    """What to write where it does not exist any more."""
    dtype: str = ""
    """Of ``quantization``: the flag for ``bf16``, which is no quantization but the data type of weights without one."""
    also: str = ""
    """Other spellings that the engine takes, separated by blanks."""


Parameters = Mapping[str, str | Flag]
"""Parameter of ``SETTABLE`` → flag. A text is a flag with a value, in every version."""


def flag_problem(name: str, parameters: Parameters, version: str, title: str) -> str | None:
    """Why the engine has no parameter ``name`` in ``version``; None where it has.

    A text that is no version stands for the newest; the empty one for a version that is not known yet, of which only
    what no version has is missed.
    """
    if name not in parameters:
        has = ", ".join(parameters) or "no parameters of these"
        return f"{title} has no such parameter; it has: {has}"
    if not version:
        return None
    flag, parsed = _flag(parameters[name]), _parsed(version)
    which = title if parsed is None else f"{title} {version}"
    if flag.until is not None and (parsed is None or parsed >= Version(flag.until)):
        instead = f"; use {flag.instead}" if flag.instead else ""
        return f"{which} has no such parameter: it is gone since {flag.until}{instead}"
    if flag.since is not None and parsed is not None and parsed < Version(flag.since):
        return f"{which} has no such parameter: it came with {flag.since}"
    return None


def written(parameters: Parameters, spec: ServerSpec) -> dict[str, tuple[str, ...]]:
    """Parameter → its words on a command line (or ``NAME``, ``value``) for each that ``spec`` sets."""
    found = {}
    for name in parameters:
        value = getattr(spec, name)
        if value is not None:
            found[name] = _words(_flag(parameters[name]), value)
    return {name: words for name, words in found.items() if words}


def arguments(parameters: Parameters, spec: ServerSpec) -> list[str]:
    """The command line's part for what ``spec`` sets, in the table's order.

    Raises ConfigError where two parameters would set one flag to different values.
    """
    by_flag: dict[str, tuple[str, tuple[str, ...]]] = {}
    words: list[str] = []
    for name, group in written(parameters, spec).items():
        if not group[0].startswith("-"):
            continue
        other, earlier = by_flag.setdefault(group[0], (name, group))
        if earlier != group:
            raise ConfigError(f"servers.{spec.name}", name, f"sets {group[0]}, which {other} sets too: leave one out")
        if other == name:
            words += group
    return words


def named_words(parameters: Parameters) -> dict[str, str]:
    """Flag → the parameter that it belongs to, the forms for "off" included."""
    found: dict[str, str] = {}
    for name, given in parameters.items():
        flag = _flag(given)
        words = [*flag.words.split(), *(flag.off or "").split()]
        found |= {word: name for word in words if word.startswith("--") or len(words) == 1}
        found |= dict.fromkeys(flag.also.split(), name)
    return found


def _words(flag: Flag, value: object) -> tuple[str, ...]:
    if isinstance(value, bool) and flag.off is not None:
        return tuple((flag.words if value else flag.off).split())
    text = str(value).lower() if isinstance(value, bool) else str(value)
    if flag.dtype:
        for dtype, name in DTYPES.items():
            if text.lower() in (dtype, name):
                return (flag.dtype, dtype)
    words = flag.words.split()
    if "{}" in words:
        return tuple(text if word == "{}" else word for word in words)
    return (*words, text)


def _flag(given: str | Flag) -> Flag:
    return Flag(given) if isinstance(given, str) else given


def before(version: str | None, bound: str) -> bool:
    """Whether ``version`` is known and lower than ``bound``."""
    parsed = _parsed(version or "")
    return parsed is not None and parsed < Version(bound)


def same_version(wanted: str, found: str) -> bool:
    """Whether what calls itself ``found`` is what ``wanted`` asks for.

    As Python's versions compare (PEP 440): ``v0.33`` is ``0.33.0``, a ``.post1`` or ``rc2`` is another version. A local
    part (``+cu130``) counts where it is asked for. What is no version must be the same text.
    """
    asked, told = _parsed(wanted), _parsed(found)
    if asked is None or told is None:
        return wanted == found
    return asked == (told if asked.local else Version(told.public))


def _parsed(version: str) -> Version | None:
    """None where it is not known, or not written as Python's are: the newest is assumed then."""
    try:
        return Version(version)
    except InvalidVersion:
        return None
