"""The states of devices, releases, rollouts and deployments, and the events that change them.

Rules:
- A pair that is not in a table is refused, here and by the database's guarded updates.
- No event leads out of a final state. A halt is not final, nor is what it cancelled: the operator
  may resume it.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final, TypeVar


class DeviceState(StrEnum):
    """Whether a device is one of the fleet."""

    ENROLLED = "enrolled"
    QUARANTINED = "quarantined"
    """Kept out of every rollout and off the broker until the operator lets it back."""

    DECOMMISSIONED = "decommissioned"
    """Gone; its name is free for a device that enrols again."""


class ReleaseState(StrEnum):
    """Whether a release may be handed out."""

    PUBLISHED = "published"
    REVOKED = "revoked"


class DeltaState(StrEnum):
    """What is known of the delta between two files."""

    MAKING = "making"
    READY = "ready"
    NONE = "none"
    """The file is sent whole: it does not pay, or, where it has a size, is too large to be kept."""

    FAILED = "failed"
    """It could not be made; it is tried again later."""


class TokenState(StrEnum):
    """Whether the broker account of an enrolment token exists."""

    OPEN = "open"
    CLOSED = "closed"


AUTO: Final = "auto"
"""An enrolment token that lets in every device."""

BY_HAND: Final = "by-hand"
"""One that lets in none by itself."""


class WaitingState(StrEnum):
    """What the operator made of a device that waits to be let in."""

    WAITING = "waiting"
    ACCEPTED = "accepted"
    """It is let in when it asks the next time."""

    REFUSED = "refused"


class RolloutState(StrEnum):
    """Where a rollout is."""

    RUNNING = "running"
    PAUSED = "paused"
    """No further device starts. Devices that were started go on, and the abort rules still hold."""

    HALTED = "halted"
    """Stopped by its abort rules, or because its release was revoked; it can be resumed."""

    SUCCEEDED = "succeeded"
    ABORTED = "aborted"
    """Ended by the operator."""


class RolloutOrder(StrEnum):
    """What happens to a rollout."""

    PAUSE = "pause"
    RESUME = "resume"
    """Go on after a pause; after a halt, without regard to the devices that failed so far."""

    HALT = "halt"
    ABORT = "abort"
    FINISH = "finish"


class DeploymentState(StrEnum):
    """Where one device of a rollout is."""

    PENDING = "pending"
    ASSIGNED = "assigned"
    WAITING = "waiting"
    """The device has its order, but was offline; it goes on when it returns."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


class DeploymentEvent(StrEnum):
    """What happens to one device of a rollout."""

    ASSIGN = "assign"
    """The device gets its order, or is back with it."""

    WAIT = "wait"
    """The device is offline: nothing is expected of it until it returns."""

    SUCCEED = "succeed"
    FAIL = "fail"
    """The device reported a failure, its deadline passed, or it took its success back."""

    CANCEL = "cancel"
    REOPEN = "reopen"
    """The rollout whose halt cancelled it goes on."""

    REPLACE = "replace"
    """Another device enrolled in its name, which begins anew."""


class WorkKind(StrEnum):
    """What is left to do with devices of a rollout after an order that takes several transactions.

    While anything is left nobody decides about the rollout, so that no device starts.
    """

    TAKE_OUT = "take_out"
    """The rollout was halted or aborted: its devices go back, or do not begin."""

    RECALL = "recall"
    """The rollout was rolled back after its end: devices no longer wait for its release."""

    CANCEL = "cancel"
    """The rollout has succeeded without these devices."""

    LET_FINISH = "let_finish"
    """A rollback was halted or aborted: devices that it rids of a release keep their order and
    finish by themselves; the others go back, or do not begin."""

    LET_GO = "supersede"
    """These devices, which have not begun, leave the rollout, which goes on: another one takes
    them, or the operator excluded them. The database keeps the word for the first of these."""

    TAKE_IN = "take_in"
    HOLD_OUT = "hold_out"
    """Taken in as one of the control group."""

    LEAVE_OUT = "leave_out"
    """Recorded as a device that cannot take the release."""

    REOPEN = "reopen"
    """A halted rollout goes on: what the halt cancelled is pending again."""


MAKING_WORK = (WorkKind.TAKE_IN, WorkKind.HOLD_OUT, WorkKind.LEAVE_OUT)
ENDED_WORK = (WorkKind.TAKE_OUT, WorkKind.RECALL, WorkKind.CANCEL, WorkKind.LET_FINISH)
"""With all devices of a rollout that has ended."""

ENDING_WORK = (*ENDED_WORK, WorkKind.LET_GO)
"""It comes before all else: other rollouts of the model wait for those devices."""

ROLLOUT_TRANSITIONS: Mapping[tuple[RolloutState, RolloutOrder], RolloutState] = {
    (RolloutState.RUNNING, RolloutOrder.PAUSE): RolloutState.PAUSED,
    (RolloutState.PAUSED, RolloutOrder.RESUME): RolloutState.RUNNING,
    (RolloutState.HALTED, RolloutOrder.RESUME): RolloutState.RUNNING,
    (RolloutState.RUNNING, RolloutOrder.HALT): RolloutState.HALTED,
    (RolloutState.PAUSED, RolloutOrder.HALT): RolloutState.HALTED,
    (RolloutState.RUNNING, RolloutOrder.ABORT): RolloutState.ABORTED,
    (RolloutState.PAUSED, RolloutOrder.ABORT): RolloutState.ABORTED,
    (RolloutState.RUNNING, RolloutOrder.FINISH): RolloutState.SUCCEEDED,
    # Another rollout took what was left of it.
    (RolloutState.PAUSED, RolloutOrder.FINISH): RolloutState.SUCCEEDED,
}

DEPLOYMENT_TRANSITIONS: Mapping[tuple[DeploymentState, DeploymentEvent], DeploymentState] = {
    (DeploymentState.PENDING, DeploymentEvent.ASSIGN): DeploymentState.ASSIGNED,
    (DeploymentState.PENDING, DeploymentEvent.WAIT): DeploymentState.WAITING,
    (DeploymentState.PENDING, DeploymentEvent.CANCEL): DeploymentState.CANCELLED,
    (DeploymentState.ASSIGNED, DeploymentEvent.WAIT): DeploymentState.WAITING,
    (DeploymentState.ASSIGNED, DeploymentEvent.SUCCEED): DeploymentState.SUCCEEDED,
    (DeploymentState.ASSIGNED, DeploymentEvent.FAIL): DeploymentState.FAILED,
    (DeploymentState.ASSIGNED, DeploymentEvent.CANCEL): DeploymentState.CANCELLED,
    (DeploymentState.WAITING, DeploymentEvent.ASSIGN): DeploymentState.ASSIGNED,
    (DeploymentState.WAITING, DeploymentEvent.SUCCEED): DeploymentState.SUCCEEDED,
    (DeploymentState.WAITING, DeploymentEvent.FAIL): DeploymentState.FAILED,
    (DeploymentState.WAITING, DeploymentEvent.CANCEL): DeploymentState.CANCELLED,
    # The last report for a revision is its outcome: a device may fall back while a stage soaks.
    (DeploymentState.SUCCEEDED, DeploymentEvent.FAIL): DeploymentState.FAILED,
    (DeploymentState.SUCCEEDED, DeploymentEvent.REPLACE): DeploymentState.PENDING,
    (DeploymentState.CANCELLED, DeploymentEvent.REOPEN): DeploymentState.PENDING,
}

ACTIVE_ROLLOUTS = (RolloutState.RUNNING, RolloutState.PAUSED)
ORDERED_DEPLOYMENTS = (DeploymentState.ASSIGNED, DeploymentState.WAITING)
"""The device has its order, and no outcome is known."""

UNFINISHED_DEPLOYMENTS = (DeploymentState.PENDING, *ORDERED_DEPLOYMENTS)
ENDING_EVENTS = (DeploymentEvent.SUCCEED, DeploymentEvent.FAIL, DeploymentEvent.CANCEL)

S = TypeVar("S", bound=StrEnum)
E = TypeVar("E", bound=StrEnum)


def sources(transitions: Mapping[tuple[S, E], S], event: E) -> tuple[S, ...]:
    """Return the states that allow an event."""
    return tuple(state for state, known in transitions if known == event)


def outcome(transitions: Mapping[tuple[S, E], S], event: E) -> S:
    """Return the state to which an event leads from every state that allows it.

    Args:
        transitions: A table.
        event: An event that always leads to the same state.

    Returns:
        The state.

    Raises:
        KeyError: The event leads nowhere or to several states.
    """
    targets = {target for (_, known), target in transitions.items() if known == event}
    if len(targets) != 1:
        raise KeyError(event)
    return targets.pop()


def shown_state(state: DeploymentState, *, online: bool) -> DeploymentState:
    """Return the state of a deployment as people see it.

    Args:
        state: As it is recorded.
        online: Whether the device is online.

    Returns:
        `WAITING` for an unfinished deployment of a device that is offline, `ASSIGNED` for one that
        waited and is back, or whose rollout left it its order, else the state.
    """
    if state in UNFINISHED_DEPLOYMENTS and not online:
        return DeploymentState.WAITING
    return DeploymentState.ASSIGNED if state is DeploymentState.WAITING else state
