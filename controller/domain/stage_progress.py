"""How many devices each stage of a rollout brings to the release, and how far it is. Pure.

Rules:
- Stages are cumulative; the last one includes devices that joined late.
- A stage that chooses its devices, and each before it, starts no others, and does not wait for more
  than there are.
- A stage that was to wait for gates waits for them also when devices have left the rollout, and too
  few may be left to tell: then a person decides.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from controller.domain.gates.states import GateState
from controller.domain.rollout_view import GateView, RolloutView, StageSpec
from controller.domain.states import RolloutState

StageState = Literal[
    "waiting",
    "waiting_for_shadow",
    "running",
    "soaking",
    "waiting_for_gates",
    "waiting_for_devices",
    "awaiting_approval",
    "done",
]

_ROUNDING = 1e-9
"""Keeps 10 % of 30 at 3 although 0.1 has no exact binary form."""


def target_of(view: RolloutView) -> int:
    """Return how many devices the current stage brings to the release, without those held back."""
    most = view.devices - view.control
    if view.reachable is not None:
        most = min(most, view.started + view.reachable)
    return min(stage_targets(view)[view.stage - 1], most)


def holding(view: RolloutView) -> tuple[GateView, ...]:
    """Return the gates for which the current stage waits when all else is done.

    One that has passed is looked at once more when the stage has soaked: harm may come late.
    """
    reached = max(target_of(view), _meant_target(view))
    is_enough = view.stages[view.stage - 1].is_enough(reached)
    if view.gates_passed_by_hand >= view.stage or not is_enough or not view.devices:
        return ()
    complete_s = view.stage_complete_at_s
    soaked_s = math.inf if complete_s is None else complete_s + view.soak_s
    return tuple(
        gate
        for gate in view.asked
        if not gate.is_waived and (gate.state is not GateState.PASS or gate.looked_at_s < soaked_s)
    )


def _meant_target(view: RolloutView) -> int:
    """Return how many devices the current stage was to bring to the release at the beginning."""
    meant = view.initial_devices
    return min(targets_of(view.stages, meant, meant)[view.stage - 1], meant - view.control)


def stage_targets(view: RolloutView) -> tuple[int, ...]:
    """Return how many devices each stage brings to the release, earlier stages included."""
    return targets_of(view.stages, view.devices, view.initial_devices)


def targets_of(stages: Sequence[StageSpec], devices: int, initial: int) -> tuple[int, ...]:
    """Return how many devices each of some stages brings to the release.

    Args:
        stages: The stages.
        devices: How many devices take part.
        initial: How many did when the rollout was made.

    Returns:
        For each stage, earlier ones included.
    """
    targets: list[int] = []
    reached = 0
    for number, stage in enumerate(stages, start=1):
        base = devices if number == len(stages) else initial
        reached = min(max(reached, stage_size(stage, base)), devices)
        targets.append(reached)
    return tuple(targets)


def stage_size(stage: StageSpec, devices: int) -> int:
    """Return how many of so many devices a stage asks for."""
    if stage.count is not None:
        return stage.count
    return math.ceil(devices * (stage.percent or 0.0) / 100.0 - _ROUNDING)


def stage_states(view: RolloutView) -> tuple[StageState, ...]:
    """Return the state of each stage, to be shown to people."""
    is_short = view.started - view.waiting < target_of(view)
    return tuple(
        _stage_state(view, number, is_short=is_short) for number in range(1, len(view.stages) + 1)
    )


def _stage_state(view: RolloutView, number: int, *, is_short: bool) -> StageState:
    if number != view.stage:
        return "done" if number < view.stage else "waiting"
    if view.state is RolloutState.SUCCEEDED:
        return "done"
    if view.waits_for_shadow:
        return "waiting_for_shadow"
    if view.stage_complete_at_s is None or (is_short and not view.finished):
        return "running"
    state: StageState = "waiting_for_devices" if is_short else "soaking"
    if view.now_s - view.stage_complete_at_s < view.soak_s:
        state = "soaking"
    elif holding(view):
        state = "waiting_for_gates"
    elif number < len(view.stages) and needs_approval(view):
        state = "awaiting_approval"
    return state


def needs_approval(view: RolloutView) -> bool:
    """Tell whether the stage after the current one waits for the operator."""
    return view.approval and view.approved_stage <= view.stage
