"""Plots over time: a field of dots with axes, and the names of its lines below. Pure.

Rules:
- Dots are those of Braille, eight in each character. Without colours several lines could not be
  told apart, so they are drawn with marks of ASCII, one for each line.
- Points that do not follow each other within the step are not joined: there were no values.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Final

from controller.cli.drawing.axes import Axis, TimeTick, time_ticks, value_axis
from controller.cli.drawing.lines import Canvas, Line, Piece, is_finite, painted, shortened
from wire.console.table import cell_width

DOTS: Final = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
"""Bits of the dots of a Braille character, by row and column; see Unicode 15, chapter 21.1."""

BRAILLE: Final = 0x2800
MARKS: Final = "*+xo#@%&"
MAX_LINES: Final = 6
"""As many colours as can be told apart."""

LEAST_FIELD: Final = 8
"""Columns; a narrower field has no axis beside it."""

ROWS_PER_TICK: Final = 3
COLUMNS_PER_TICK: Final = 12

Cells = list[list[tuple[int, int]]]
"""By row and column: the dots that are set, and the line that set the last of them."""


def plot(
    lines: Sequence[Line],
    canvas: Canvas,
    *,
    span_s: tuple[float, float],
    step_s: float,
    offset_s: float = 0.0,
    unit: str = "",
    divisor: float = 1.0,
) -> list[str]:
    """Draw lines over time.

    Args:
        lines: At most `MAX_LINES`; a caller with more chooses.
        canvas: Where.
        span_s: The first and the last time of the field.
        step_s: The time between two points.
        offset_s: Of the local time to UTC.
        unit: Written above the axis of values.
        divisor: What values are divided by before they are shown.

    Returns:
        The lines of text.
    """
    shown = [
        Line(line.name, [(t, v / divisor) for t, v in line.points if is_finite(v)])
        for line in lines[:MAX_LINES]
    ]
    height = max(canvas.height, 3)
    axis = value_axis([v for line in shown for _, v in line.points], 1 + height // ROWS_PER_TICK)
    labels = _labels(axis, height)
    beside = max(map(cell_width, labels.values())) + len(" |")
    if canvas.width - beside < LEAST_FIELD:
        labels, beside = {}, 0
    width = max(canvas.width - beside, 1)
    braille = canvas.unicode and (canvas.colour or len(shown) == 1)
    cells = _cells(shown, axis, span_s, step_s, (width, height), braille=braille)
    drawn = [painted([Piece(unit)], canvas)] if unit else []
    for row, content in enumerate(cells):
        head = _axis_piece(labels.get(row), beside, canvas)
        drawn.append(painted([head, *_field(content, braille=braille)], canvas))
    if beside:
        most = max(width // COLUMNS_PER_TICK, 1)
        drawn += _time_axis(time_ticks(*span_s, most, offset_s), span_s, beside, width, canvas)
    return [*drawn, *_legend([line.name for line in shown], canvas, braille=braille)]


def _labels(axis: Axis, height: int) -> dict[int, str]:
    """Return the named values by the row in which they stand."""
    found: dict[int, str] = {}
    for value, label in zip(axis.ticks, axis.labels, strict=True):
        found[height - 1 - round(_share(value, axis.low, axis.high) * (height - 1))] = label
    return found


def _share(value: float, low: float, high: float) -> float:
    """Return where a value lies between two, from 0 to 1; halves keep the difference finite."""
    whole = high / 2 - low / 2
    return min(max((value / 2 - low / 2) / whole, 0.0), 1.0) if whole > 0 else 0.0


def _cells(
    lines: Sequence[Line],
    axis: Axis,
    span_s: tuple[float, float],
    step_s: float,
    size: tuple[int, int],
    *,
    braille: bool,
) -> Cells:
    across, down = (2, 4) if braille else (1, 1)
    width, height = size
    cells: Cells = [[(0, 0)] * width for _ in range(height)]
    last_x, last_y = width * across - 1, height * down - 1
    for number, line in enumerate(lines):
        before: tuple[float, int, int] | None = None
        for at_s, value in line.points:
            x = round(_share(at_s, *span_s) * last_x)
            y = last_y - round(_share(value, axis.low, axis.high) * last_y)
            joined = before is not None and at_s - before[0] <= step_s * 1.5
            begin = before[1:] if before is not None and joined else (x, y)
            for dot_x, dot_y in _between(begin, (x, y)):
                bits, _ = cells[dot_y // down][dot_x // across]
                bit = DOTS[dot_y % down][dot_x % across] if braille else 1
                cells[dot_y // down][dot_x // across] = (bits | bit, number)
            before = (at_s, x, y)
    return cells


def _between(begin: tuple[int, int], end: tuple[int, int]) -> Iterator[tuple[int, int]]:
    """Yield the dots of a straight line."""
    (x0, y0), (x1, y1) = begin, end
    steps = max(abs(x1 - x0), abs(y1 - y0), 1)
    for step in range(steps + 1):
        yield x0 + round((x1 - x0) * step / steps), y0 + round((y1 - y0) * step / steps)


def _field(cells: list[tuple[int, int]], *, braille: bool) -> Iterator[Piece]:
    for colour, run in groupby(cells, key=lambda cell: cell[1] if cell[0] else None):
        if colour is None:
            yield Piece(" " * len(list(run)))
        else:
            yield Piece(
                "".join(chr(BRAILLE + bits) if braille else MARKS[colour] for bits, _ in run),
                colour,
            )


def _axis_piece(label: str | None, width: int, canvas: Canvas) -> Piece:
    if not width:
        return Piece("")
    tick, bar = ("┤", "│") if canvas.unicode else ("|", "|")
    return Piece(f"{label or '':>{width - 2}} {bar if label is None else tick}")


def _time_axis(
    ticks: Sequence[TimeTick],
    span_s: tuple[float, float],
    beside: int,
    width: int,
    canvas: Canvas,
) -> list[str]:
    corner, bar, mark = ("└", "─", "┬") if canvas.unicode else ("+", "-", "+")
    line, names = [bar] * width, [" "] * (beside + width)
    free = 0
    for tick in ticks:
        at = round(_share(tick.at_s, *span_s) * (width - 1))
        line[at] = mark
        begin = min(beside + at - len(tick.label) // 2, len(names) - len(tick.label))
        if begin >= free:
            names[begin : begin + len(tick.label)] = tick.label
            free = begin + len(tick.label) + 1
    head = f"{'':>{beside - 1}}{corner}"
    return [
        painted([Piece(head + "".join(line))], canvas),
        painted([Piece("".join(names))], canvas),
    ]


def _legend(names: Sequence[str], canvas: Canvas, *, braille: bool) -> list[str]:
    """Return the names of the lines, as many beside each other as there is room for."""
    if len(names) <= 1 and not any(names):
        return []
    rows: list[list[Piece]] = [[]]
    used = 0
    for number, name in enumerate(names):
        mark = "━━" if braille else MARKS[number]
        text = shortened(name, max(canvas.width - len(mark) - 1, 1), unicode=canvas.unicode)
        width = len(mark) + 1 + cell_width(text)
        if used and used + 3 + width > canvas.width:
            rows.append([])
            used = 0
        gap = [Piece("   ")] if used else []
        rows[-1] += [*gap, Piece(mark, number), Piece(f" {text}")]
        used += width + len(gap) * 3
    return [painted(row, canvas) for row in rows]
