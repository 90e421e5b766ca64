"""Prometheus' text format: the few lines of a page that an engine's ``series`` names, and what they say.

Fed with text, does no I/O. Pages are large and a load must not wait for them: ``Page.wanted`` picks lines at the time
of the sample, ``Page.read`` parses them afterwards. Format: prometheus/docs, ``instrumenting/exposition_formats``; what
OpenMetrics adds to a line (time stamps, exemplars) comes after the value and is passed over.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Final, TypeAlias, final

from pytest_llmperf.samples import HISTOGRAMS, Buckets, EngineSample, Quantity

__all__ = ["Page", "impossible"]

_PAGE: Final = ""
"""Stands among the labels for the page of a sample, which may have the same labels on another one."""
_LARGEST: Final[frozenset[Quantity]] = frozenset({"kv_usage", "acceptance_length"})
"""Of several series the largest counts; all others are added up."""

_SHARES: Final[frozenset[Quantity]] = frozenset({"kv_usage"})
_MOST: Final = 2.0**53
"""Above it a number of Prometheus, a double, no longer counts by ones: no counter, size or sum of times gets there."""
_ROUNDED: Final = 1e-3
"""By how much a share may be over 1."""

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

        Of a quantity the first name that is there counts. One of which a series cannot be is not told, and noted.
        """
        apart = tuple(self.read(t_ns, lines) for lines in pages) if len(pages) > 1 else ()
        found: _Series = defaultdict(list)
        for number, lines in enumerate(pages):
            _parse(lines.decode(errors="replace").split("\n"), str(number), found)
        values: dict[Quantity, float] = {}
        histograms: dict[Quantity, Buckets] = {}
        untold: dict[Quantity, str] = {}
        for quantity, names in self._series.items():
            for name in names:
                try:
                    if quantity in HISTOGRAMS:
                        told = _buckets(found, name)
                        if told is not None:
                            histograms[quantity] = told
                    elif numbers := _numbers(found, name, self._model):
                        values[quantity] = _together(quantity, numbers)
                except _ImpossibleError as error:
                    untold[quantity] = f"{name}: {error}"
                if quantity in values or quantity in histograms or quantity in untold:
                    break
        return EngineSample(t_ns, values, histograms, pages=apart, untold=untold)


def impossible(samples: Iterable[EngineSample]) -> list[str]:
    """A note on every quantity that pages state as what it cannot be."""
    first: dict[Quantity, str] = {}
    times: Counter[Quantity] = Counter()
    for sample in samples:
        times.update(sample.untold.keys())
        first = {**sample.untold, **first}
    return [
        f"the engine's metrics: {quantity} cannot be what {times[quantity]} pages state: {text}"
        for quantity, text in sorted(first.items())
    ]


class _ImpossibleError(Exception):
    """What a series cannot be."""


def _together(quantity: Quantity, numbers: Sequence[float]) -> float:
    """Of several series the one value. Raises _ImpossibleError."""
    for number in numbers:
        if not 0 <= number <= _MOST:
            raise _ImpossibleError(f"{number:g}")
        if quantity in _SHARES and number > 1 + _ROUNDED:
            raise _ImpossibleError(f"{number:g}, a share of at most 1")
    return max(numbers) if quantity in _LARGEST else math.fsum(numbers)


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

    Only bounds that all label sets have in common are kept: their cumulative counts can be added. Raises
    _ImpossibleError.
    """
    counts, sums = _numbers(found, f"{name}_count"), _numbers(found, f"{name}_sum")
    if not counts or not sums:
        return None
    for number in (*counts, *sums):
        if not 0 <= number <= _MOST:
            raise _ImpossibleError(f"{number:g}")
    apart: dict[frozenset[tuple[str, str]], dict[float, float]] = defaultdict(dict)
    for labels, value in found.get(f"{name}_bucket", []):
        bound = _number(labels.get("le", ""))
        if bound is None or math.isnan(bound):
            raise _ImpossibleError(f"a bucket up to {labels.get('le', 'nothing')}")
        apart[frozenset(pair for pair in labels.items() if pair[0] != "le")][bound] = value
    for one in apart.values():
        rising = [one[bound] for bound in sorted(one)]
        if not all(0 <= number <= _MOST for number in rising) or any(b < a for a, b in pairwise(rising)):
            raise _ImpossibleError("counts of its buckets that fall, or are none")
    common = sorted(set.intersection(*map(set, apart.values()))) if apart else []
    at = tuple(math.fsum(one[bound] for one in apart.values()) for bound in common)
    return Buckets(math.fsum(counts), math.fsum(sums), tuple(common), at)
