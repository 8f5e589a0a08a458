"""Which devices of a rollout keep the old release, to compare the others with. Pure.

Rules:
- A part of each profile is held out, rounded up: at least `LEAST_OF_STRATUM` of its devices and
  at most half. Profiles of fewer than twice as many have none; no gate can compare them.
- In all it is at least `LEAST_DEVICES`, of profiles that can be compared as far as these have more.
- Devices that stages choose by selectors differ from the others. Each such group, and the others,
  have a control group of their own; of several groups, those of fewer than `LEAST_OF_ROLLOUT`
  devices have none.
- Devices that run the release already are on neither side.
- Who it is follows from the order of starting, which is a shuffle by hash: the last ones of each
  profile. So everybody who knows the rollout's identifier can check it.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from controller.domain.gates.states import LEAST_DEVICES, LEAST_OF_STRATUM
from controller.domain.starting_order import group_of

LEAST_OF_ROLLOUT: Final = 2 * LEAST_DEVICES
"""A rollout with gates has as many devices: half of them are the control group then."""

_ROUNDING: Final = 1e-9


class HeldOut(NamedTuple):
    """The control group of a rollout, and with whom gates compare each of its devices."""

    control: frozenset[str]
    kinds: dict[str, str]
    """Devices of one kind are compared: those of a profile, but one that runs the release already
    is like no other."""


def held_out(
    places: Mapping[str, int],
    profiles: Mapping[str, str],
    percent: float,
    *,
    running: Collection[str],
) -> HeldOut:
    """Choose the control group of each group of devices.

    Args:
        places: Each device with its place in the order of starting, which tells its group.
        profiles: Each device with its profile.
        percent: What part of each profile of a group; 0 for no control group.
        running: Those that run the release already: they keep no other one.
    """
    groups: dict[int, dict[str, int]] = {}
    for device, place in places.items():
        if device not in running:
            groups.setdefault(group_of(place), {})[device] = place
    control = frozenset(
        device
        for group in groups.values()
        if len(groups) == 1 or len(group) >= LEAST_OF_ROLLOUT
        for device in control_group(group, profiles, percent)
    )
    kinds = {
        device: f"{profile} {device}" if device in running else profile
        for device, profile in profiles.items()
    }
    return HeldOut(control, kinds)


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
        held = {*chosen}
        halves = [each[: len(each) // 2] for each in members.values() if held.intersection(each)]
        halved = {device for half in halves for device in half}
        others = [device for device in last_first if device not in held]
        others.sort(key=lambda device: device not in halved)
        chosen += others[: LEAST_DEVICES - len(chosen)]
    order = {device: at for at, device in enumerate(last_first)}
    return frozenset(sorted(chosen, key=order.__getitem__)[: len(places) // 2])


def comparable(
    targets: Sequence[int],
    places: Mapping[str, int],
    profiles: Mapping[str, str],
    control: Collection[str],
) -> list[tuple[int, int]]:
    """Return how many devices gates can compare by the end of each stage, on each side.

    Args:
        targets: How many devices have the release then; it grows.
        places: Each device with its place in the order of starting.
        profiles: Each device with its profile.
        control: The control group.

    Returns:
        Of each stage how many with the new release, and how many with the old one, have
        `LEAST_OF_STRATUM` like them on the other side.
    """

    def strata(devices: Iterable[str]) -> list[tuple[str, int]]:
        return [(profiles.get(device, ""), group_of(places[device])) for device in devices]

    starting = sorted((one for one in places if one not in control), key=places.__getitem__)
    order = strata(starting)
    held = Counter(strata(control))
    found, new, old = [], Counter[tuple[str, int]](), Counter(order)
    for begin, end in itertools.pairwise((0, *targets)):
        step = Counter(order[begin:end])
        new, old = new + step, old - step
        others = {each: old[each] + held[each] for each in new}
        kept = [each for each in new if min(new[each], others[each]) >= LEAST_OF_STRATUM]
        found.append((sum(new[each] for each in kept), sum(others[each] for each in kept)))
    return found
