"""Plain columns for a terminal or a pipe."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pytest_llmperf.baseline.refresh import Row
from pytest_llmperf.units import format_quantity

__all__ = ["change_rows", "table"]


def table(rows: Iterable[Sequence[str]]) -> str:
    """Rows in columns two spaces apart, the first row being the head. Control characters of a cell are escaped."""
    cells = [[_printable(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells)
    return "\n".join(lines)


def _printable(cell: str) -> str:
    """What a stored text may not do to the terminal that shows it."""
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in cell)


def change_rows(rows: Iterable[Row]) -> Iterable[tuple[str, str, str, str, str, str]]:
    """Metric, before, after, change, whether that is better or worse, launches of both sides."""
    for row in rows:
        change = "" if row.change is None else f"{100 * row.change:+.2f} %"
        judged = {None: "" if row.comparable else "other definition", True: "worse", False: "better"}[row.worse]
        before, after = (
            format_quantity(value, row.unit) if value is not None else ("∞" if number else "-")
            for value, number in ((row.before, row.launches_before), (row.after, row.launches_after))
        )
        yield row.metric, before, after, change, judged, f"{row.launches_before} / {row.launches_after}"
