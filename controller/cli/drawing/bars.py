"""Bar charts: one bar for each group, with its name before and its value behind. Pure.

Rules:
- Bars begin at zero, so that their lengths can be compared; a negative value goes to the left.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from controller.cli.drawing.lines import Canvas, Piece, is_finite, painted, shortened
from wire.console.table import cell_width

EIGHTHS: Final = " ▏▎▍▌▋▊▉"
FULL: Final = "█"
ASCII_FULL: Final = "#"
MAX_NAME_SHARE: Final = 0.4
"""Names take at most this share of the width."""


class Bar(NamedTuple):
    """A group and its value."""

    name: str
    value: float | None
    text: str
    """The value as it is shown."""


def bars(groups: Sequence[Bar], canvas: Canvas) -> list[str]:
    """Draw groups, one line for each.

    Args:
        groups: In the order in which they are shown.
        canvas: Where.

    Returns:
        The lines of text.
    """
    most = max(int(canvas.width * MAX_NAME_SHARE), 1)
    names = [shortened(each.name, most, unicode=canvas.unicode) for each in groups]
    beside = max((cell_width(name) for name in names), default=0)
    behind = max((cell_width(each.text) for each in groups), default=0)
    width = canvas.width - beside - behind - 2
    values = [each.value for each in groups if each.value is not None and is_finite(each.value)]
    low, high = min([0.0, *values]), max([0.0, *values])
    lines = []
    for name, each in zip(names, groups, strict=True):
        padded = name + " " * (beside - cell_width(name))
        bar = _bar(each.value, low, high, width, unicode=canvas.unicode) if width > 0 else ""
        text = f" {each.text}" if each.text else ""
        lines.append(painted([Piece(f"{padded} "), Piece(bar, 0), Piece(text)], canvas))
    return lines


def _bar(value: float | None, low: float, high: float, width: int, *, unicode: bool) -> str:
    """Return the bar of a value, where the field reaches from the least value to the greatest."""
    span = high / 2 - low / 2  # a half, which is always finite
    left = round(-low / 2 / span * width) if span else 0
    if value is None or not is_finite(value) or not span:
        return " " * left
    if value < 0:
        length = round(-value / 2 / span * width)
        return " " * (left - length) + (FULL if unicode else ASCII_FULL) * length
    if not unicode:
        return " " * left + ASCII_FULL * round(value / 2 / span * (width - left))
    eighths = round(value / 2 / span * width * 8)
    eighths = min(eighths, (width - left) * 8)
    whole, rest = divmod(eighths, 8)
    return " " * left + FULL * whole + EIGHTHS[rest].strip()
