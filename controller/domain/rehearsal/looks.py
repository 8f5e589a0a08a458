"""What devices measure in a rehearsal: what history says, with the planted harm. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from controller.domain.gates.look import Compared, judged
from controller.domain.gates.states import GateState
from controller.domain.gates.verdicts import Silence, Verdict
from controller.domain.rehearsal.harm import Harm
from controller.domain.rehearsal.history import Floats, Played
from controller.domain.rehearsal.setting import RehearsedGate


def look(
    played: Played,
    devices: Sequence[str],
    number: int,
    one: RehearsedGate,
    of: Compared,
    harms: Sequence[Harm],
    *,
    at_level: float,
    earlier: Sequence[Silence] = (),
) -> Verdict:
    """Look at a gate.

    Args:
        played: What devices measure.
        devices: Their names.
        number: The gate, from 0.
        one: The same.
        of: Which devices are compared, over what virtual time.
        harms: What the release does to those that have it.
        at_level: The chance that its interval may err.
        earlier: The silence at earlier looks in the stage.
    """
    before = played.figures(number, *of.before, least=one.least)
    after = plain = played.figures(number, *of.span, least=one.least)
    for harm in harms:
        after = harm.applied(after) if number in harm.gates else after
    known, without = (_told(devices, one, values) for values in (before, plain))
    harmed = _told(devices, one, after)
    has_it = {member.device for member in of.treated}
    measured = {name: (harmed if name in has_it else without)[name] for name in without}
    at_end = played.figures(number, *of.late, least=0.0)
    late = {devices[at] for at in np.flatnonzero(~np.isnan(at_end)).tolist()}
    try:
        return judged(one.gate, of, measured, known, late, at_level, earlier)
    except ArithmeticError as exc:
        return Verdict(state=GateState.HOLD, reason=f"cannot be asked: {exc}")


def _told(devices: Sequence[str], one: RehearsedGate, values: Floats) -> dict[str, float]:
    """Return figures as a gate compares them: their logarithms if it compares parts."""
    if one.gate.is_relative:
        with np.errstate(divide="ignore"):
            values = np.log(np.maximum(values, 0.0))
    return {devices[at]: float(values[at]) for at in np.flatnonzero(~np.isnan(values)).tolist()}
