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
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from controller.domain.gates.control import LEAST_OF_ROLLOUT
from controller.domain.gates.states import LEAST_DEVICES
from controller.domain.rollout_view import StageSpec
from controller.domain.stage_progress import stage_size, targets_of
from controller.domain.starting_order import PLACES

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


def resolved(
    stages: Sequence[StageSpec], every: Iterable[int], held: Iterable[int] = ()
) -> tuple[StageSpec, ...]:
    """Return stages with what follows from the groups of devices that they choose.

    Each that chooses has the number of its devices, earlier ones included, and each tells whether
    it reaches enough devices that gates can compare. Without such a stage nothing changes.

    Args:
        stages: The stages.
        every: The group of each device, the last one for those that no stage chooses.
        held: The group of each device of the control group.
    """
    if not selectors(stages):
        return tuple(stages)
    whole = Counter(every)
    starting = whole - Counter(held)
    counted, group = [], 0
    for stage in stages:
        if stage.selector:
            group += 1
            reached = sum(starting[number] for number in range(group))
            counted.append(replace(stage, count=reached, percent=None))
        else:
            counted.append(stage)
    targets = targets_of(counted, whole.total(), whole.total())
    return tuple(
        replace(stage, asks_gates=_compared(target, starting, whole) >= LEAST_DEVICES)
        for stage, target in zip(counted, targets, strict=True)
    )


def _compared(target: int, starting: Counter[int], whole: Counter[int]) -> int:
    """Return how many of the devices that have the release gates can compare with others."""
    left, compared = target, 0
    for group in sorted(starting):
        reached = min(left, starting[group])
        left -= reached
        compared += reached if whole[group] >= LEAST_OF_ROLLOUT else 0
    return compared


def reach(stages: Sequence[StageSpec], number: int) -> int | None:
    """Return the place below which devices may start in a stage; None for all places.

    Args:
        stages: The stages.
        number: The stage, from 1.
    """
    done = len(selectors(stages[: number - 1]))
    return (done + 1) * PLACES if selectors(stages[number - 1 :]) else None
