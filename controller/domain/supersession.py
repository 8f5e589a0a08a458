"""When a new rollout may take devices out of an older one of the model. Pure.

Rules:
- One of a higher priority takes them unasked, one of the same only if it is asked to, one of a
  lower never.
- Devices that have not started move. Those that have finish in the older rollout first; the new one
  takes them in when that has ended. So no device is in two unfinished rollouts of a model.
- What one rollout has been promised no other takes: a rollout that is superseded already, or that
  waits for devices of an older one, is not superseded until that is over.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from controller.domain.states import DeploymentState


@dataclass(frozen=True, slots=True, kw_only=True)
class Met:
    """An unfinished rollout of the model, and which devices of the new one it has."""

    rollout: str
    priority: int
    moves: list[str] = field(default_factory=list)
    """Devices that have not started in it."""

    stays: list[str] = field(default_factory=list)
    """Devices that have."""

    claim: str = ""
    """Why no further rollout may take devices out of it; empty if one may."""

    def add(self, device: str, state: DeploymentState) -> None:
        """Add a device by the state of its deployment there."""
        (self.moves if state is DeploymentState.PENDING else self.stays).append(device)

    @property
    def first(self) -> str:
        """The first of its devices, by identifier."""
        return min(self.moves + self.stays)


def may_take(met: Met, *, priority: int, asked: bool) -> bool:
    """Tell whether a new rollout may take devices out of an older one.

    Args:
        met: The older one.
        priority: That of the new one.
        asked: Whether it is to supersede others.
    """
    return priority > met.priority or (asked and priority == met.priority)
