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

from wire.console.table import field_lines, hanging, layout
from wire.console.text import plain_text, value_text

BOLD, NORMAL = "\x1b[1m", "\x1b[0m"


def write(line: str = "") -> None:
    """Write a line of the answer."""
    write_exact(plain_text(line))


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
        right=numeric if is_person else (),
    )
    heading, *lines = table.lines
    if is_person and _has_style():
        write_exact(f"{BOLD}{plain_text(heading)}{NORMAL}")
    else:
        write(heading)
    for line in lines:
        write(line)
    if table.left_out:
        sys.stdout.flush()
        told = f"({', '.join(table.left_out)}: not shown; a wider terminal shows all columns)"
        for part in hanging(told, terminal_width()):
            remark(part)


def write_fields(fields: Sequence[tuple[str, object]]) -> None:
    """Write names and values, one pair a line."""
    shown = [(name, value_text(value)) for name, value in fields]
    for line in field_lines(shown, width=terminal_width()):
        write(line)


def _has_style() -> bool:
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
