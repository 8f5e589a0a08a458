"""What is rehearsed: a rollout with its devices, and what a run of it comes to. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from controller.domain.gates.language import Gate
from controller.domain.rehearsal.harm import Harm
from controller.domain.rollout_view import Limits, StageSpec
from controller.domain.start_rate import StartRate
from controller.domain.starting_order import StartingOrder

End = Literal["succeeded", "halted", "unfinished"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RehearsedGate:
    """A gate of the rollout."""

    gate: Gate
    stage: int | None = None
    """The only one in which it is asked; None for all."""

    least: float
    """How much a device must have measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A rollout that is rehearsed."""

    devices: tuple[str, ...]
    profiles: tuple[str, ...]
    """Of each device."""

    running: frozenset[str] = frozenset()
    """Devices that run the release already."""

    order: StartingOrder = field(default_factory=StartingOrder)
    stages: tuple[StageSpec, ...]
    limits: Limits
    gates: tuple[RehearsedGate, ...] = ()
    control_percent: float = 0.0
    """0 without gates."""

    rate: StartRate | None = None
    id: str = ""
    """By which the order of starting is shuffled; empty for another order in each run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Planted:
    """What a bad release does."""

    harms: tuple[Harm, ...] = ()
    failing: float = 0.0
    """The share of installs that fail, beside those that fail with any release."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """When a gate first could tell."""

    at_s: float
    devices: int
    """How many had the release then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a run came to."""

    end: End
    at_s: float
    rule: str = ""
    """Which one halted it: a limit by its name, or a gate."""

    waits: str = ""
    """For what it waited when the virtual time was over."""

    stage: int
    stages_s: tuple[float, ...]
    """How long each stage took that ended."""

    told: tuple[Told | None, ...]
    """For each gate; None if it never could."""

    started: int
    """How many devices got the order."""

    with_release: int
    left: int
    """How many were not started, or wait."""
