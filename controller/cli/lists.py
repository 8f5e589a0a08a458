"""Lists for people: tables that say when they are empty, and in which zone their times are."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence

from wire.console.output import remark, write_table
from wire.console.text import zone_text


def write_list(
    columns: Sequence[str],
    rows: Sequence[Sequence[object]],
    *,
    none: str,
    minor: Sequence[str] = (),
) -> None:
    """Write a table.

    Args:
        columns: Headings.
        rows: One value per column; None is unknown.
        none: What is said of an empty one, beside its heading.
        minor: Headings of columns that a narrow terminal may leave out, the least important first.
    """
    write_table(columns, rows, minor=minor)
    if not rows:
        sys.stdout.flush()
        remark(none)


def time_heading(name: str, times_s: Iterable[float | None]) -> str:
    """Return the heading of a column of local times.

    Args:
        name: What they are the times of.
        times_s: The times; None is unknown.

    Returns:
        Such as `TIME (CET)`; the name alone where there is no time.
    """
    zones = zone_text([at_s for at_s in times_s if at_s is not None])
    return f"{name} ({zones})" if zones else name
