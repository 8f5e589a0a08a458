"""What is drawn, as values and as pieces of text. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from wire.console.table import cell_width

ELLIPSIS: Final = {True: "\N{HORIZONTAL ELLIPSIS}", False: "~"}
COLOURS: Final = (36, 33, 35, 32, 31, 34)
"""Of SGR: cyan, yellow, magenta, green, red, blue; a line has the colour of its number."""


class Line(NamedTuple):
    """The values of one group over time."""

    name: str
    points: Sequence[tuple[float, float]]
    """Seconds since the epoch, rising, and the value then."""


class Canvas(NamedTuple):
    """Where something is drawn, and with what."""

    width: int
    """Columns; no line is wider."""

    height: int = 12
    """Rows of the field of a plot, without its axes and its legend."""

    unicode: bool = True
    """Whether more than ASCII can be shown."""

    colour: bool = False


class Piece(NamedTuple):
    """Text of one colour."""

    text: str
    colour: int | None = None
    """A number of a line; None for the colour of the terminal."""


def is_finite(value: float | None) -> bool:
    """Tell whether a value can be drawn."""
    return value is not None and math.isfinite(value)


def shortened(text: str, width: int, *, unicode: bool = True) -> str:
    """Return a text that takes at most so many columns.

    Args:
        text: The text, without control characters.
        width: Columns.
        unicode: Whether the mark of what was cut may be an ellipsis.

    Returns:
        The text, or its beginning and a mark.
    """
    if cell_width(text) <= width:
        return text
    kept = ""
    for char in text:
        if cell_width(kept + char) > width - 1:
            break
        kept += char
    return (kept + ELLIPSIS[unicode])[: max(width, 0)]


def painted(pieces: Iterable[Piece], canvas: Canvas) -> str:
    """Return pieces as one line that is no wider than the canvas, without spaces at its end.

    Args:
        pieces: In their order.
        canvas: How wide it is, and whether it has colours.

    Returns:
        The line.
    """
    shown: list[Piece] = []
    left = canvas.width
    for piece in pieces:
        text = shortened(piece.text, left, unicode=canvas.unicode)
        shown.append(Piece(text, piece.colour))
        left -= cell_width(text)
        if text != piece.text:
            break
    while shown and not shown[-1].text.rstrip():
        shown.pop()
    if shown:
        shown[-1] = Piece(shown[-1].text.rstrip(), shown[-1].colour)
    return "".join(_painted(piece, canvas) for piece in shown)


def _painted(piece: Piece, canvas: Canvas) -> str:
    if piece.colour is None or not canvas.colour or not piece.text.strip():
        return piece.text
    return f"\x1b[{COLOURS[piece.colour % len(COLOURS)]}m{piece.text}\x1b[0m"
