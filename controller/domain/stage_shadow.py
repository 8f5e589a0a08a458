"""A stage that begins when its release, as a shadow, answers as the one that serves. Pure.

Rules:
- Until the shadow has passed, nobody starts in the stage; one that fails halts the rollout.
- The operator may begin the stage all the same: by an approval while it holds, and by going on
  after a halt.
"""

from __future__ import annotations

from dataclasses import dataclass

from controller.domain.gates.states import LEAST_DEVICES, GateState
from wire.durations import format_duration

LEAST_REQUESTS = 20
"""Of a device, so that it counts."""

LEAST_IN_ALL = LEAST_DEVICES * LEAST_REQUESTS


@dataclass(frozen=True, slots=True, kw_only=True)
class ShadowNeed:
    """What a shadow must have shown before a stage begins."""

    agreement_percent: float
    """How often it answers as the release that serves, at the mean over devices; below 100."""

    requests: int = LEAST_IN_ALL
    """How many requests it has answered, of all devices."""

    for_s: float = 0.0
    """For how long it has run."""

    share: float = 0.01
    """The share of the requests that it sees, if the rollout starts it."""

    @property
    def text(self) -> str:
        """What it needs, for people: `99 % of 1,000 requests, for 1h`."""
        time = f", for {format_duration(self.for_s)}" if self.for_s else ""
        return f"{self.agreement_percent:g} % of {self.requests:,} requests{time}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ShadowView:
    """What is known of the shadow for which the current stage of a rollout waits."""

    state: GateState = GateState.HOLD
    reason: str = "it has not begun"
    is_waived: bool = False
    """Whether the operator began the stage all the same."""

    @property
    def holds(self) -> bool:
        """Whether nobody starts in the stage."""
        return self.state is not GateState.PASS and not self.is_waived

    @property
    def fails(self) -> bool:
        """Whether the rollout halts."""
        return self.state is GateState.FAIL and not self.is_waived
