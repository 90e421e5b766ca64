"""The time that a campaign may take."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import final

__all__ = ["Budget"]


@final
@dataclass(slots=True)
class Budget:
    """Time that a campaign may take; a block begins only if one of the usual length still fits."""

    seconds: float | None
    began: float = field(default_factory=time.monotonic)
    longest: float = 0.0

    def fits(self) -> bool:
        return self.seconds is None or time.monotonic() - self.began + self.longest <= self.seconds

    def note(self, seconds: float) -> None:
        """A block took this long."""
        self.longest = max(self.longest, seconds)
