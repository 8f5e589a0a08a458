"""The stages of rollouts in requests and answers of the HTTP API, and how fast devices start."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from controller.domain.gates.states import GateState
from controller.domain.stage_progress import StageState
from controller.domain.stage_shadow import LEAST_IN_ALL
from controller.domain.start_rate import MAX_PER_MINUTE, MIN_PER_MINUTE
from controller.domain.transfers import TransferSum
from controller.schemas import Bounds, Request

MAX_DEVICES = 10_000_000
MAX_STAGES = 100
MAX_WAIT_S = 366 * 86_400
MAX_REQUESTS = 1_000_000_000


@dataclass(kw_only=True)
class StageShadow(Request):
    """What the release must have shown as a shadow before a stage begins.

    It runs on the devices of the rollout that were not started.
    """

    agreement_percent: Annotated[float, Bounds(gt=0, le=100)]
    """It answers so often as the release that serves, at the mean over devices. Below 100: no
    number of requests shows that it always does."""

    requests: Annotated[int, Bounds(ge=LEAST_IN_ALL, le=MAX_REQUESTS)] = LEAST_IN_ALL
    """It has answered so many, on all devices together."""

    for_s: Annotated[float, Bounds(ge=0, le=MAX_WAIT_S)] = 0
    """It has run for so long."""

    share: Annotated[float, Bounds(gt=0, le=1)] = 0.01
    """The share of the answered requests that it sees, if the rollout starts it."""


@dataclass(kw_only=True)
class ShownStageShadow:
    """How far a stage is that waits for a shadow, or has waited."""

    agreement_percent: float
    requests: int
    for_s: float
    share: float
    state: GateState
    reason: str
    """What is there, and what is missing."""

    waived: bool
    """Whether the operator began the stage all the same."""


@dataclass(kw_only=True)
class Stage(Request):
    """One step of a rollout: go on until this many devices run the release."""

    count: Annotated[int, Bounds(ge=1, le=MAX_DEVICES)] | None = None
    percent: Annotated[float, Bounds(gt=0, le=100)] | None = None
    selector: str | None = None
    """Go on until all devices that match run it; they start before all others."""

    grow: Annotated[float, Bounds(ge=1.1, le=1000)] | None = None
    """The last stage may stand for several: each so many times as large as the one before it, until
    all devices run the release. Each stage has one of these four."""

    soak_s: Annotated[float, Bounds(ge=0, le=MAX_WAIT_S)] | None = None
    """Its own; None for that of the rollout."""

    approval: bool | None = None
    """Whether the next stage waits for `approve`; None for what holds in the rollout."""

    gates: list[str] = field(default_factory=list)
    """Those that are asked in this stage alone, beside those of the rollout."""

    shadow: StageShadow | None = None
    """What it waits for before it begins; None for nothing."""


@dataclass(kw_only=True)
class Rate(Request):
    """How many devices start in a minute, and how that grows with those that succeed."""

    per_minute: Annotated[float, Bounds(ge=MIN_PER_MINUTE, le=MAX_PER_MINUTE)]
    factor: Annotated[float, Bounds(ge=1.1, le=10)] | None = None
    """By what it is multiplied each time; None for a rate that stays."""

    after: Annotated[int, Bounds(ge=1, le=MAX_DEVICES)] = 10
    """After how many successes each time."""

    max_per_minute: Annotated[float, Bounds(ge=MIN_PER_MINUTE, le=MAX_PER_MINUTE)] = MAX_PER_MINUTE


@dataclass(kw_only=True)
class PlannedStage:
    """What a stage would do."""

    number: int
    """From 1."""

    target: int
    """How many devices have the release at its end, earlier stages included."""

    count: int
    """How many start in it, without the control group."""

    offline: int
    """Those of them that are offline now."""

    devices: list[str]
    """The first of them, in the order in which they start."""

    profiles: dict[str, int]
    """How many of them have which profile."""

    asks_gates: bool
    """Whether it waits for the gates; with too few devices it does not."""

    selector: str = ""
    """By which it chooses its devices; empty if it does not."""

    soak_s: float = 0.0
    approval: bool = False
    """Whether the next stage then waits for `approve`."""

    gates: list[str] = field(default_factory=list)
    """Its own."""

    shadow: StageShadow | None = None
    """What it waits for before it begins; None for nothing."""

    expected_s: float | None = None
    """How long it takes by the median of earlier installs; None if there were too few."""

    slow_s: float | None = None
    """The same by the slowest tenth of them."""


@dataclass(kw_only=True)
class StageProgress:
    """How far a stage is."""

    number: int
    """From 1."""

    target: int
    """How many devices get the release by the end of this stage, earlier stages included."""

    state: StageState
    selector: str = ""
    """By which it chooses its devices; empty if it does not."""

    soak_s: float = 0.0
    """How long it must stay good."""

    approval: bool = False
    """Whether the next stage then waits for `approve`."""

    shadow: ShownStageShadow | None = None
    """The shadow for which it waits before it begins; None if it needs none."""

    transfers: TransferSum | None = None
    """Of the devices that it started and that fetch now; None if none does."""
