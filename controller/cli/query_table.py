"""The table of a query, in the width that there is.

Rules:
- What was asked for with `--stat` is always shown, and so is what each row is about.
- Where there is no place for a column for each word of `--by`, the words of a row stand in one
  cell, as `variant=int8 device=cam-1`, which is broken between them. Where there is no place for
  all statistics that were asked for, each has a row of its own.
- Statistics that nobody asked for may be left out, but the one that stands for the metric.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from wire.console.output import table_lines
from wire.console.table import Table
from wire.console.text import value_text

GROUP: Final = "GROUP"
STATISTIC, VALUE = "STATISTIC", "VALUE"


class Columns(NamedTuple):
    """What stands in the columns of an answer."""

    headings: tuple[str, ...]
    groups: tuple[int, ...]
    """Without the time."""

    time: int | None
    statistics: tuple[int, ...]
    wanted: tuple[int, ...]
    """The statistics that must be shown."""

    trend: int | None = None


def laid_out(columns: Columns, rows: Sequence[Sequence[object]]) -> Table:
    """Lay out the answer to a query for the output as it is.

    Args:
        columns: What its columns are.
        rows: Texts and numbers, one for each heading.

    Returns:
        The table.
    """
    trend = [] if columns.trend is None else [columns.headings[columns.trend]]
    right = [columns.headings[i] for i in columns.statistics]
    table = table_lines(columns.headings, rows, minor=trend, right=right)
    if not set(table.left_out) - set(trend):
        return table
    table = _with_few_columns(columns, rows) or _with_few_statistics(columns, rows)
    return Table(table.lines, [*table.left_out, *trend])


def _with_few_columns(columns: Columns, rows: Sequence[Sequence[object]]) -> Table | None:
    """Lay out a table that has the groups in one column; None if it is still too wide."""
    headings = [*_led(columns), *(columns.headings[i] for i in columns.statistics)]
    unasked = [i for i in reversed(columns.statistics) if i not in columns.wanted]
    table = table_lines(
        headings,
        [[*_lead(columns, row), *(row[i] for i in columns.statistics)] for row in rows],
        minor=[columns.headings[i] for i in unasked],
        right=[columns.headings[i] for i in columns.statistics],
    )
    must = {*_led(columns), *(columns.headings[i] for i in columns.wanted)}
    return None if must.intersection(table.left_out) else table


def _with_few_statistics(columns: Columns, rows: Sequence[Sequence[object]]) -> Table:
    """Lay out a table with a row for each statistic of each group."""
    return table_lines(
        [*_led(columns), STATISTIC, VALUE],
        [
            [*_lead(columns, row), columns.headings[i].lower(), row[i]]
            for row in rows
            for i in columns.wanted
        ],
        right=[VALUE],
    )


def _led(columns: Columns) -> list[str]:
    """Return the headings of what a row is about."""
    time = [] if columns.time is None else [columns.headings[columns.time]]
    return [*time, *([GROUP] if columns.groups else [])]


def _lead(columns: Columns, row: Sequence[object]) -> list[object]:
    """Return what a row is about."""
    time = [] if columns.time is None else [row[columns.time]]
    named = [f"{columns.headings[i].lower()}={value_text(row[i])}" for i in columns.groups]
    return [*time, *([" ".join(named)] if columns.groups else [])]
