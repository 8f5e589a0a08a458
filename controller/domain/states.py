"""The states of devices, releases, rollouts and deployments, and the events that change them.

Rules:
- A pair that is not in a table is refused, here and by the database's guarded updates.
- No event leads out of a final state.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import TypeVar


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


class TokenState(StrEnum):
    """Whether the broker account of an enrolment token exists."""

    OPEN = "open"
    CLOSED = "closed"


class RolloutState(StrEnum):
    """Where a rollout is."""

    RUNNING = "running"
    PAUSED = "paused"
    """No further device starts. Devices that were started go on, and the abort rules still hold."""

    HALTED = "halted"
    """Ended by its abort rules, or because its release was revoked."""

    SUCCEEDED = "succeeded"
    ABORTED = "aborted"
    """Ended by the operator."""


class RolloutOrder(StrEnum):
    """What happens to a rollout."""

    PAUSE = "pause"
    RESUME = "resume"
    HALT = "halt"
    ABORT = "abort"
    FINISH = "finish"


class DeploymentState(StrEnum):
    """Where one device of a rollout is."""

    PENDING = "pending"
    ASSIGNED = "assigned"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


class DeploymentEvent(StrEnum):
    """What happens to one device of a rollout."""

    ASSIGN = "assign"
    SUCCEED = "succeed"
    FAIL = "fail"
    """The device reported a failure, its deadline passed, or it took its success back."""

    CANCEL = "cancel"


ROLLOUT_TRANSITIONS: Mapping[tuple[RolloutState, RolloutOrder], RolloutState] = {
    (RolloutState.RUNNING, RolloutOrder.PAUSE): RolloutState.PAUSED,
    (RolloutState.PAUSED, RolloutOrder.RESUME): RolloutState.RUNNING,
    (RolloutState.RUNNING, RolloutOrder.HALT): RolloutState.HALTED,
    (RolloutState.PAUSED, RolloutOrder.HALT): RolloutState.HALTED,
    (RolloutState.RUNNING, RolloutOrder.ABORT): RolloutState.ABORTED,
    (RolloutState.PAUSED, RolloutOrder.ABORT): RolloutState.ABORTED,
    (RolloutState.RUNNING, RolloutOrder.FINISH): RolloutState.SUCCEEDED,
}

DEPLOYMENT_TRANSITIONS: Mapping[tuple[DeploymentState, DeploymentEvent], DeploymentState] = {
    (DeploymentState.PENDING, DeploymentEvent.ASSIGN): DeploymentState.ASSIGNED,
    (DeploymentState.PENDING, DeploymentEvent.CANCEL): DeploymentState.CANCELLED,
    (DeploymentState.ASSIGNED, DeploymentEvent.SUCCEED): DeploymentState.SUCCEEDED,
    (DeploymentState.ASSIGNED, DeploymentEvent.FAIL): DeploymentState.FAILED,
    (DeploymentState.ASSIGNED, DeploymentEvent.CANCEL): DeploymentState.CANCELLED,
    # The last report for a revision is its outcome: a device may fall back while a stage soaks.
    (DeploymentState.SUCCEEDED, DeploymentEvent.FAIL): DeploymentState.FAILED,
}

ACTIVE_ROLLOUTS = (RolloutState.RUNNING, RolloutState.PAUSED)
UNFINISHED_DEPLOYMENTS = (DeploymentState.PENDING, DeploymentState.ASSIGNED)

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
