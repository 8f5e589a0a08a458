"""The inputs and the decision of a policy. Values only.

Rules:
- Pure: a policy takes these values and gives a `Decision`; what it must remember goes into the
  decision and comes back with the next context.
- None means that nothing was measured: unknown never counts as cool, full, free or fast.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import msgspec

from agent.select.estimates import Estimates, Observed
from agent.select.levers import Levers
from agent.select.work import Work
from wire.health import HealthSnapshot
from wire.package.variant import Variant
from wire.policy import PolicySpec

Pressure = Literal["heat", "battery", "memory"]

MS_PER_S: Final = 1000.0
UNKNOWN_LOAD_MS: Final = 1000.0
"""Assumed time to load a variant if none was measured; INFaaS (ATC 2021) assumes the same."""


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """A variant as a policy sees it; None for what was not measured."""

    name: str
    latency_p50_ms: float | None = None
    """Latency alone on the device: as measured there, or as declared."""

    peak_memory_bytes: int | None = None
    accuracy: float | None = None
    """Share of the reference's quality that it keeps: larger is better whatever the metric."""

    worst_error: float | None = None
    load_ms: float | None = None
    benched: str = ""
    """Why it may not serve; empty if it may."""

    @property
    def load_s(self) -> float:
        """Time to load it; assumed if it was not measured."""
        return max(_known(self.load_ms, UNKNOWN_LOAD_MS), 0.0) / MS_PER_S


class PolicyState(msgspec.Struct, frozen=True, kw_only=True):
    """What a policy keeps from one decision to the next."""

    pressures: frozenset[Pressure] = frozenset()
    """The pressures on the device."""

    estimates: Estimates = Estimates()
    """What was learnt of the device."""

    work: Work = Work()
    """What each variant would have lost."""

    parked: bool = False
    """Whether no variant serves for the sake of other models."""

    regret: float = 0.0
    """What all models of the device together lost since they do not serve as they best would."""


class PolicyContext(msgspec.Struct, frozen=True, kw_only=True):
    """The inputs of a policy beside the readings and the candidates."""

    variant: str | None = None
    """The variant that serves, or None."""

    since_switch_s: float = math.inf
    state: PolicyState = PolicyState()
    """The state in the last decision."""

    period_s: float = 0.0
    """Time since the last decision; 0 before the first."""

    observed: Observed | None = None
    """Observations of that time; None if nothing served."""

    pinned: str | None = None
    is_new_policy: bool = False
    """Whether the last decision was by another policy, or by other settings."""

    levers: Levers = Levers()
    """Those of the last decision."""


class Asked(NamedTuple):
    """What is asked for one model."""

    candidates: tuple[Candidate, ...]
    spec: PolicySpec
    context: PolicyContext


class SwitchCost(msgspec.Struct, frozen=True, kw_only=True):
    """What a change of the variant costs."""

    load_ms: float
    """Time to load the new variant."""

    both_bytes: int | None
    """Memory while both are loaded; None if a need is unknown."""

    gap: bool
    """Whether both do not fit: the old one ends before the new one starts, and requests wait."""


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """What should serve, and why."""

    variant: str | None
    """None if no candidate may serve, or if the model is parked."""

    reason: str
    state: PolicyState = msgspec.field(name="memory")
    """The state for the next decision; `memory` in the JSON of a replay."""

    inputs: dict[str, Any]
    verdicts: dict[str, str]
    """Why each of the others lost."""

    stream: bool = False
    """Whether to run one sample at a time, to save memory."""

    levers: Levers = Levers()
    """What else to do against heat, a low battery and load."""

    switch: SwitchCost | None = None
    """None if the serving variant stays."""

    @property
    def parked(self) -> bool:
        """Whether no variant should serve, for the sake of other models."""
        return self.state.parked


Policy: TypeAlias = Callable[
    [HealthSnapshot, Iterable[Candidate], PolicySpec, PolicyContext], Decision
]


def candidate(variant: Variant, *, benched: str = "", latency_ms: float | None = None) -> Candidate:
    """Return what a policy needs to know of a variant.

    Args:
        variant: A variant of a manifest.
        benched: Why it may not serve; empty if it may.
        latency_ms: Latency measured on this device; None to take the declared one.

    Returns:
        The candidate.
    """
    performance, accuracy = variant.info.performance, variant.info.accuracy
    if latency_ms is None and performance is not None:
        latency_ms = performance.latency_p50_ms
    return Candidate(
        name=variant.name,
        latency_p50_ms=latency_ms,
        peak_memory_bytes=variant.info.requirements.memory_bytes
        or (performance.peak_memory_bytes if performance else None),
        accuracy=accuracy.retention if accuracy else None,
        worst_error=accuracy.worst_error if accuracy else None,
        load_ms=performance.load_ms if performance else None,
        benched=benched,
    )


def preference(candidates: Iterable[Candidate]) -> tuple[str, ...]:
    """Return the names of the candidates in the order that a device without pressure prefers."""
    return tuple(c.name for c in sorted(candidates, key=by_accuracy))


def by_accuracy(c: Candidate) -> tuple[Any, ...]:
    """Return the key that puts the most accurate candidate first; ties are broken by name."""
    return (
        -_known(c.accuracy, -math.inf),
        _known(c.worst_error, math.inf),
        _known(c.latency_p50_ms, math.inf),
        c.name,
    )


def by_latency(c: Candidate) -> tuple[Any, ...]:
    """Return the key that puts the fastest candidate first."""
    return (_known(c.latency_p50_ms, math.inf), *by_accuracy(c))


def by_memory(c: Candidate) -> tuple[Any, ...]:
    """Return the key that puts the smallest candidate first."""
    return (_known(c.peak_memory_bytes, math.inf), *by_latency(c))


def inputs_of(health: HealthSnapshot, context: PolicyContext) -> dict[str, Any]:
    """Return the inputs that every decision reports."""
    return {
        "headroom": health.headroom,
        "temperature_c": health.temperature_c,
        "battery_ratio": health.battery_ratio,
        "battery_discharging": health.battery_discharging,
        "memory_available_bytes": health.memory_available_bytes,
        "throttled": health.throttled,
        "serving": context.variant,
        "pinned": context.pinned,
    }


def switch_cost(
    serving: Candidate | None, chosen: Candidate | None, available_bytes: int | None
) -> SwitchCost | None:
    """Return what it costs to change from one variant to another.

    Args:
        serving: The variant that serves.
        chosen: The variant that should serve.
        available_bytes: Memory that is free while `serving` is loaded.

    Returns:
        The cost; None if nothing changes.
    """
    if chosen is None or serving is chosen:
        return None
    need, held = chosen.peak_memory_bytes, serving.peak_memory_bytes if serving else 0
    short = need is not None and available_bytes is not None and need > available_bytes
    return SwitchCost(
        load_ms=chosen.load_s * MS_PER_S,
        both_bytes=None if need is None or held is None else need + held,
        gap=serving is not None and short,
    )


def apart(less: float, more: float, decimals: int) -> tuple[str, str]:
    """Return two numbers as texts that differ wherever the numbers do.

    A reason such as "4.0 h of the required 4.0 h" tells nothing, so the lesser number is rounded
    down and the greater one up.

    Args:
        less: The lesser number.
        more: The greater number.
        decimals: Digits after the point.
    """
    unit = 10**decimals
    low, high = math.floor(less * unit), math.ceil(round(more * unit, 6))
    if low == high and less < more:
        low -= 1
    return f"{low / unit:.{decimals}f}", f"{high / unit:.{decimals}f}"


def _known(value: float | None, otherwise: float) -> float:
    return otherwise if value is None else value
