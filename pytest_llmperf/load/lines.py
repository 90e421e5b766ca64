"""Lines out of bytes that may be cut anywhere. No I/O."""

from __future__ import annotations

__all__ = ["LineBuffer"]


class LineBuffer:
    """Fed bytes, returns the lines that they complete, each without its LF."""

    __slots__ = ("_parts",)

    def __init__(self) -> None:
        self._parts: list[bytes] = []  # an unfinished line; joined once it ends, so a long line is not copied per read

    @property
    def between(self) -> bool:
        """The next byte begins a line."""
        return not self._parts

    def feed(self, data: bytes) -> list[bytes]:
        """The lines whose LF is in ``data``."""
        if b"\n" not in data:
            if data:
                self._parts.append(data)
            return []
        if self._parts:
            self._parts.append(data)
            data = b"".join(self._parts)
            self._parts.clear()
        *lines, rest = data.split(b"\n")
        if rest:
            self._parts.append(rest)
        return lines
