"""When it is the turn of a device in a stage: who is away then is compared with nobody. Pure.

Only devices that are online begin. So those that have the release were there at their turn; the
others must have been there, too, or a place in trouble, whose devices are away, would stay on the
old release's side and make the new one look good.

Rules:
- The turn of a device that begins in the stage is when it would: those with lower places have had
  theirs when one with a higher place begins.
- That of any other device is drawn by its place, evenly over the devices that begin in the stage:
  after the first tenth of them for one device of ten, and so on.
"""

from __future__ import annotations

import math
from typing import Final

MOMENTS: Final = 1000
"""Into how many parts a stage is cut."""


def moment(place: int) -> int:
    """Return when the turn of a device is that does not begin in the stage.

    Args:
        place: Its place in the order of starting, which is a shuffle.

    Returns:
        Its part of the stage, from 0.
    """
    return place % MOMENTS


def passed(begun: int, size: int) -> int:
    """Return how many parts of a stage are over.

    Args:
        begun: How many devices have begun in it.
        size: How many it lets begin.
    """
    return MOMENTS if begun >= size else math.floor(MOMENTS * begun / size)
