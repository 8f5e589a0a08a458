"""What a device does against heat, a low battery and load, beside choosing a variant. Pure.

| strain | levers |
|---|---|
| heat | requests are not joined, deferrable ones wait, applications should send less |
| battery | deferrable requests wait, applications should send less |
| other programs (`contention`) | deferrable requests wait |
| load | deferrable requests wait, applications should send less, what would come too late is shed |

Rules:
- A strain begins at one threshold and ends at another. Without a reading it stays as it was:
  unknown never counts as cool, full or free.
- More heat, less battery and more requests never give a greater `sampling_ratio`. It falls at once
  with heat and charge, within seconds with load, and rises slowly.
- Under heat nothing is joined: a joined run draws more and lasts longer without a pause, and its
  first request waits for the last. Under load it is joined all the same: the processor is then
  busy all the time either way, and joined runs answer more at the same heat.

Source:
    Fast falls and slow, constant rises: Chiu and Jain, Analysis of the Increase and Decrease
    Algorithms for Congestion Avoidance in Computer Networks (1989).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, Literal, TypeAlias

import msgspec

Cause: TypeAlias = Literal["battery", "contention", "heat", "load"]

CAUSE_TEXTS: Final[Mapping[Cause, str]] = MappingProxyType({"contention": "other programs"})
"""What people read where the name of a cause is no plain word."""

LEAST_RATIO: Final = 0.1
"""An application that sent nothing would not notice when the device recovers."""

SEVERE: Final = 1.0
"""The headroom at which `LEAST_RATIO` is advised."""

LEAST_RAMP: Final = 0.05
"""Least width of the headroom between no limit and `LEAST_RATIO`."""

RISE_PER_S: Final = 0.02
"""The advice recovers from the least to all in 45 s: a board cools as slowly."""

HALVES_S: Final = 4.0
"""Load halves the advice in this time at most: the measured demand follows the advice only after
some seconds, and a faster fall would go too far."""

CALM: Final = 0.8
"""Load ends when the demand is below this share of what can be answered in time."""

RECOVERING: Final = "recovering: the sampling ratio rises slowly"


class Levers(msgspec.Struct, frozen=True, kw_only=True):
    """What is in force beside the variant; by default nothing."""

    joins: bool = True
    """Whether requests may be joined into one run."""

    defer: bool = False
    """Whether deferrable requests have to wait."""

    sampling_ratio: float = 1.0
    """The share of its normal rate of requests that an application should send now."""

    longest_wait_s: float | None = None
    """How long a request without a deadline of its own may wait; None for no limit."""

    causes: tuple[Cause, ...] = ()
    """The strains in force, in alphabetical order."""

    reasons: tuple[str, ...] = ()
    """One line for each of them; `RECOVERING` while only the ratio is not back yet."""


class Strain(msgspec.Struct, frozen=True, kw_only=True):
    """What strains a device now; None for what is unknown."""

    headroom: float | None = None
    """The heat, now or soon: 0.0 is nominal, 1.0 severe."""

    hot: float = 0.85
    """Heat begins above this headroom, and ends below `cool`."""

    cool: float = 0.70
    throttled: bool | None = None
    """Whether the processor is slowed down, which counts as heat."""

    clock_ratio: float | None = None
    """Frequency that the kernel allows, over the greatest."""

    battery: float | None = None
    """What the battery has over what it needs to have; infinite where it does not discharge. Below
    1.0 it is low, until it is above `charged`."""

    charged: float = 1.25
    contended: bool | None = None
    """Whether other programs keep the processor busy; None also between the two thresholds."""

    demand_per_s: float | None = None
    capacity_per_s: float | None = None
    """Requests a second that can be answered in time."""

    late: bool | None = None
    """Whether too many requests were late or refused. Clients that wait for each answer before they
    ask again keep a worker busy all the time, and are no load."""

    longest_wait_s: float | None = None
    """Wait after which an answer has no value; None if every answer has some."""


def next_levers(before: Levers, strain: Strain, period_s: float) -> Levers:
    """Return the levers after a period.

    Args:
        before: The levers until now.
        strain: What strains the device now.
        period_s: Time since they were set; 0 for the first.

    Returns:
        The levers.
    """
    begins: dict[Cause, bool] = {
        "battery": strain.battery is not None and strain.battery < 1.0,
        "contention": strain.contended is True,
        "heat": strain.throttled is True
        or (strain.headroom is not None and strain.headroom > strain.hot),
        "load": _use(strain) > 1.0 and strain.late is not False,
    }
    ends: dict[Cause, bool] = {
        "battery": strain.battery is not None and strain.battery > strain.charged,
        "contention": strain.contended is False,
        "heat": strain.throttled is not True
        and strain.headroom is not None
        and strain.headroom < strain.cool,
        "load": _use(strain) < CALM or strain.late is False,
    }
    causes = tuple(
        cause
        for cause in sorted(begins)
        if begins[cause] or (cause in before.causes and not ends[cause])
    )
    bearable = min(
        _by_heat(before, strain, hot="heat" in causes),
        _by_battery(before, strain, low="battery" in causes),
        _by_load(before, strain, period_s, loaded="load" in causes),
    )
    risen = before.sampling_ratio + RISE_PER_S * period_s
    ratio = min(max(min(bearable, risen), LEAST_RATIO), 1.0)
    recovering = (RECOVERING,) if ratio < 1.0 and not causes else ()
    return Levers(
        joins="heat" not in causes or "load" in causes,
        defer=bool(causes),
        sampling_ratio=ratio,
        longest_wait_s=strain.longest_wait_s if "load" in causes else None,
        causes=causes,
        reasons=(*(_reason(cause, strain) for cause in causes), *recovering),
    )


def _use(strain: Strain) -> float:
    """Return the demand over what can be answered; not a number if it is unknown."""
    demand, capacity = strain.demand_per_s, strain.capacity_per_s
    if demand is None or capacity is None:
        return math.nan
    if demand <= 0.0:
        return 0.0
    return demand / capacity if capacity > 0.0 else math.inf


def _by_heat(before: Levers, strain: Strain, *, hot: bool) -> float:
    if not hot:
        return 1.0
    if strain.headroom is None or math.isnan(strain.headroom):
        ratio = before.sampling_ratio
    else:
        over = (strain.headroom - strain.hot) / max(SEVERE - strain.hot, LEAST_RAMP)
        ratio = 1.0 - min(max(over, 0.0), 1.0) * (1.0 - LEAST_RATIO)
    if strain.throttled and strain.clock_ratio is not None:
        ratio = min(ratio, strain.clock_ratio)
    return ratio


def _by_battery(before: Levers, strain: Strain, *, low: bool) -> float:
    if not low:
        return 1.0
    return before.sampling_ratio if strain.battery is None else min(strain.battery, 1.0)


def _by_load(before: Levers, strain: Strain, period_s: float, *, loaded: bool) -> float:
    """Return the share that the worker can bear.

    The demand is what comes while applications follow the advice, so it scales the advice.
    """
    use = _use(strain)
    if loaded and use > 1.0:
        return before.sampling_ratio * max(1.0 / use, math.exp2(-period_s / HALVES_S))
    return before.sampling_ratio if loaded else 1.0


def _reason(cause: Cause, strain: Strain) -> str:
    if cause == "heat":
        if strain.throttled:
            return "heat: the processor is slowed down"
        known = None if strain.headroom is None else f"headroom {strain.headroom:.2f}"
    elif cause == "battery":
        known = None if strain.battery is None else f"{strain.battery:.2f} of what it should have"
    elif cause == "load":
        use = _use(strain)
        known = None if math.isnan(use) else f"{use:.2f} times what can be answered in time"
    else:
        known = "they keep the processor busy"
    name = CAUSE_TEXTS.get(cause, cause)
    return f"{name}: {'no reading since it began' if known is None else known}"
