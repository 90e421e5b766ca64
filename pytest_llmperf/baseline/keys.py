"""Where a baseline lies: ``<engine>/<version>/<quantization>/<gpu>x<n>/<model-slug>/<test-slug>.json``.

Versions, models and node ids become file names by ``slug``, which never gives two texts the same name, also where
the file system takes upper and lower case for the same.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from hashlib import sha256
from typing import Final, Self

from pytest_llmperf.identity import Identity

__all__ = ["SUFFIX", "Key", "slug", "unslug"]

SUFFIX: Final = ".json"

_LOST: Final = re.compile(r"[^a-z0-9._+@-]+")
_HASHED: Final = re.compile(r"-[0-9a-f]{10}\Z")
_LONGEST: Final = 80
_SHOWN: Final = 60


def slug(text: str) -> str:
    """``text`` as one portable path segment.

    ``/`` becomes ``--``, ``::`` becomes ``@``; a text of lower-case letters, digits and ``._+-`` stays as it is.
    Where that loses something (capitals, other characters, more than 80 of them), ten digits of the text's SHA-256
    are appended, so that different texts have different slugs. Never empty, never begins with a dot or underscore.
    """
    shown = _LOST.sub("-", text.lower().replace("::", "@").replace("/", "--")).lstrip("._-+@").rstrip(".-")
    if shown and len(shown) <= _LONGEST and unslug(shown) == text:
        return shown
    digest = sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:10]
    return f"{shown[:_SHOWN].rstrip('.-') or 'x'}-{digest}"


def unslug(segment: str) -> str | None:
    """The text whose slug ``segment`` is; None where only its hash is in it."""
    return None if _HASHED.search(segment) else segment.replace("--", "/").replace("@", "::")


@dataclass(frozen=True, slots=True)
class Key:
    """What one file of the store is about. Equal keys have equal paths and no others."""

    engine: str
    version: str
    quantization: str
    """As in ``bf16 fp8 awq-int4 q4_1``; ``unknown`` where the server does not tell."""
    gpus: str
    """Kind and number, ``nvidia-h200x1``; ``cpux1`` without a GPU."""
    model: str
    test: str
    """Node id."""

    @classmethod
    def of(cls, identity: Identity, nodeid: str) -> Self:
        """The key under which a measurement of ``nodeid`` on that server is kept."""
        return cls(
            engine=identity.value("engine"),
            version=identity.value("version"),
            quantization=identity.value("quantization").lower(),
            gpus=_gpus(identity),
            model=identity.value("model"),
            test=nodeid,
        )

    @property
    def folder(self) -> tuple[str, ...]:
        """The path's segments but the last."""
        return tuple(slug(getattr(self, field.name)) for field in fields(self)[:-1])

    @property
    def path(self) -> str:
        """Relative to the store, with ``/``."""
        return "/".join((*self.folder, f"{slug(self.test)}{SUFFIX}"))

    def __str__(self) -> str:
        return f"{self.test} on {self.engine} {self.version}, {self.quantization}, {self.gpus}, {self.model}"


def _gpus(identity: Identity) -> str:
    """Punctuation, spaces and case of a GPU's name are not told apart."""
    facts = identity.environment
    if "gpu" not in facts:
        return "cpux1"
    kind = re.sub(r"[^a-z0-9]+", "-", facts["gpu"].value.lower()).strip("-") or "unknown"
    if kind == "unknown":
        return kind
    return f"{kind}x{facts['gpu_count'].value if 'gpu_count' in facts else 1}"
