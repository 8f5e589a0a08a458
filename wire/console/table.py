"""Lays out tables and lists of fields as lines of text, within a terminal's width or without limit.

Rules:
- Without a width, nothing is cut: each row is one line with all its values.
- With a width, a cell of several words continues on the next line. If that is not enough, the
  least important columns are left out. The first column, which names the row, always stays.
- A name or a number is never shortened as long as another column can be left out instead: two rows
  that differ must look different. A word is never split over two lines.
"""

from __future__ import annotations

import itertools
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

GAP: Final = "  "
HANG: Final = "    "
ELLIPSIS: Final = "\u2026"
LEAST: Final = 24
"""The least width of a column whose cells are broken between words, so that they stay readable."""


class Table(NamedTuple):
    """A table as lines."""

    lines: list[str]
    """The heading, then the lines of each row."""

    left_out: list[str]
    """Headings of the columns that did not fit."""


def layout(
    columns: Sequence[str],
    cells: Sequence[Sequence[str]],
    *,
    width: int | None = None,
    minor: Sequence[str] = (),
    right: Sequence[str] = (),
) -> Table:
    """Lay out a table.

    Args:
        columns: Headings.
        cells: One text for each column.
        width: Width of the terminal; None cuts nothing.
        minor: Headings of columns that may be left out, the least important first; when these are
            not enough, other columns are left out from the right, but never the first.
        right: Headings of columns that are aligned to the right.

    Returns:
        The lines, without spaces at their ends.
    """
    shown = list(range(len(columns)))
    widths = {
        i: max([cell_width(columns[i]), *(cell_width(row[i]) for row in cells)]) for i in shown
    }
    least = {
        i: max(cell_width(columns[i]), min(widths[i], LEAST))
        if any(" " in row[i] for row in cells)
        else widths[i]
        for i in shown
    }
    order = [columns.index(name) for name in minor]
    order += [i for i in reversed(shown[1:]) if i not in order]
    left_out: list[int] = []
    if width is not None:
        while order and _total(least, shown) > width:
            left_out.append(order.pop(0))
            shown.remove(left_out[-1])
        for i in reversed(left_out[:]):
            if _total(least, [*shown, i]) <= width:
                left_out.remove(i)
                shown.append(i)
        shown.sort()
        _narrow(widths, least, shown, width)
    aligned_right = {columns.index(name) for name in right}
    lines = []
    for row in (columns, *cells):
        broken = [wrap(row[i], None if width is None else widths[i]) for i in shown]
        for parts in itertools.zip_longest(*broken, fillvalue=""):
            fitted = (
                _fit(part, widths[i], right=i in aligned_right)
                for i, part in zip(shown, parts, strict=True)
            )
            lines.append(GAP.join(fitted).rstrip())
    return Table(lines, [columns[i] for i in sorted(left_out)])


def field_lines(fields: Sequence[tuple[str, str]], *, width: int | None = None) -> list[str]:
    """Lay out names and values, one pair after the other.

    Args:
        fields: Names and values.
        width: Width of the terminal; a longer value continues on the next line, with a new word.

    Returns:
        The lines.
    """
    indent = max((cell_width(name) for name, _ in fields), default=0) + len(GAP)
    lines = []
    for name, value in fields:
        first, *more = wrap(value, None if width is None else width - indent)
        lines.append(f"{_fit(name, indent)}{first}")
        lines += [f"{'':{indent}}{line}" for line in more]
    return lines


def wrap(text: str, width: int | None) -> list[str]:
    """Break a text between words; a word that is longer than a line gets a line of its own.

    Args:
        text: The text.
        width: Width of a line; None breaks nothing.

    Returns:
        The lines; at least one.
    """
    if width is None or cell_width(text) <= width:
        return [text]
    lines = [""]
    for word in text.split(" "):
        longer = f"{lines[-1]} {word}" if lines[-1] else word
        if lines[-1] and cell_width(longer) > width:
            lines.append(word)
        else:
            lines[-1] = longer
    return lines


def hanging(line: str, width: int | None) -> list[str]:
    """Break a line between words; the lines after the first are indented further.

    Args:
        line: The line, which may begin with spaces.
        width: Width of the terminal; None breaks nothing.

    Returns:
        The lines.
    """
    if width is None or cell_width(line) <= width:
        return [line]
    text = line.lstrip()
    indent = line[: len(line) - len(text)]
    first, *more = wrap(text, width - len(indent) - len(HANG))
    return [indent + first, *(indent + HANG + part.lstrip() for part in more)]


def cell_width(text: str) -> int:
    """Return how many columns of a terminal a text takes."""
    if text.isascii():
        return len(text)
    return sum(_char_width(char) for char in text)


def _char_width(char: str) -> int:
    if unicodedata.category(char) in {"Mn", "Me"}:  # such as accents and variation selectors
        return 0
    return 2 if unicodedata.east_asian_width(char) in {"W", "F"} else 1


def _total(widths: Mapping[int, int], shown: Sequence[int]) -> int:
    """Return the width of a line of these columns."""
    return sum(widths[i] for i in shown) + len(GAP) * (len(shown) - 1)


def _narrow(
    widths: dict[int, int], least: Mapping[int, int], shown: Sequence[int], width: int
) -> None:
    """Make columns narrower until a line fits, first those that are furthest above their least."""
    while (over := _total(widths, shown) - width) > 0:
        widest = max(shown, key=lambda i: widths[i] - least[i])
        spare = widths[widest] - least[widest]
        # A single column that is too wide for the terminal is shortened all the same.
        widths[widest] -= 1 if spare > 0 else over


def _fit(text: str, width: int, *, right: bool = False) -> str:
    """Return a text of exactly that width, shortened or padded."""
    if cell_width(text) > width:
        kept = ""
        for char in text:
            if cell_width(kept + char) > width - 1:
                break
            kept += char
        text = kept + ELLIPSIS
    padding = " " * (width - cell_width(text))
    return padding + text if right else text + padding
