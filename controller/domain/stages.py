"""Stages as they are asked for, and as a rollout has them. Pure.

Rules:
- A stage that chooses its devices by a selector brings the release to all devices that match, and
  to none that does not. They start before all others, so stages stay cumulative.
- A stage before one with a selector takes its devices from those of that selector.
- A stage that grows stands for as many as it takes until all devices have the release, each so many
  times as large as the one before it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from controller.domain.gates.control import comparable
from controller.domain.gates.states import LEAST_DEVICES
from controller.domain.rollout_view import StageSpec
from controller.domain.stage_progress import stage_size, targets_of
from controller.domain.starting_order import PLACES, group_of

WHOLE_PERCENT: Final = 100.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """How a rollout grows after its last stage of a given size, until all have the release."""

    factor: float
    """Above 1."""

    soak_s: float | None = None
    approval: bool | None = None


def selectors(stages: Iterable[StageSpec]) -> list[str]:
    """Return the selectors by which stages choose their devices, in order."""
    return [stage.selector for stage in stages if stage.selector]


def grown(stages: Sequence[StageSpec], growth: Growth, devices: int, most: int) -> list[StageSpec]:
    """Return stages with those for which a growth stands.

    Args:
        stages: The stages before it, at least one.
        growth: How it goes on.
        devices: How many devices take part.
        most: The greatest number of stages to return; one more is returned if there are more.
    """
    made = list(stages)
    while len(made) <= most:
        size = _larger(made[-1], growth.factor, devices)
        made.append(replace(size, soak_s=growth.soak_s, approval=growth.approval))
        if made[-1].percent == WHOLE_PERCENT:
            break
    return made


def _larger(stage: StageSpec, factor: float, devices: int) -> StageSpec:
    if stage.percent is not None:
        return StageSpec(percent=min(stage.percent * factor, WHOLE_PERCENT))
    size = stage_size(stage, devices)
    count = max(int(size * factor), size + 1)
    return StageSpec(percent=WHOLE_PERCENT) if count >= devices else StageSpec(count=count)


def sized(stages: Sequence[StageSpec], sizes: Mapping[int, int]) -> tuple[StageSpec, ...]:
    """Return stages, each that chooses with the number of its devices, earlier ones included.

    Args:
        stages: The stages.
        sizes: How many devices of each group begin; 0 of one that is not named.
    """
    found, group = [], 0
    for stage in stages:
        if stage.selector:
            group += 1
            reached = sum(sizes.get(number, 0) for number in range(group))
            found.append(replace(stage, count=reached, percent=None))
        else:
            found.append(stage)
    return tuple(found)


def resolved(
    stages: Sequence[StageSpec],
    places: Mapping[str, int],
    profiles: Mapping[str, str],
    control: Collection[str],
) -> tuple[StageSpec, ...]:
    """Return stages with what follows from their devices.

    With a control group each tells whether it reaches enough devices that gates can compare.

    Args:
        stages: The stages.
        places: Each device with its place in the order of starting, which tells its group.
        profiles: Each device with its profile; only with a control group.
        control: The control group.
    """
    if not selectors(stages) and not control:
        return tuple(stages)
    begin = Counter(group_of(place) for one, place in places.items() if one not in control)
    found = sized(stages, begin)
    if not control:
        return found
    targets = targets_of(found, len(places), len(places))
    sides = comparable(targets, places, profiles, control)
    return tuple(
        replace(stage, asks_gates=min(both) >= LEAST_DEVICES)
        for stage, both in zip(found, sides, strict=True)
    )


def reach(stages: Sequence[StageSpec], number: int) -> int | None:
    """Return the place below which devices may start in a stage; None for all places.

    Args:
        stages: The stages.
        number: The stage, from 1.
    """
    done = len(selectors(stages[: number - 1]))
    return (done + 1) * PLACES if selectors(stages[number - 1 :]) else None
