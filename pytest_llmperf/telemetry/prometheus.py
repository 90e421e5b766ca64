"""Prometheus' text format: the few lines of a page that an engine's ``series`` names, and what they say.

Fed with text, does no I/O. Pages are large and a load must not wait for them: ``Page.wanted`` picks lines at the time
of the sample, ``Page.read`` parses them afterwards. Format: prometheus/docs, ``instrumenting/exposition_formats``; what
OpenMetrics adds to a line (time stamps, exemplars) comes after the value and is passed over.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Final, TypeAlias, final

from pytest_llmperf.samples import HISTOGRAMS, Buckets, EngineSample, Quantity

__all__ = ["Page"]

_PAGE: Final = ""
"""Stands among the labels for the page of a sample, which may have the same labels on another one."""
_LARGEST: Final[frozenset[Quantity]] = frozenset({"kv_usage", "acceptance_length"})
"""Of several series the largest counts; all others are added up."""

_LINE: Final = re.compile(
    r"""\s*(?P<name>[A-Za-z_:][\w:]*)\s*(?:\{(?P<labels>(?:[^"}]|"(?:[^"\\]|\\.)*")*)\}\s*|\s)(?P<value>\S+)"""
)
_LABEL: Final = re.compile(r'([A-Za-z_]\w*)\s*=\s*"((?:[^"\\]|\\.)*)"')
_ESCAPE: Final = re.compile(r"\\(.)")
_ESCAPED: Final = {"n": "\n"}

_Series: TypeAlias = dict[str, list[tuple[dict[str, str], float]]]
"""Name → the labels and the value of each of its samples."""


@final
class Page:
    """How to read the pages of one engine; ``model`` is the one that ``name{label=}`` selects."""

    def __init__(self, series: Mapping[Quantity, tuple[str, ...]], model: str = "") -> None:
        self._series, self._model = dict(series), model
        names = {name.partition("{")[0] for names in series.values() for name in names}
        alternatives = "|".join(map(re.escape, sorted(names, key=len, reverse=True)))
        self._wanted = re.compile(
            rf"^[ \t]*(?:{alternatives})(?:_bucket|_sum|_count)?[ \t]*[ \t{{][^\n]*".encode(), re.MULTILINE
        )

    def wanted(self, page: bytes) -> bytes | None:
        """The lines of ``page`` that ``read`` needs; None where it is cut off: its last line has no end."""
        if page and not page.endswith(b"\n"):
            return None
        return b"\n".join(self._wanted.findall(page)) if self._series else b""

    def read(self, t_ns: int, *pages: bytes) -> EngineSample:
        """What the wanted lines of ``pages`` (of one server's processes, say) say, under our names, stamped ``t_ns``:
        together, and of several each apart.

        Of a quantity the first name that is there counts. One of which a series is no finite number is not told.
        """
        apart = tuple(self.read(t_ns, lines) for lines in pages) if len(pages) > 1 else ()
        found: _Series = defaultdict(list)
        for number, lines in enumerate(pages):
            _parse(lines.decode(errors="replace").split("\n"), str(number), found)
        values: dict[Quantity, float] = {}
        histograms: dict[Quantity, Buckets] = {}
        for quantity, names in self._series.items():
            for name in names:
                if quantity in HISTOGRAMS:
                    told = _buckets(found, name)
                    if told is not None:
                        histograms[quantity] = told
                        break
                else:
                    numbers = _numbers(found, name, self._model)
                    if numbers and all(map(math.isfinite, numbers)):
                        values[quantity] = max(numbers) if quantity in _LARGEST else math.fsum(numbers)
                        break
        return EngineSample(t_ns, values, histograms, pages=apart)


def _parse(lines: Iterable[str], page: str, found: _Series) -> None:
    """Enter the samples of one page. Lines that are none are left out."""
    for line in lines:
        match = _LINE.match(line)
        value = None if match is None else _number(match["value"])
        if match is None or value is None:
            continue
        labels = {name: _unescaped(text) for name, text in _LABEL.findall(match["labels"] or "")}
        found[match["name"]].append((labels | {_PAGE: page}, value))


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _unescaped(text: str) -> str:
    return _ESCAPE.sub(lambda match: _ESCAPED.get(match[1], match[1]), text)


def _numbers(found: _Series, name: str, model: str = "") -> list[float]:
    """The values of ``name``, or of the label in ``name{label}`` where that is a number.

    Of ``name{label=}`` the values of the samples whose label is ``model``.
    """
    base, brace, label = name.removesuffix("}").partition("{")
    samples = found.get(base, [])
    if not brace:
        return [value for _, value in samples]
    if label.endswith("="):
        return [value for labels, value in samples if labels.get(label[:-1]) == model]
    told = [_number(labels[label]) for labels, _ in samples if label in labels]
    return [value for value in told if value is not None]


def _buckets(found: _Series, name: str) -> Buckets | None:
    """The histogram ``name`` over all its label sets; None where its count or its sum is not told.

    Only bounds that all label sets have in common are kept: their cumulative counts can be added.
    """
    counts, sums = _numbers(found, f"{name}_count"), _numbers(found, f"{name}_sum")
    if not counts or not sums or not all(map(math.isfinite, (*counts, *sums))):
        return None
    apart: dict[frozenset[tuple[str, str]], dict[float, float]] = defaultdict(dict)
    for labels, value in found.get(f"{name}_bucket", []):
        bound = _number(labels.get("le", ""))
        if bound is not None and math.isfinite(value):
            apart[frozenset(pair for pair in labels.items() if pair[0] != "le")][bound] = value
    common = sorted(set.intersection(*map(set, apart.values()))) if apart else []
    at = tuple(math.fsum(one[bound] for one in apart.values()) for bound in common)
    return Buckets(math.fsum(counts), math.fsum(sums), tuple(common), at)
