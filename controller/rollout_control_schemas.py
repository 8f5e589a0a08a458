"""The API's words for what controls a rollout: its limits by kind, its members, its priority."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from controller.domain.rollout_view import OnHalt
from controller.schemas import Bounds, Request

MAX_COUNT = 10_000_000
MAX_PRIORITY = 1000
MAX_NAMED = 100_000
"""Devices that one request may name."""

Limit = Annotated[int, Bounds(ge=0, le=MAX_COUNT)]


@dataclass(kw_only=True)
class RolloutControl(Request):
    """What a new rollout may ask for beside its release and its stages."""

    max_refused: Limit | None = None
    """More devices than this that refused the release halt it. None if they count as failed."""

    max_timed_out: Limit | None = None
    """More devices than this that were silent or lost halt it. None if they count as failed."""

    worst_case: bool = False
    """A device starts only if `max_failure_percent` is kept even if all devices without an outcome
    fail; one at a time always may."""

    on_halt: OnHalt = "keep"
    """What becomes of devices that have the release when a rule halts the rollout: they `keep` it,
    or a rollback begins to `revert` them."""

    supersede: bool = False
    """Take devices that have not started in an older rollout of the model out of it."""

    priority: Annotated[int, Bounds(ge=0, le=MAX_PRIORITY)] = 0
    """A rollout of a higher priority does so unasked; one of a lower priority may not."""

    windows: list[str] = field(default_factory=list)
    """Hours of each device's local time in which it activates the release, such as `22:00-05:00` or
    `mon-fri 22:00-05:00`; it fetches before. Empty for all hours."""


@dataclass(kw_only=True)
class ShownLimits:
    """The limits of a rollout, as they were asked for."""

    max_in_flight: int = 0
    device_deadline_s: float = 0.0
    offline_limit_s: float = 0.0
    max_failures: int = 0
    max_failure_percent: float | None = None
    min_finished: int = 0
    max_refused: int | None = None
    max_timed_out: int | None = None
    worst_case: bool = False
    on_halt: OnHalt = "keep"


@dataclass(kw_only=True)
class FailureSums:
    """How many devices failed in which way, without those that were acknowledged."""

    failed: int = 0
    refused: int = 0
    """Those that said no before they fetched a file."""

    timed_out: int = 0
    """Those that were silent or lost."""

    certain_percent: float = 0.0
    """The share that failed of the devices with an outcome."""

    worst_percent: float = 0.0
    """What it comes to if every device without an outcome fails."""


@dataclass(kw_only=True)
class SupersededDevices:
    """Devices that another rollout of the model has, and that a new one would take from it."""

    rollout: str
    moves: int
    """Devices that have not started there: they move to the new rollout."""

    stays: int
    """Devices that have: they finish there, and join the new rollout when that one has ended."""

    devices: list[str]
    """The first of those that move, by identifier."""


@dataclass(kw_only=True)
class JoinRequest(Request):
    """Devices that join a rollout."""

    devices: list[str] = field(default_factory=list)
    selector: str | None = None
    """Which devices instead of named ones."""


@dataclass(kw_only=True)
class LeaveRequest(Request):
    """Devices that leave a rollout."""

    devices: list[str] = field(default_factory=list)
    selector: str | None = None
    """Which of its devices instead of named ones."""


@dataclass(kw_only=True)
class MembersChange:
    """What became of the devices that were to join a rollout, or to leave it."""

    rollout: str
    changed: list[str]
    """Those that joined, or left."""

    unchanged: dict[str, str] = field(default_factory=dict)
    """The others, with what holds of each, as one line."""

    warnings: list[str] = field(default_factory=list)
    """What the change makes of the rollout that nobody may have meant, each as one line."""
