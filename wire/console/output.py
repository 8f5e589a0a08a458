"""Writes answers of a command line: lines, tables, fields.

Rules:
- Answers go to standard output, remarks and faults to standard error.
- No line has control characters: a name that others chose could erase what stands above it.
- On a terminal an answer is at most as wide as the terminal. Elsewhere it is complete, with one
  line for each row.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from typing import Final

from wire.console.table import Table, cell_width, field_lines, hanging, layout
from wire.console.text import plain_text, value_text

STAND_INS: Final = {"\N{DEGREE SIGN}": " ", "\N{HORIZONTAL ELLIPSIS}": "~", "\N{MICRO SIGN}": "u"}
"""For characters that are ours; those of names become `?`."""

BOLD, NORMAL = "\x1b[1m", "\x1b[0m"


def write(line: str = "") -> None:
    """Write a line of the answer, for people: what the output cannot show becomes `?`."""
    write_exact(showable(plain_text(line)))


def write_exact(document: str) -> None:
    """Write a document as it is, such as JSON that a program reads."""
    sys.stdout.write(f"{document}\n")


def remark(line: str) -> None:
    """Write a line that does not belong to the answer."""
    sys.stderr.write(f"{plain_text(line)}\n")
    sys.stderr.flush()


def is_terminal() -> bool:
    """Tell whether a person reads the answer."""
    return sys.stdout.isatty()


def can_show(text: str) -> bool:
    """Tell whether the encoding of the output has these characters."""
    try:
        text.encode(sys.stdout.encoding or "utf-8")  # an output in memory has none
    except UnicodeEncodeError:
        return False
    return True


def showable(text: str) -> str:
    """Return text of the same width, with stand-ins for what the output's encoding lacks."""
    if can_show(text):
        return text
    return "".join(
        char if can_show(char) else STAND_INS.get(char, "?" * cell_width(char)) for char in text
    )


def terminal_width() -> int | None:
    """Return how many columns the answer may use; None without a terminal."""
    return shutil.get_terminal_size().columns if is_terminal() else None


def write_lines(lines: Sequence[str]) -> None:
    """Write sentences; on a terminal a long one continues on the next line, indented."""
    width = terminal_width()
    for line in lines:
        for part in hanging(line, width):
            write(part)


def write_table(
    columns: Sequence[str], rows: Sequence[Sequence[object]], *, minor: Sequence[str] = ()
) -> None:
    """Write a table.

    Args:
        columns: Headings.
        rows: One value per column; None is unknown.
        minor: Headings of columns that a narrow terminal may leave out, the least important first.
    """
    table = table_lines(columns, rows, minor=minor)
    for line in table.lines:
        write_exact(line)
    tell_left_out(table)


def table_lines(
    columns: Sequence[str],
    rows: Sequence[Sequence[object]],
    *,
    minor: Sequence[str] = (),
    right: Sequence[str] = (),
) -> Table:
    """Lay out a table for the output as it is: a terminal, or whatever reads it.

    Args:
        columns: Headings.
        rows: One value per column; None is unknown.
        minor: Headings of columns that a narrow terminal may leave out, the least important first.
        right: Headings of columns of amounts that are text already; numbers are found by
            themselves.

    Returns:
        The table; the heading is bold on a terminal that can show it.
    """
    numeric = [
        column
        for index, column in enumerate(columns)
        if rows and all(isinstance(row[index], int | float) for row in rows)
    ]
    is_person = is_terminal()
    table = layout(
        columns,
        [[value_text(value) for value in row] for row in rows],
        width=terminal_width(),
        minor=minor,
        right=[*numeric, *right] if is_person else (),
    )
    heading, *lines = [showable(plain_text(line)) for line in table.lines]
    if has_style():
        heading = f"{BOLD}{heading}{NORMAL}"
    return Table([heading, *lines], table.left_out)


def tell_left_out(table: Table) -> None:
    """Say which columns had no place."""
    if table.left_out:
        sys.stdout.flush()
        for part in hanging(left_out_text(table), terminal_width()):
            remark(part)


def left_out_text(table: Table) -> str:
    """Return which columns of a table had no place."""
    return f"({', '.join(table.left_out)}: not shown; a wider terminal shows all columns)"


def write_fields(fields: Sequence[tuple[str, object]]) -> None:
    """Write names and values, one pair a line."""
    shown = [(name, value_text(value)) for name, value in fields]
    for line in field_lines(shown, width=terminal_width()):
        write(line)


def has_style() -> bool:
    """Tell whether a person reads the answer who wants it bold and coloured."""
    return is_terminal() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
