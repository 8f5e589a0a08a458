"""When it is the turn of a device in a stage: who is away then is compared with nobody. Pure.

Only devices that are online begin. So those that have the release were there at their turn; the
others must have been there, too, or a place in trouble, whose devices are away, would stay on the
old release's side and make the new one look good.

Rules:
- The turn of a device that begins in the stage is when it would: those with lower places have had
  theirs when one with a higher place begins.
- That of any other device is drawn by its place, evenly over the devices that begin in the stage:
  after the first tenth of them for one device of ten, and so on.
- Who was away at its turn counts in no later stage either. So a device of the control group that
  was away gives its place to one that was there at its own turn and has not begun: the last of its
  stratum in the order of starting, which is a shuffle. Else each stage would make the control group
  smaller.
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Hashable, Mapping
from typing import Final, TypeVar

Device = TypeVar("Device", bound=Hashable)

MOMENTS: Final = 1000
"""Into how many parts a stage is cut."""

REFILLS: Final = 20
"""How often in a stage others take the places of those of the control group that were away: in a
large one each time costs as much as a look."""


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


def is_refilled(before: int, now: int) -> bool:
    """Tell whether others take places in the control group, when so many parts of a stage are over.

    Args:
        before: How many were over the last time.
        now: How many are.
    """
    return before * REFILLS // MOMENTS < now * REFILLS // MOMENTS


def substitutes(lost: Mapping[Device, str], free: Mapping[Device, str]) -> dict[Device, Device]:
    """Return which devices take places in the control group.

    Args:
        lost: The devices of it that were away at their turn, with the stratum of each.
        free: Those that were there at theirs and have not begun, likewise; last in the order of
            starting first.

    Returns:
        Lost device to the one that takes its place; one for which none is left is not in it.
    """
    left: defaultdict[str, deque[Device]] = defaultdict(deque)
    for device, stratum in free.items():
        left[stratum].append(device)
    return {device: left[of].popleft() for device, of in lost.items() if left[of]}
