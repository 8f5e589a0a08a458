"""Sparklines: a row of values as one short word. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

BLOCKS: Final = "▁▂▃▄▅▆▇█"
ASCII: Final = "_.-~=+*#"
GAP: Final = {True: "\N{MIDDLE DOT}", False: ":"}
"""Where there is no value: a space would be lost at the end of a line."""

LEAST_SPAN: Final = 0.02
"""Values that differ by less than this share of the greatest are shown alike: noise is no hill."""


def sparkline(values: Sequence[float | None], *, unicode: bool = True) -> str:
    """Return values as a word with one character for each.

    Args:
        values: In the order of time; None, or a number that is not finite, is a gap.
        unicode: Whether the output can show more than ASCII.

    Returns:
        The word, as long as there are values; the least value is lowest, the greatest highest.
    """
    marks = BLOCKS if unicode else ASCII
    finite = [value for value in values if value is not None and math.isfinite(value)]
    least, greatest = min(finite, default=0.0), max(finite, default=0.0)
    # Halves, because the difference of two great numbers may be too great for a number.
    half_span = greatest / 2 - least / 2
    is_flat = half_span <= max(abs(least), abs(greatest)) * LEAST_SPAN / 2
    last = len(marks) - 1

    def mark(value: float | None) -> str:
        if value is None or not math.isfinite(value):
            return GAP[unicode]
        if is_flat:
            return marks[last // 2]
        return marks[round((value / 2 - least / 2) / half_span * last)]

    return "".join(map(mark, values))
