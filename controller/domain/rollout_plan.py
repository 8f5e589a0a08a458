"""What a rollout would do, before it begins: who gets the release when, and how long. Pure.

Rules:
- The devices of a stage are those that the rollout would start if nothing changed meanwhile: those
  that are online come first, in the order of starting, then those that are offline.
- A stage that chooses its devices starts no others, and neither does one before it.
- The control group is as the rollout would choose it, and ends the last stage.
- How long it takes is told only by enough earlier installs of the model. Devices in flight begin
  together, so the median tells how long a stage takes at least, and the slowest tenth about how
  long it takes to its last device.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from controller.domain.gates.control import held_out
from controller.domain.rollout_view import StageSpec
from controller.domain.stage_progress import targets_of
from controller.domain.stages import reach, resolved
from controller.domain.start_rate import StartRate, starting_s

LEAST_EARLIER: Final = 5
"""Earlier installs from which it is told how long one takes."""

SLOW: Final = 0.9
"""The part of earlier installs that were not slower than the slow one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedDevice:
    """A device that would take part."""

    id: str
    profile: str
    place: int
    """In the order of starting."""

    is_online: bool = True
    runs_it: bool = False
    """Whether it runs the release already: then it has nothing to fetch or to install."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StagePlan:
    """What a stage would do."""

    number: int
    """From 1."""

    target: int
    """How many devices it brings to the release, earlier stages included and the control group of
    the last one, too."""

    devices: tuple[PlannedDevice, ...]
    """Those that start in it, in their order, without the control group."""

    asks_gates: bool
    """Whether it reaches enough devices to wait for gates."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a rollout would do."""

    stages: tuple[StagePlan, ...]
    control: tuple[PlannedDevice, ...] = ()
    """The control group, in the order in which it gets the release in the end."""

    specs: tuple[StageSpec, ...] = ()
    """The stages as they were asked for, with what follows from the devices."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlierInstalls:
    """How long earlier installs took, from their start to their outcome."""

    count: int
    median_s: float
    slow_s: float
    """No more than a tenth of them took longer."""


def plan(
    devices: Sequence[PlannedDevice],
    stages: Sequence[StageSpec],
    *,
    has_gates: bool,
    control_percent: float,
) -> Plan:
    """Return what a rollout would do.

    Args:
        devices: The devices that would take part.
        stages: Its stages.
        has_gates: Whether it has gates; without, there is no control group.
        control_percent: What part of each profile is the control group.

    Returns:
        The stages with their devices.
    """
    places = {device.id: device.place for device in devices}
    profiles = {device.id: device.profile for device in devices}
    running = {device.id for device in devices if device.runs_it}
    percent = control_percent if has_gates else 0.0
    held, kinds = held_out(places, profiles, percent, running=running)
    order = sorted(devices, key=lambda each: (not each.is_online, each.place, each.id))
    starting = [device for device in order if device.id not in held]
    stages = resolved(stages, places, kinds, held)
    planned, reached = [], 0
    targets = targets_of(stages, len(order), len(order))
    for number, (stage, target) in enumerate(zip(stages, targets, strict=True), start=1):
        below = reach(stages, number)
        chosen, starting = _split(starting, max(0, target - reached), below)
        reached += len(chosen)
        planned.append(
            StagePlan(
                number=number,
                target=target if number == len(stages) else reached,
                devices=tuple(chosen),
                asks_gates=has_gates and stage.is_enough(reached),
            )
        )
    return Plan(
        stages=tuple(planned),
        control=tuple(device for device in order if device.id in held),
        specs=stages,
    )


def _split(
    devices: list[PlannedDevice], count: int, below: int | None
) -> tuple[list[PlannedDevice], list[PlannedDevice]]:
    """Return the first devices, only of those with lower places, if that is given; and the rest."""
    if below is None:
        return devices[:count], devices[count:]
    chosen = [device for device in devices if device.place < below][:count]
    gone = {device.id for device in chosen}
    return chosen, [device for device in devices if device.id not in gone]


def earlier_installs(took_s: Sequence[float]) -> EarlierInstalls | None:
    """Return how long earlier installs took; None if there are too few to tell.

    Args:
        took_s: For each install, from its start to its outcome.
    """
    if len(took_s) < LEAST_EARLIER:
        return None
    ordered = sorted(took_s)
    return EarlierInstalls(
        count=len(ordered),
        median_s=statistics.median(ordered),
        slow_s=ordered[math.ceil(SLOW * len(ordered)) - 1],
    )


def stage_s(
    stage: StagePlan,
    control: Sequence[PlannedDevice],
    *,
    each_s: float,
    max_in_flight: int,
    soak_s: float,
    rate: StartRate | None = None,
    begun: int = 0,
) -> float:
    """Return how long a stage takes if nothing holds it up.

    Args:
        stage: The stage.
        control: The control group that gets the release at its end; empty for all but the last.
        each_s: How long an install takes.
        max_in_flight: How many devices install at one time.
        soak_s: How long the stage then stays good; it does so again after the control group.
        rate: How many devices may start in a minute; None for any number.
        begun: How many have started in the stages before.

    Returns:
        Seconds.
    """
    rounds = _rounds(stage.devices, max_in_flight) + _rounds(control, max_in_flight)
    installs_s = rounds * each_s
    if rate is not None and rounds:
        count = len(stage.devices) + len(control)
        installs_s = max(installs_s, starting_s(rate, begun, count) + each_s)
    return installs_s + soak_s * (2 if control else 1)


def _rounds(devices: Sequence[PlannedDevice], max_in_flight: int) -> int:
    return math.ceil(sum(not device.runs_it for device in devices) / max_in_flight)
