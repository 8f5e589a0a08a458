"""The requests and answers of the HTTP API about policies; `controller.schemas` has the others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from controller.schemas import Bounds, Number, Request
from wire.policy import MAX_WORKERS, PolicySpec

MAX_PRIORITY = 1000
MAX_EXACT = 2**53
"""JSON readers lose digits of larger integers."""

_SPEC = PolicySpec()


@dataclass(kw_only=True)
class PolicyObjective(Request):
    """What `adaptive` is to keep; see `[policy.objective]` in docs/policies.md."""

    min_retention: Number = _SPEC.aim.min_retention
    deadline_ms: Number | None = _SPEC.aim.deadline_ms
    deadline_probability: Number = _SPEC.aim.deadline_probability
    battery_lasts_s: Number = _SPEC.aim.battery_lasts_s
    battery_until: str | None = None


@dataclass(kw_only=True)
class PolicySharing(Request):
    """How a model shares the device; see `[policy.sharing]` in docs/policies.md."""

    weight: Number = _SPEC.shared.weight
    may_park: bool = _SPEC.shared.may_park
    workers: Annotated[int, Bounds(le=MAX_WORKERS, strict=True)] = _SPEC.shared.workers
    keep_previous: bool = _SPEC.shared.keep_previous


@dataclass(kw_only=True)
class PolicySettings(Request):
    """How devices choose among their variants: the keys of `[policy]` in `agent.toml`."""

    kind: Literal["rules", "adaptive"] = _SPEC.kind
    hot_headroom: Number = _SPEC.hot_headroom
    cool_headroom: Number = _SPEC.cool_headroom
    low_battery_ratio: Number = _SPEC.low_battery_ratio
    ok_battery_ratio: Number = _SPEC.ok_battery_ratio
    low_memory_bytes: Annotated[int, Bounds(le=MAX_EXACT, strict=True)] = _SPEC.low_memory_bytes
    dwell_s: Number = _SPEC.dwell_s
    objective: PolicyObjective | None = None
    """None for the default one."""

    report_every_s: Number | None = None
    """None for each device's own setting."""

    sharing: PolicySharing | None = None
    """None for the default."""


@dataclass(kw_only=True)
class PolicyRequest(Request):
    """A policy for the devices that match a selector."""

    selector: str = ""
    """Label expression; empty means every device."""

    model: str | None = None
    """The model that it is for; None for every model of the devices."""

    priority: Annotated[int, Bounds(ge=-MAX_PRIORITY, le=MAX_PRIORITY)] = 0
    """If several policies match a model of a device, the one with the highest priority applies;
    with equal priorities, one that names the model, and then the first by name."""

    policy: PolicySettings


@dataclass(kw_only=True)
class Policy:
    """A policy and how far it has come."""

    name: str
    selector: str
    model: str | None = None
    priority: int
    policy: PolicySettings
    changed_at_s: float
    devices: int
    """How many devices it was issued to; a device without a release gets it with its first one."""

    accepted: int
    """How many of them have accepted it."""
