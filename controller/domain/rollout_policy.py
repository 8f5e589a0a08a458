"""What a rollout does next: a pure function of what is known.

Rules:
- The abort rules come first, also while the rollout is paused.
- Devices start only while the rollout runs. At most `max_in_flight` are in flight at once, and at
  most the stage's target is started in total.
- A device that was started counts towards its stage, whatever its outcome: no other device
  replaces a failed one.
- A device that sends no report before its deadline counts as failed.
- Stages are cumulative; the last one includes devices that joined late.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from controller.domain.states import ACTIVE_ROLLOUTS, RolloutState

Action = Literal["hold", "advance", "halt", "finish"]
StageState = Literal["waiting", "running", "soaking", "awaiting_approval", "done"]
_ROUNDING = 1e-9
"""Keeps 10 % of 30 at 3 although 0.1 has no exact binary form."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageSpec:
    """How far one stage goes: a number of devices or a share of them, earlier stages included."""

    count: int | None = None
    percent: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What the operator set for a rollout."""

    max_in_flight: int
    soak_s: float
    device_deadline_s: float
    max_failures: int
    max_failure_percent: float | None
    min_finished: int
    approval: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class InFlight:
    """A device that was started and has not finished."""

    device: str
    started_at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutView:
    """Everything that a decision needs."""

    now_s: float
    state: RolloutState
    limits: Limits
    stages: tuple[StageSpec, ...]
    stage: int
    """The current one, from 1."""

    stage_complete_at_s: float | None
    """The time since which every device of the current stage has finished."""

    approved_stage: int
    """The last stage that the operator approved."""

    initial_devices: int
    """Devices when the rollout was made; the percentages of all stages but the last refer to it."""

    succeeded: int
    failed: int
    in_flight: tuple[InFlight, ...]
    waiting: int
    """Devices that were not started."""

    candidates: tuple[str, ...]
    """The first of the waiting devices, in the order in which they will start."""

    @property
    def started(self) -> int:
        """Devices that were started, whatever their outcome."""
        return self.succeeded + self.failed + len(self.in_flight)

    @property
    def devices(self) -> int:
        """Devices that take part, without those that were skipped."""
        return self.started + self.waiting


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What to do now, and why."""

    action: Action
    reason: str
    start: tuple[str, ...] = ()
    expired: tuple[str, ...] = ()
    """Devices in flight that count as failed because their deadline has passed."""

    stage_complete_at_s: float | None = None
    """The time since which the current stage is complete; the caller saves it."""


def decide(view: RolloutView) -> Decision:
    """Decide what a rollout does next.

    Args:
        view: What is known of it.

    Returns:
        The decision with its reason; the reason stays the same as long as nothing else changes.
    """
    if view.state not in ACTIVE_ROLLOUTS:
        return Decision(action="hold", reason=f"the rollout is {view.state}")
    expired = tuple(
        item.device
        for item in view.in_flight
        if view.now_s - item.started_at_s > view.limits.device_deadline_s
    )
    fault = broken_rule(view, silent=len(expired))
    if fault is not None:
        return Decision(action="halt", reason=fault, expired=expired)
    if view.state is RolloutState.PAUSED:
        return Decision(
            action="hold",
            reason="paused by the operator",
            expired=expired,
            stage_complete_at_s=view.stage_complete_at_s,
        )
    target = stage_targets(view)[view.stage - 1]
    busy = len(view.in_flight) - len(expired)
    if view.started < target or busy:
        room = max(0, min(target - view.started, view.limits.max_in_flight - busy))
        return Decision(
            action="hold",
            reason=f"stage {view.stage} brings the release to {counted(target)}",
            start=view.candidates[:room],
            expired=expired,
        )
    return _after_stage(view, expired)


def broken_rule(view: RolloutView, *, silent: int) -> str | None:
    """Say which abort rule is broken.

    Args:
        view: What is known.
        silent: Devices in flight that are past their deadline.

    Returns:
        The reason to halt, or None.
    """
    limits, failed = view.limits, view.failed + silent
    finished = view.succeeded + failed
    silence = f", {silent} of them sent no report before the deadline" if silent else ""
    if failed > limits.max_failures:
        return f"{counted(failed)} failed{silence}; allowed: {limits.max_failures}"
    if limits.max_failure_percent is None or finished < limits.min_finished:
        return None
    percent = 100.0 * failed / finished
    if percent > limits.max_failure_percent:
        return (
            f"{percent:.1f} % of {finished} finished devices failed{silence}, "
            f"at most {limits.max_failure_percent:g} % are allowed"
        )
    return None


def counted(devices: int) -> str:
    """Return a number of devices as text: `1 device`, `2 devices`."""
    return "1 device" if devices == 1 else f"{devices} devices"


def stage_targets(view: RolloutView) -> tuple[int, ...]:
    """Return how many devices each stage brings to the release, earlier stages included."""
    targets: list[int] = []
    reached = 0
    for number, stage in enumerate(view.stages, start=1):
        base = view.devices if number == len(view.stages) else view.initial_devices
        if stage.count is not None:
            wanted = stage.count
        else:
            wanted = math.ceil(base * (stage.percent or 0.0) / 100.0 - _ROUNDING)
        reached = min(max(reached, wanted), view.devices)
        targets.append(reached)
    return tuple(targets)


def stage_states(view: RolloutView) -> tuple[StageState, ...]:
    """Return the state of each stage, to be shown to people."""
    return tuple(_stage_state(view, number) for number in range(1, len(view.stages) + 1))


def _stage_state(view: RolloutView, number: int) -> StageState:
    if number != view.stage:
        return "done" if number < view.stage else "waiting"
    if view.state is RolloutState.SUCCEEDED:
        return "done"
    if view.stage_complete_at_s is None:
        return "running"
    if view.now_s - view.stage_complete_at_s < view.limits.soak_s or number == len(view.stages):
        return "soaking"
    return "awaiting_approval" if _needs_approval(view) else "soaking"


def _after_stage(view: RolloutView, expired: tuple[str, ...]) -> Decision:
    since_s = view.stage_complete_at_s if view.stage_complete_at_s is not None else view.now_s
    if view.now_s - since_s < view.limits.soak_s:
        return Decision(
            action="hold",
            reason=f"stage {view.stage} is complete and soaks for {view.limits.soak_s:g} s",
            expired=expired,
            stage_complete_at_s=since_s,
        )
    if view.stage == len(view.stages):
        return Decision(
            action="finish",
            reason=f"{view.succeeded} of {view.devices} devices run the release",
            expired=expired,
            stage_complete_at_s=since_s,
        )
    if _needs_approval(view):
        return Decision(
            action="hold",
            reason=f"stage {view.stage + 1} waits for approval",
            expired=expired,
            stage_complete_at_s=since_s,
        )
    return Decision(
        action="advance",
        reason=f"stage {view.stage} is complete: stage {view.stage + 1} begins",
        expired=expired,
    )


def _needs_approval(view: RolloutView) -> bool:
    return view.limits.approval and view.approved_stage <= view.stage
