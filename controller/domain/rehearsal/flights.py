"""What becomes of the installs of a rehearsal: drawn from those of earlier rollouts. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from controller.domain.failure_limits import FailureKind
from controller.domain.rehearsal.history import Floats, Installs
from controller.domain.rehearsal.setting import Planted, Setting

DRAWS: Final = 3
"""Numbers that each device takes: how it ends, whether planted harm fails it, how long it takes."""


@dataclass(slots=True)
class Flight:
    """A device that has its order."""

    needs_s: float
    """How long it must be online; infinite if it never answers."""

    fate: FailureKind | None
    """None for success."""

    online_s: float = 0.0
    away_s: float = 0.0


def drawn_flights(
    setting: Setting, installs: Installs, planted: Planted, drawn: Floats
) -> list[Flight]:
    """Draw what becomes of the install of each device.

    Args:
        setting: The rollout.
        installs: What became of earlier ones.
        planted: What the release does.
        drawn: Numbers from 0 to 1. Shape: (devices, `DRAWS`).
    """
    ends = (
        (installs.refused, FailureKind.REFUSED),
        (installs.timed_out, FailureKind.TIMED_OUT),
        (installs.failed, FailureKind.FAILED),
    )
    flights = []
    for name, (how, harmed, long) in zip(setting.devices, drawn.tolist(), strict=True):
        fate, below = None, 0.0
        for share, kind in ends:
            fate = kind if fate is None and below <= how < below + share else fate
            below += share
        if harmed < planted.failing and fate is None:
            fate = FailureKind.FAILED
        needs_s = installs.took_s[int(long * len(installs.took_s))]
        if name in setting.running:
            fate = None
        if name in setting.running or fate is FailureKind.REFUSED:
            needs_s = 0.0
        if fate is FailureKind.TIMED_OUT:
            needs_s = math.inf
        flights.append(Flight(needs_s=needs_s, fate=fate))
    return flights
