"""The answers of the HTTP API about what a rollout would do, before there is one."""

from __future__ import annotations

from dataclasses import dataclass, field

from controller.rollout_control_schemas import ShownLimits, SupersededDevices
from controller.stage_schemas import PlannedStage, Rate


@dataclass(kw_only=True)
class RefusingDevices:
    """Devices that would refuse a release for the same reason."""

    reason: str
    count: int
    devices: list[str]
    """The first of them, by identifier."""


@dataclass(kw_only=True)
class PreflightReport:
    """What devices would say to a release, as far as the controller knows them."""

    release: str
    selector: str
    takes: int
    """Devices that would take it, those that run it already included."""

    runs: int
    """Those of them that run it already."""

    offline: int
    """Those of them that are offline now."""

    refuses: int
    unknown: int
    """Devices that have not greeted since they enrolled."""

    shut_out: int
    """Devices that are quarantined or decommissioned: no rollout takes them."""

    refusing: list[RefusingDevices] = field(default_factory=list)
    """By the reason, that of most devices first; the sum may be less than `refuses`."""

    unknown_devices: list[str] = field(default_factory=list)
    """The first of them, by identifier."""


@dataclass(kw_only=True)
class PlannedBytes:
    """What devices of one kind would fetch."""

    kind: str
    """A profile, or a network as agents name it; empty for devices that have told of none."""

    devices: int
    each_bytes: int
    """Of the device that fetches most, at most: deltas and what a device has already save some."""

    total_bytes: int
    """Of all of them, at most."""


@dataclass(kw_only=True)
class BusyDevices:
    """Devices that another rollout of the model has."""

    rollout: str
    count: int
    devices: list[str]
    """The first of them, by identifier."""


@dataclass(kw_only=True)
class InstallTimes:
    """How long earlier installs of the model took, from the start to the outcome."""

    count: int
    median_s: float
    slow_s: float
    """One of ten took longer."""


@dataclass(kw_only=True)
class RolloutPlan:
    """What a rollout would do. Nothing of it is kept."""

    id: str
    """The identifier to make the rollout with, so that the same devices start first."""

    release: str
    selector: str
    refused: list[str] = field(default_factory=list)
    """Why it would not begin as things are, a line for each; empty if it would."""

    devices: int
    """How many would take part: without those that refuse, unless they are allowed."""

    busy: list[BusyDevices] = field(default_factory=list)
    supersedes: list[SupersededDevices] = field(default_factory=list)
    preflight: PreflightReport
    stages: list[PlannedStage]
    control: int = 0
    """Devices that keep the old release until the gates have passed in the last stage."""

    control_devices: list[str] = field(default_factory=list)
    """The first of them."""

    gates: list[str] = field(default_factory=list)
    spread: str = ""
    rate: Rate | None = None
    limits: ShownLimits = field(default_factory=ShownLimits)
    windows: list[str] = field(default_factory=list)
    """The local hours in which devices activate it."""

    opens_in_s: float | None = None
    """When the first of them opens by the controller's clock, 0 if one is open; None without. The
    times here count the waits for them, as if all devices had that clock."""

    total_bytes: int
    """What all devices fetch together, at most."""

    unknown_bytes: int = 0
    """Devices of which it is not known what they would fetch."""

    by_profile: list[PlannedBytes] = field(default_factory=list)
    by_network: list[PlannedBytes] = field(default_factory=list)
    """By the network over which each device fetched most in the last days; empty if none told."""

    earlier: InstallTimes | None = None
    """None if there were too few to tell."""

    expected_s: float | None = None
    """How long all stages take together, by the median of earlier installs."""

    slow_s: float | None = None
