"""What each variant would have lost, and when that is worth a switch: a work function.

A policy that goes wherever the next second looks best pays for each change of its mind. One that
waits too long loses what it waits for. The work function of a variant is the least that any way
which ends at it would have lost: by what was expected in each period, switches included. Once the
serving variant could be reached from another one for no more than it lost itself, that one should
serve. So a great loss is left at once, a small one after some minutes, and what is of one
magnitude with a switch never.

Rules:
- Pure: losses in, the next work function out. It is as large as the list of variants.
- Losses and switches are in answers of the reference.
- A loss that is no number teaches nothing, and one that is infinite counts as a very great one: no
  single period may decide for ever.

Source:
    Borodin, Linial and Saks, An Optimal On-line Algorithm for Metrical Task Systems (Journal of the
    ACM 39(4), 1992): whatever comes, the work function loses at most a constant multiple of what
    the best way in hindsight loses.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

MOST: Final = 1e12
"""Answers: more than any device gives between two decisions."""

Cost = Callable[[str, str], float]
"""What a switch from one variant to another one costs."""


class Work(msgspec.Struct, frozen=True, kw_only=True):
    """The work function; zero for all variants at the start."""

    lost: dict[str, float] = {}
    """By variant: the least that a way which ends there lost, above that of the best one."""

    def update(self, losses: Mapping[str, float], cost: Cost) -> Work:
        """Return the work function after a period.

        Args:
            losses: What each variant that may serve would have lost in it.
            cost: What a switch costs.
        """
        # A variant that is new could have been reached as any other one.
        least = min(self.lost.values(), default=0.0)
        lost = {name: self.lost.get(name, least) + _bounded(loss) for name, loss in losses.items()}
        reached = {
            name: min(own, *(lost[other] + cost(other, name) for other in lost if other != name))
            if len(lost) > 1
            else own
            for name, own in lost.items()
        }
        least = min(reached.values(), default=0.0)
        return Work(lost={name: own - least for name, own in reached.items()})

    def lead(self, name: str, serving: str) -> float:
        """Return how much less a variant lost than the serving one; negative if it lost more."""
        return self.lost.get(serving, 0.0) - self.lost.get(name, 0.0)


def _bounded(loss: float) -> float:
    return 0.0 if math.isnan(loss) else min(max(loss, -MOST), MOST)
