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

from controller.domain.gates.contrast import Observed, against_before, contrast
from controller.domain.gates.looks import level
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
    since_s, until_s = sides.since_s, sides.until_s
    plain = played.figures(number, since_s, until_s, least=one.least)
    span = -DAY_S, 0.0
    if not sides.control:
        days = math.ceil(until_s / DAY_S)
        span = since_s - days * DAY_S, until_s - days * DAY_S
    before = _compared(one, played.figures(number, *span, least=one.least))
    changed = plain
    for harm in harms:
        changed = harm.applied(changed) if number in harm.gates else changed
    treated, control = (
        _observed(side, values, before, sides.strata)
        for side, values in (
            (sides.treated, _compared(one, changed)),
            (sides.control, _compared(one, plain)),
        )
    )
    coverage = Coverage(
        treated=len(sides.treated),
        control=len(sides.control),
        treated_told=len(treated),
        control_told=len(control),
    )
    found = contrast(treated, control) if sides.control else against_before(treated)
    return verdict(one.gate, found, level(looks, family), coverage)


def _compared(one: RehearsedGate, values: Floats) -> Floats:
    """Return figures as a gate compares them: their logarithms if it compares parts."""
    if not one.gate.is_relative:
        return values
    is_told = values > 0.0
    found: Floats = np.where(is_told, np.log(np.where(is_told, values, 1.0)), math.nan)
    return found


def _observed(
    devices: Sequence[int], values: Floats, before: Floats, strata: Sequence[str]
) -> list[Observed]:
    return [
        Observed(float(values[at]), float(before[at]), strata[at])
        for at in devices
        if math.isfinite(values[at])
    ]
