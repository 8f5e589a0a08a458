"""The requests and answers of the HTTP API about rollouts, how far they are and their gates."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from controller.device_schemas import Transfer
from controller.domain.gates.states import GateState
from controller.domain.states import DeploymentState, RolloutState
from controller.domain.transfers import TransferSum
from controller.rollout_control_schemas import FailureSums, RolloutControl, ShownLimits
from controller.schemas import Bounds, Request
from controller.stage_schemas import MAX_DEVICES, MAX_WAIT_S, Rate, Stage, StageProgress

UnfitRule = Literal["refuse", "exclude", "allow"]


@dataclass(kw_only=True)
class RolloutRequest(RolloutControl):
    """A new rollout."""

    release: str
    """`name:version` or a digest."""

    selector: str = ""
    """Label expression; empty selects every enrolled device."""

    stages: list[Stage] = field(default_factory=lambda: [Stage(percent=100)])
    spread: str = ""
    """A label: devices start in such an order that each part of it has of each of its values about
    its share. Empty for a plain shuffle."""

    rate: Rate | None = None
    """None for as many as `max_in_flight` allows."""

    max_in_flight: Annotated[int, Bounds(ge=1, le=MAX_DEVICES)] = 100
    soak_s: Annotated[float, Bounds(ge=0, le=MAX_WAIT_S)] = 0
    """How long a finished stage must stay good before the next begins."""

    device_deadline_s: Annotated[float, Bounds(gt=0, le=MAX_WAIT_S)] = 3600
    """A device that was online for longer than this without an outcome counts as failed."""

    offline_limit_s: Annotated[float, Bounds(ge=0, le=MAX_WAIT_S)] = 86_400
    """How long a stage waits for devices that are offline. A device that goes offline when the
    release may have run on it, and is away for longer, counts as failed."""

    max_failures: Annotated[int, Bounds(ge=0, le=MAX_DEVICES)] = 0
    """More failed devices than this halt the rollout."""

    max_failure_percent: Annotated[float, Bounds(ge=0, le=100)] | None = None
    """From `min_finished` finished devices on, a larger share of failed ones halts it too."""

    min_finished: Annotated[int, Bounds(ge=1, le=MAX_DEVICES)] = 10
    approval: bool = False
    """Wait for `approve` between stages."""

    gates: list[str] = field(default_factory=list)
    """What the release may do to what devices measure, such as
    `p95(inference_latency_ms) <= +10%`; a stage ends when all of them have passed."""

    control_percent: Annotated[float, Bounds(ge=0, le=50)] = 10
    """With gates: what part of each kind of device keeps the old release to the end, to compare the
    others with. 0 for none: then devices are compared with themselves before."""

    shadow_agreement_percent: Annotated[float, Bounds(gt=0, le=100)] | None = None
    """Refused unless the release, as the shadow of its model, answered so many requests as the one
    that serves, at the mean over devices. None to ask for no shadow."""

    unfit: UnfitRule | None = None
    """What becomes of devices that cannot take the release: `refuse` the rollout, `exclude` them
    from it, or `allow` them, also if all are; each device then decides. None for `refuse`."""

    id: str | None = None
    """The identifier that a plan has named, so that the same devices start first; None for a new
    one."""


@dataclass(kw_only=True)
class RollbackRequest(Request):
    """Bring the devices that a rollout touched to another release, stage by stage."""

    release: str | None = None
    """`name:version` or a digest; None for what each device had before the rollout."""

    keep_pace: bool = False
    """Soak, keep the rate, and wait for approvals and for devices that are offline, as the rollout
    did. Without it a way back to what the devices had does none of these; a rollback to another
    release, or of a rollback, does all the same."""


@dataclass(kw_only=True)
class RetryRequest(Request):
    """Bring the release of a rollout to the devices that do not run it, stage by stage."""

    only_failed: bool = False
    """Leave out the devices that were not reached."""


@dataclass(kw_only=True)
class PossibleOrder:
    """What an order about an ended rollout would do now."""

    devices: int
    """How many devices it would take; 0 if it would be refused."""

    refused: str = ""
    """Why it would be, as one line; empty if it would not."""

    remedy: str = ""


@dataclass(kw_only=True)
class PossibleFollowUps:
    """Which rollouts could follow a rollout now."""

    rollout: str
    with_release: int
    """How many of its devices run its release or are to run it."""

    rollback: PossibleOrder
    """To what each device had before."""

    retry: PossibleOrder
    retry_failed: PossibleOrder
    """Of the devices that failed alone."""


@dataclass(kw_only=True)
class Deployment:
    """One device's part in a rollout."""

    device: str
    state: DeploymentState
    """`waiting` if the device is offline, or was when the rollout ended."""

    release: str = ""
    """`name:version` that the device is brought to."""

    stage: int
    """The one in which it was started, from 1; 0 before."""

    phase: str = ""
    done_bytes: int = 0
    total_bytes: int = 0
    transfer: Transfer | None = None
    """None while it fetches nothing, and until it has reported to this start of the controller."""

    error_code: str = ""
    detail: str = ""
    started_at_s: float | None = None
    finished_at_s: float | None = None


@dataclass(kw_only=True)
class OutcomeGroup:
    """Devices without success, and one reason that they share."""

    state: DeploymentState
    error_code: str
    count: int
    detail: str
    """Of the first of them."""

    devices: list[str]
    """The first of them, by name."""


@dataclass(kw_only=True)
class DevicePart:
    """One device's part in a rollout, with what explains it."""

    rollout: str
    deployment: Deployment
    online: bool
    is_control: bool
    """Whether it is of the control group, which keeps the old release until the gates passed."""

    ahead: int
    """How many devices start before it; 0 if it was started."""

    previous: str = ""
    """`name:version` that it had before, and can go back to; empty for none."""

    desired: str = ""
    """`name:version` of the model that it is to run now; empty for none."""


@dataclass(kw_only=True)
class RolloutEvent:
    """A decision and its reason."""

    at_s: float
    action: str
    reason: str
    actor: str = ""
    """The API token of the request in which it was made; empty for the controller's own."""


@dataclass(kw_only=True)
class GateLook:
    """What a look at a gate has shown."""

    at_s: float
    stage: int
    state: GateState
    reason: str
    estimate: float | None = None
    """By how much devices with the new release differ: a part of the old value for a gate with `%`,
    a share for `pp`, else in the metric's unit; None if nothing can be told."""

    low: float | None = None
    """The ends of its interval. All intervals of all looks at all gates of the rollout hold the
    true differences together, with a chance of 95 %."""

    high: float | None = None
    treated: int = 0
    """Devices with the new release that count."""

    control: int = 0
    """Devices with the old one; 0 where devices are compared with themselves before."""

    unseen: float | None = None
    """What part of the devices may do otherwise although none was seen that does, when it passed;
    None for a gate in the worst case, which has that within its limit, and for other states."""


@dataclass(kw_only=True)
class ShownGate:
    """A gate of a rollout."""

    text: str
    limit: float
    unit: str
    """`%`, `pp`, or empty for the metric's own unit."""

    stage: int | None = None
    """The only one in which it is asked; None for all."""

    waived: bool = False
    """Whether the operator went on although it had failed."""

    looks: list[GateLook] = field(default_factory=list)
    """The oldest first; in lists and of one rollout only the last."""


@dataclass(kw_only=True)
class RolloutGates:
    """The gates of a rollout, with every look at them."""

    rollout: str
    control: int
    """Devices held out."""

    gates: list[ShownGate]
    next_look_in_s: float | None = None
    """In how many seconds they are looked at next, at the earliest; None if they are not."""


@dataclass(kw_only=True)
class Rollout:
    """A rollout and how far it is."""

    id: str
    release: str
    """The release that the devices are brought to; of a rollback to what they had before, that of
    most of them."""

    model: str = ""
    """The name of the release: a rollout changes no other model of its devices."""

    previous: dict[str, int] = field(default_factory=dict)
    """How many devices ran which release before."""

    selector: str
    rolled_back_by: str | None = None
    """The rollout that brings its devices back; None in lists of rollouts."""

    retried_by: list[str] = field(default_factory=list)
    """The rollouts that tried its devices again, the oldest first; empty in lists of rollouts."""

    rollback_of: str | None = None
    """The rollout that this one undoes; no further device joins it."""

    retry_of: str | None = None
    """The rollout whose release this one brings to the devices without it; no further one joins."""

    state: RolloutState
    reason: str = ""
    """The reason of the last decision."""

    created_at_s: float
    created_by: str = ""
    """The API token that made it: another one must approve its stages. Empty if it is not known."""

    finished_at_s: float | None
    stages: list[StageProgress]
    spread: str = ""
    """The label over which its devices are spread."""

    rate: Rate | None = None
    rate_now: float | None = None
    """How many devices may start in a minute now, as the rate has grown; None without one."""

    counts: dict[DeploymentState, int]
    preparing: int = 0
    """Devices that are still to be taken in, of many; none starts before all of them are. They are
    not in `counts` yet, or count as cancelled there after a halt."""

    control: int = 0
    """Devices that keep the old release until the gates have passed in the last stage; of one that
    was halted or aborted, those that did."""

    gates: list[ShownGate] = field(default_factory=list)
    next_look_in_s: float | None = None
    """In how many seconds its gates are looked at next, at the earliest; None if they are not, and
    in lists of rollouts."""

    acknowledged: int = 0
    """How many of the failed devices the operator acknowledged by going on after a halt."""

    failures: FailureSums = field(default_factory=FailureSums)
    priority: int = 0
    superseded_by: str | None = None
    """The rollout that took its devices that had not started."""

    limits: ShownLimits = field(default_factory=ShownLimits)
    windows: list[str] = field(default_factory=list)
    left_out: int = 0
    """How many of the cancelled devices take no part because they cannot take the release."""

    transfers: TransferSum | None = None
    """Of all devices that fetch now; None if none does, and in lists of rollouts."""

    outcomes: list[OutcomeGroup] = field(default_factory=list)
    """Why devices failed or were cancelled; empty in lists of rollouts."""

    deployments: list[Deployment] = field(default_factory=list)
    events: list[RolloutEvent] = field(default_factory=list)
