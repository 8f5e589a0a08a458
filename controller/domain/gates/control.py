"""Which devices of a rollout keep the old release, to compare the others with. Pure.

Rules:
- A part of each profile is held out, rounded up: at least `LEAST_OF_STRATUM` of its devices and
  at most half. Profiles of fewer than twice as many have none; no gate can compare them.
  In all it is at least `LEAST_DEVICES`.
- Who it is follows from the order of starting, which is a shuffle by hash: the last ones of each
  profile. So everybody who knows the rollout's identifier can check it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

from controller.domain.gates.states import LEAST_DEVICES, LEAST_OF_STRATUM

LEAST_OF_ROLLOUT: Final = 2 * LEAST_DEVICES
"""A rollout with gates has as many devices: half of them are the control group then."""

_ROUNDING: Final = 1e-9


def control_group(
    places: Mapping[str, int], profiles: Mapping[str, str], percent: float
) -> frozenset[str]:
    """Choose the control group.

    Args:
        places: Each device with its place in the order of starting.
        profiles: Each device with its profile.
        percent: What part of each profile; 0 for no control group.

    Returns:
        Its devices.
    """
    if percent <= 0.0:
        return frozenset()
    last_first = sorted(places, key=lambda device: (places[device], device), reverse=True)
    members: dict[str, list[str]] = {}
    for device in last_first:
        members.setdefault(profiles.get(device, ""), []).append(device)
    chosen: list[str] = []
    for each in members.values():
        part = math.ceil(len(each) * percent / 100.0 - _ROUNDING)
        if len(each) >= 2 * LEAST_OF_STRATUM:
            chosen += each[: min(max(part, LEAST_OF_STRATUM), len(each) // 2)]
    if len(chosen) < LEAST_DEVICES:
        others = [device for device in last_first if device not in set(chosen)]
        chosen += others[: LEAST_DEVICES - len(chosen)]
    order = {device: at for at, device in enumerate(last_first)}
    return frozenset(sorted(chosen, key=order.__getitem__)[: len(places) // 2])
