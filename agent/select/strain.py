"""What strains a device, from its readings and from what was learnt; sets the levers by it. Pure.

Rules:
- The policy `rules` has learnt nothing, so it knows no load and sees heat only as it is read.
- A headroom that is not read is the model's, one standard deviation above its mean.

Source:
    Stall ratios: the kernel's pressure stall information (PSI).
"""

from __future__ import annotations

import math
from typing import Any, Final

import msgspec

from agent.select import reach
from agent.select.decisions import Candidate, PolicyContext
from agent.select.estimates import Estimates, Observed
from agent.select.levers import Levers, Strain, next_levers
from agent.select.limits import LIKELY, SOON_S
from agent.select.outlook import allowed_s, mean_service_s
from agent.select.queueing import most_per_s
from wire.health import HealthSnapshot
from wire.policy import PolicySpec

STALLED, FREE = 0.4, 0.2
"""Stall ratios of the processor at which contention begins and ends: a worker and the supervisor
alone stay below the second."""

CROWDED, ROOMY = 1.5, 1.0
"""The same for tasks per core, where the kernel measures no stalls: a worker may keep every core
busy by itself."""

CHARGED: Final = 1.25
"""What the battery bears until the aim, over the present load: above this it is low no more."""

LEAST_LOAD: Final = 0.01


def levers_of(
    health: HealthSnapshot,
    spec: PolicySpec,
    context: PolicyContext,
    *,
    known: Estimates | None = None,
    chosen: Candidate | None = None,
) -> Levers:
    """Return the levers for a decision.

    Args:
        health: The newest readings.
        spec: The policy.
        context: The levers until now, and the time since.
        known: What was learnt of the device; None if nothing is learnt.
        chosen: The variant that should serve.

    Returns:
        The levers.
    """
    strain = Strain(
        headroom=health.headroom,
        hot=spec.hot_headroom,
        cool=spec.cool_headroom,
        throttled=health.throttled,
        clock_ratio=health.cpu_frequency_limit_ratio,
        battery=_charge(health.battery_ratio, health.battery_discharging, spec),
        charged=spec.ok_battery_ratio / spec.low_battery_ratio
        if spec.low_battery_ratio > 0.0
        else CHARGED,
        contended=_contended(health),
        late=_late(context.observed, spec),
    )
    if known is not None:
        strain = _learnt(strain, spec, known, chosen)
    return next_levers(context.levers, strain, context.period_s)


def _learnt(strain: Strain, spec: PolicySpec, known: Estimates, chosen: Candidate | None) -> Strain:
    """Return the strain with what was learnt."""
    aim, replaced = spec.aim, dict[str, Any]()
    use = 0.0
    if chosen is not None and (service_s := mean_service_s(chosen, known)) > 0.0:
        left_s = allowed_s(known, spec)
        use = min(known.demand_per_s * service_s, 1.0)
        wait_s = left_s - service_s
        if wait_s > 0.0:  # else every answer is late, and no advice changes that
            replaced["demand_per_s"] = known.demand_per_s
            # Requests of a batch wait for each other, however few come: advice changes nothing.
            replaced["capacity_per_s"] = most_per_s(
                left_s, service_s=service_s, wait_factor=known.wait_factor
            )
            replaced["longest_wait_s"] = wait_s if math.isfinite(wait_s) else None
    load = min(known.other_load + use * known.cpu_share, 1.0)
    ahead = known.heat.forecast(load, SOON_S[0])
    if known.heat.now is not None and ahead is not None:
        replaced["headroom"] = max(known.heat.now.at_most(LIKELY), ahead.mean)
    battery = known.battery
    need_s = reach.need_s(aim, battery) if battery.discharging else None
    bears = None if need_s is None else reach.budget(battery, need_s)
    if bears is not None:
        replaced |= {"battery": bears / max(load, LEAST_LOAD), "charged": CHARGED}
    else:
        replaced["battery"] = _charge(battery.ratio, battery.discharging, spec)
    return msgspec.structs.replace(strain, **replaced)


def _charge(ratio: float | None, discharging: bool | None, spec: PolicySpec) -> float | None:
    """Return the charge over the one at which it is low; None if it is unknown."""
    if discharging is False or spec.low_battery_ratio <= 0.0:
        return math.inf
    return None if ratio is None or discharging is None else ratio / spec.low_battery_ratio


def _late(observed: Observed | None, spec: PolicySpec) -> bool | None:
    """Tell whether fewer requests were in time than the objective asks for; None if unknown."""
    if observed is None or observed.in_time is None:
        return None
    if observed.answered <= 0.0:
        return True if observed.requests > 0.0 else None
    return observed.in_time / observed.answered < spec.aim.deadline_probability


def _contended(health: HealthSnapshot) -> bool | None:
    for value, begins, ends in (
        (health.cpu_stall_ratio, STALLED, FREE),
        (health.load_ratio, CROWDED, ROOMY),
    ):
        if value is not None:
            return True if value > begins else False if value < ends else None
    return None
