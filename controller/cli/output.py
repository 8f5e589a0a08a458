"""How answers look: JSON, tables, CSV; times, sizes.

Rules:
- Answers go to standard output, remarks and faults to standard error.
- Text from devices is cleaned of control characters: a label must not steer a terminal.
- On a terminal a table is drawn by rich; elsewhere it is plain columns of full width.
"""

from __future__ import annotations

import csv
import io
import json
import sys
import time
import unicodedata
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pydantic import BaseModel

UNKNOWN = "-"
KIB = 1024.0
MINUTE_S, HOUR_S, DAY_S = 60, 3600, 86_400


def write(line: str = "") -> None:
    """Write a line of the answer."""
    sys.stdout.write(f"{line}\n")


def remark(line: str) -> None:
    """Write a line that is no part of the answer."""
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


def is_terminal() -> bool:
    """Tell whether a person reads the answer."""
    return sys.stdout.isatty()


def write_json(value: BaseModel | Sequence[BaseModel]) -> None:
    """Write an answer of the controller as indented JSON."""
    if isinstance(value, Sequence):
        plain: Any = [item.model_dump(mode="json") for item in value]
    else:
        plain = value.model_dump(mode="json")
    write(json.dumps(plain, indent=2, ensure_ascii=False))


def write_plain_json(value: object) -> None:
    """Write the packager's structs, or plain values, as indented JSON with sorted keys."""
    from wire.codec import to_pretty_json

    write(to_pretty_json(value).decode().rstrip())


def write_table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Write a table.

    Args:
        columns: Headings.
        rows: One value per column; None is unknown.
    """
    cells = [[cell_text(value) for value in row] for row in rows]
    if not is_terminal():
        write_columns(columns, cells)
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for index, column in enumerate(columns):
        numeric = bool(rows) and all(isinstance(row[index], int | float) for row in rows)
        table.add_column(column, justify="right" if numeric else "left", overflow="fold")
    for row in cells:
        table.add_row(*(Text(cell) for cell in row))
    Console().print(table)


def write_columns(columns: Sequence[str], cells: Sequence[Sequence[str]]) -> None:
    """Write plain columns, two spaces apart, without cutting anything."""
    widths = [
        max(len(column), *(len(row[index]) for row in cells)) if cells else len(column)
        for index, column in enumerate(columns)
    ]
    for row in (columns, *cells):
        padded = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        write("  ".join(padded).rstrip())


def write_csv(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Write comma-separated values with a heading; unknown is empty."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(["" if value is None else value for value in row] for row in rows)
    sys.stdout.write(buffer.getvalue())


def write_fields(fields: Sequence[tuple[str, object]]) -> None:
    """Write names and values, one pair a line."""
    width = max(len(name) for name, _value in fields)
    for name, value in fields:
        write(f"{name.ljust(width)}  {cell_text(value)}")


def cell_text(value: object) -> str:
    """Return a value as it stands in a table."""
    if value is None or value == "":
        return UNKNOWN
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, dict):
        return plain_text(" ".join(f"{k}={cell_text(v)}" for k, v in sorted(value.items())))
    if isinstance(value, list | tuple):
        return plain_text(" ".join(cell_text(item) for item in value))
    return plain_text(str(value))


def plain_text(text: str) -> str:
    """Return text whose control and format characters are shown, not obeyed."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        char
        if unicodedata.category(char) not in {"Cc", "Cf", "Cs", "Zl", "Zp"}
        else "\N{REPLACEMENT CHARACTER}"
        for char in text
    )


def local_time(at_s: float | None) -> str:
    """Return wall time in the user's time zone, to the second."""
    if at_s is None:
        return UNKNOWN
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at_s))


def age_text(at_s: float | None, now_s: float) -> str:
    """Return how long ago something was, in one unit."""
    if at_s is None:
        return "never"
    age_s = max(0, int(now_s - at_s))
    for unit_s, unit in ((DAY_S, "d"), (HOUR_S, "h"), (MINUTE_S, "m")):
        if age_s >= unit_s:
            return f"{age_s // unit_s}{unit} ago"
    return f"{age_s}s ago"


def bytes_text(size_bytes: float) -> str:
    """Return a size with a binary unit."""
    for unit in ("B", "KiB", "MiB"):
        if size_bytes < KIB:
            return f"{size_bytes:.0f} {unit}" if unit == "B" else f"{size_bytes:.1f} {unit}"
        size_bytes /= KIB
    return f"{size_bytes:.1f} GiB"
