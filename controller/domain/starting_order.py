"""In which order the devices of a rollout start. Pure.

Rules:
- It is a shuffle by hash, so that the first stage is a fair sample of the fleet, and so that every
  process, and everybody who knows the identifier of the rollout, finds the same one.
- Devices that stages choose by selectors come first, in groups: those of the first such stage, then
  those of the next, then all others. Within a group the order is a shuffle.
- Spread over a label, each part of the order has of each value about its share of the devices: a
  tenth of the fleet is a tenth of each site, and no site goes all at once. Each device still has
  the same chance of an early place, so that gates compare like with like.

Source:
    Systematic sampling with a random start in each stratum: Cochran, Sampling Techniques, 3rd
    edition (1977), chapters 5 and 8.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

PLACES: Final = 2**24
"""Places in a group; those of `GROUPS` fit 31 bits."""

TAIL: Final = 101 * PLACES
"""The first place of devices that join later, so that they start after all others: stages are up to
100. What is added together is a group."""

GROUPS: Final = 128
"""Groups in all. What is added after the last one of them is in that, too."""


def tail_after(greatest: int | None) -> int:
    """Return the first place of devices that are added now.

    Args:
        greatest: The greatest place of the devices of the rollout; None if it has none.
    """
    if greatest is None or greatest < TAIL:
        return TAIL
    return min(greatest // PLACES + 1, GROUPS - 1) * PLACES


@dataclass(frozen=True, slots=True, kw_only=True)
class StartingOrder:
    """What the order of starting heeds beside the shuffle."""

    groups: Mapping[str, int] = field(default_factory=dict)
    """The group of each device that a stage chooses, from 0."""

    last: int = 0
    """The group of all others: how many stages choose their devices."""

    values: Mapping[str, str] | None = None
    """The value of the label over which devices are spread, of those that have it; None for a
    plain shuffle."""

    def sizes(self, devices: Collection[str]) -> Counter[int]:
        """Return how many of some devices are in each group."""
        if not self.groups:
            return Counter({self.last: len(devices)})
        return Counter(self.groups.get(device, self.last) for device in devices)


def position(rollout: str, device: str) -> int:
    """Return the place of a device: those with lower ones start first, then by name."""
    return positions(rollout, (device,))[device]


def positions(rollout: str, devices: Iterable[str]) -> dict[str, int]:
    """Return the places of devices: those with lower ones start first, then by name."""
    begun = hashlib.sha256(f"{rollout}/".encode())
    found = {}
    for device in devices:
        hashed = begun.copy()
        hashed.update(device.encode())
        found[device] = int.from_bytes(hashed.digest()[:3])
    return found


def group_of(place: int) -> int:
    """Return the group of a device, by its place."""
    return place // PLACES


def places(order: StartingOrder, rollout: str, devices: Sequence[str]) -> dict[str, int]:
    """Return the place of each device.

    Args:
        order: What the order heeds.
        rollout: The identifier of the rollout.
        devices: Its devices.
    """
    within = positions(rollout, devices)
    if order.values is not None:
        within = _spread(order, order.values, rollout, within)
    if not order.last:
        return within
    return {
        device: order.groups.get(device, order.last) * PLACES + place
        for device, place in within.items()
    }


def _spread(
    order: StartingOrder, values: Mapping[str, str], rollout: str, within: Mapping[str, int]
) -> dict[str, int]:
    """Spread each value of each group evenly over the places of the group."""
    alike: defaultdict[tuple[int, str], list[str]] = defaultdict(list)
    for device in sorted(within, key=lambda name: (within[name], name)):
        alike[order.groups.get(device, order.last), values.get(device, "")].append(device)
    spread: dict[str, int] = {}
    for (group, value), members in alike.items():
        begin = position(rollout, f"{group}={value}")  # else the first of all values were together
        for rank, device in enumerate(members):
            spread[device] = (rank * PLACES + begin) // len(members)
    return spread
