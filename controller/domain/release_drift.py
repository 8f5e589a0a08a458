"""Why a device runs another release than it should. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from controller.domain.states import ORDERED_DEPLOYMENTS, DeploymentState


class Cause(StrEnum):
    """Why a device does not run what it should, as far as the controller knows."""

    FAILED = "failed"
    """Its install failed, also one that began after its rollout had ended without it."""

    REFUSES = "refuses"
    """It has not accepted its desired state, and said why."""

    OFFLINE = "offline"
    """It has its order, or gets it when it is back."""

    IN_FLIGHT = "in-flight"
    """It is installing, or is being told."""

    CONTRADICTS = "contradicts"
    """It reported that its install succeeded, and says now that another release is active."""

    LOST = "lost"
    """It has accepted the order and runs another release, without a word why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What is known of a device and a model that it should run another release of."""

    online: bool
    has_accepted: bool
    """Whether it has accepted its newest desired state."""

    error: str
    """What it said last that concerns no single model, such as why it refuses."""

    part: DeploymentState | None
    """How the order went that gave it the release; None if no rollout gave it."""

    order_accepted: bool
    """Whether it has accepted that order."""

    model_error: str = ""
    """How its last install of the model failed; empty if it did not, or none of the order ended."""

    installs: bool = False
    """Whether it said last that it is installing the model."""


def cause(known: Known) -> Cause:
    """Return why a device runs another release than it should.

    Args:
        known: What is known of it.
    """
    # No rollout waits for a device that was away when its rollout ended, or is on the way back of
    # one: nothing but its own word tells how that went.
    is_alone = known.part in {None, DeploymentState.CANCELLED}
    if known.part is DeploymentState.FAILED:
        return Cause.REFUSES if known.error and not known.order_accepted else Cause.FAILED
    if is_alone and known.model_error and not known.installs:
        return Cause.FAILED
    if not known.online:
        return Cause.OFFLINE
    if known.part in ORDERED_DEPLOYMENTS or (is_alone and known.installs):
        return Cause.IN_FLIGHT
    if not known.has_accepted:
        return Cause.REFUSES if known.error else Cause.IN_FLIGHT
    return Cause.CONTRADICTS if known.part is DeploymentState.SUCCEEDED else Cause.LOST
