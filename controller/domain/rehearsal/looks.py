"""A look at the gates of a rollout that is rehearsed: what history says devices measure. Pure.

Rules:
- Devices with the release measure what their history says, with the planted harm; the others what
  their history says.
- All else is as in a rollout: the same comparison, levels and verdicts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from controller.domain.gates.bounded import most_harm
from controller.domain.gates.contrast import Observed, against_before, contrast
from controller.domain.gates.looks import level
from controller.domain.gates.states import GateState
from controller.domain.gates.verdicts import Coverage, Verdict, verdict
from controller.domain.rehearsal.harm import Harm
from controller.domain.rehearsal.history import Floats, Played
from controller.domain.rehearsal.setting import RehearsedGate
from wire.durations import DAY_S


class Sides(NamedTuple):
    """Which devices are compared, by their numbers, over what virtual time."""

    treated: Sequence[int]
    control: Sequence[int]
    strata: Sequence[str]
    """Of every device."""

    since_s: float
    until_s: float


def look(
    played: Played,
    number: int,
    one: RehearsedGate,
    sides: Sides,
    harms: Sequence[Harm],
    *,
    looks: int,
    family: int,
) -> Verdict:
    """Look at a gate.

    Args:
        played: What devices measure.
        number: The gate, from 0.
        one: The same.
        sides: Which devices are compared.
        harms: What the release does.
        looks: Which look of the rollout it is, from 1.
        family: How many gates the rollout has in all.
    """
    at_level = level(looks, family)
    try:
        return _verdict(played, number, one, sides, harms, at_level)
    except ArithmeticError as exc:
        return Verdict(state=GateState.HOLD, reason=f"cannot be asked: {exc}")


def _verdict(
    played: Played,
    number: int,
    one: RehearsedGate,
    sides: Sides,
    harms: Sequence[Harm],
    at_level: float,
) -> Verdict:
    since_s, until_s = sides.since_s, sides.until_s
    plain = played.figures(number, since_s, until_s, least=one.least)
    span = -DAY_S, 0.0
    if not sides.control:
        days = math.ceil(until_s / DAY_S)
        span = since_s - days * DAY_S, until_s - days * DAY_S
    before = played.figures(number, *span, least=one.least)
    changed = plain
    for harm in harms:
        changed = harm.applied(changed) if number in harm.gates else changed
    treated = _observed(sides.treated, one, changed, before, sides.strata)
    control = _observed(sides.control, one, plain, before, sides.strata)
    coverage = Coverage(
        treated=len(sides.treated),
        control=len(sides.control),
        treated_told=len(treated),
        control_told=len(control),
        treated_zero=_zeros(sides.treated, one, changed, before),
        control_zero=_zeros(sides.control, one, plain, before),
    )
    found = contrast(treated, control) if sides.control else against_before(treated)
    most = None
    if one.gate.in_worst_case:
        # Devices that told something before, and nothing since, count as harmed wholly.
        worst = 1.0 if one.gate.limit > 0 else 0.0
        gone = np.isnan(changed) & ~np.isnan(before)
        filled = np.where(gone, worst, changed)
        harmed = _observed(sides.treated, one, filled, before, sides.strata)
        most = most_harm(harmed, control, at_level / 2.0, falls=one.gate.limit < 0)
    return verdict(one.gate, found, at_level, coverage, most=most)


def _compared(one: RehearsedGate, values: Floats) -> Floats:
    """Return figures as a gate compares them: their logarithms if it compares parts."""
    if not one.gate.is_relative:
        return values
    is_told = values > 0.0
    found: Floats = np.where(is_told, np.log(np.where(is_told, values, 1.0)), math.nan)
    return found


def _observed(
    devices: Sequence[int],
    one: RehearsedGate,
    after: Floats,
    before: Floats,
    strata: Sequence[str],
) -> list[Observed]:
    """Return what some devices measured, of those that tell enough."""
    if one.gate.is_relative:
        after = np.where(before == 0.0, math.nan, after)
    values, known = _compared(one, after), _compared(one, before)
    return [
        Observed(float(values[at]), float(known[at]), strata[at])
        for at in devices
        if math.isfinite(values[at])
    ]


def _zeros(devices: Sequence[int], one: RehearsedGate, after: Floats, before: Floats) -> int:
    """Return how many of some devices measured 0, of which a gate on parts can tell nothing."""
    if not one.gate.is_relative:
        return 0
    return sum(bool(after[at] == 0.0 or before[at] == 0.0) for at in devices)
