"""Shows a place in an expression: the expression on one line, a caret below the character. Pure."""

from __future__ import annotations

from typing import Final

from wire.console.table import cell_width

SHOWN_CHARS: Final = 72
"""So much of a long expression fits most terminals."""

BEFORE_CHARS: Final = 48
INDENT: Final = "  "
GAP: Final = "..."


def place_lines(expression: str, character: int) -> tuple[str, ...]:
    """Return an expression and a caret below one of its characters.

    Args:
        expression: The expression; what cannot be printed in it becomes a space.
        character: Which one, from 1. One more than there are is the end.

    Returns:
        Two lines; none if the character is 0.
    """
    if character < 1:
        return ()
    text = "".join(char if char.isprintable() else " " for char in expression)
    begin = 0
    if len(text) > SHOWN_CHARS:
        begin = max(0, min(character - 1 - BEFORE_CHARS, len(text) - SHOWN_CHARS))
    end = begin + SHOWN_CHARS
    left, right = GAP if begin else "", GAP if end < len(text) else ""
    before = INDENT + left + text[begin : character - 1]
    return (
        INDENT + left + text[begin:end] + right,
        " " * cell_width(before) + "^",
    )
