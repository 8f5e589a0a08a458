"""What a decision about a rollout needs to know: limits, stages, devices, gates. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from controller.domain.gates.states import LEAST_DEVICES, GateState
from controller.domain.stage_shadow import ShadowNeed, ShadowView
from controller.domain.states import RolloutState

OnHalt = Literal["keep", "revert"]
"""What becomes of devices that have the release when a rule halts their rollout."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageSpec:
    """How far one stage goes: a number of devices or a share of them, earlier stages included."""

    count: int | None = None
    percent: float | None = None
    selector: str = ""
    """By which it chooses its devices; `count` then says how many there are."""

    soak_s: float | None = None
    """Its own; None for that of the rollout."""

    approval: bool | None = None
    """Whether the next stage waits for the operator; None for what holds in the rollout."""

    asks_gates: bool | None = None
    """Whether it reaches enough devices that can be compared, where stages choose some; None where
    its size tells."""

    shadow: ShadowNeed | None = None
    """What the release must have shown as a shadow before it begins; None for nothing."""

    def is_enough(self, reached: int) -> bool:
        """Tell whether it waits for gates.

        Args:
            reached: How many devices have the release by its end.
        """
        return reached >= LEAST_DEVICES if self.asks_gates is None else self.asks_gates


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What the operator set for a rollout."""

    max_in_flight: int
    soak_s: float
    device_deadline_s: float
    """How long a device may be online without an outcome."""

    offline_limit_s: float
    """How long a stage waits for devices that are offline, and how long a device may be away while
    the release may run on it."""

    max_failures: int
    max_failure_percent: float | None
    min_finished: int
    approval: bool
    max_refused: int | None = None
    """Of devices that refused; None if they count as failed."""

    max_timed_out: int | None = None
    """Of devices that were silent or lost; None if they count as failed."""

    worst_case: bool = False
    """Whether a device starts only if the share of failed ones is kept at worst, too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InFlight:
    """A device that was started and has not finished."""

    device: str
    online: bool = True
    online_s: float
    """How long it was online since it was started."""

    away_s: float = 0.0
    """How long it is offline now."""

    phase: str = ""
    """What it reported last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GateView:
    """A gate, and what the last look at it has shown."""

    text: str
    stage: int | None = None
    """The only stage in which it is asked; None for all."""

    state: GateState = GateState.HOLD
    reason: str = ""
    looked_at_s: float = -math.inf
    """By the rollout's own clock."""

    is_waived: bool = False
    """Whether the operator went on although it had failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutView:
    """Everything that a decision needs."""

    now_s: float
    """The rollout's own clock."""

    state: RolloutState
    limits: Limits
    is_way_back: bool = False
    """Whether it brings devices back to what they had."""

    stages: tuple[StageSpec, ...]
    stage: int
    """The current one, from 1."""

    stage_complete_at_s: float | None
    """The time since which every device of the current stage that is not offline has finished."""

    approved_stage: int
    """The last stage that the operator approved."""

    initial_devices: int
    """Devices when the rollout was made; the percentages of all stages but the last refer to it."""

    succeeded: int
    failed: int
    """Devices that refused or timed out among them."""

    refused: int = 0
    timed_out: int = 0
    """How many of the failed did; without those that the operator acknowledged."""

    acknowledged: int = 0
    """Failed devices that the operator acknowledged."""

    in_flight: tuple[InFlight, ...]
    waiting: int = 0
    """Devices that have their order and went offline; nothing is expected of them."""

    returned: tuple[str, ...] = ()
    """Those of them that are online again."""

    pending: int
    """Devices that were not started."""

    control: int = 0
    """Devices of the control group that keep the old release for now; `pending` is without them."""

    reachable: int | None = None
    """Those of `pending` that may start in this stage, where stages choose devices; None for all.
    """

    may_start: int | None = None
    """How many devices the rate of starting lets start now; None for any number."""

    gates: tuple[GateView, ...] = ()
    """Empty when the control group has got the release: nothing is left to compare with."""

    gates_passed_by_hand: int = 0
    """The last stage that the operator let end despite gates that held."""

    shadow: ShadowView | None = None
    """That for which the current stage waits; None if it needs none."""

    superseded_by: str = ""
    """The rollout that took its devices that had not started."""

    awaits: str = ""
    """An older one, whose devices this one takes in when that has ended."""

    candidates: tuple[str, ...] = ()
    """The first of those that are online, in the order in which they will start: at least as many
    as `wanted` says."""

    @property
    def finished(self) -> int:
        """Devices with an outcome."""
        return self.succeeded + self.failed

    @property
    def started(self) -> int:
        """Devices that were started, whatever has become of them."""
        return self.finished + len(self.in_flight) + self.waiting

    @property
    def devices(self) -> int:
        """Devices that take part, without those that were skipped."""
        return self.started + self.pending + self.control

    @property
    def soak_s(self) -> float:
        """How long the current stage must stay good."""
        own = self.stages[self.stage - 1].soak_s
        return self.limits.soak_s if own is None else own

    @property
    def approval(self) -> bool:
        """Whether the stage after the current one waits for the operator."""
        own = self.stages[self.stage - 1].approval
        return self.limits.approval if own is None else own

    @property
    def asks_approval(self) -> bool:
        """Whether any stage waits for the operator."""
        return any(self.limits.approval if s.approval is None else s.approval for s in self.stages)

    @property
    def waits_for_shadow(self) -> bool:
        """Whether nobody starts in the current stage before its shadow has passed."""
        is_left = self.pending + self.control > 0
        return is_left and self.shadow is not None and self.shadow.holds

    @property
    def asked(self) -> tuple[GateView, ...]:
        """The gates that are asked in the current stage."""
        return tuple(gate for gate in self.gates if gate.stage in {None, self.stage})
