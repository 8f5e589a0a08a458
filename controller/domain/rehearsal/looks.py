"""What devices measure in a rehearsal: what history says, with the planted harm. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from controller.domain.gates.language import Gate
from controller.domain.gates.look import Compared, judged
from controller.domain.gates.silence import Silence
from controller.domain.gates.states import GateState
from controller.domain.gates.trials import has_trials
from controller.domain.gates.verdicts import Verdict
from controller.domain.rehearsal.harm import Harm
from controller.domain.rehearsal.history import HOUR_S, Floats, Played
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
    before, _ = played.figures(number, *of.before, least=one.least, but=of.span)
    plain, counts = played.figures(number, *of.span, least=one.least)
    after = plain
    for harm in harms:
        after = harm.applied(after) if number in harm.gates else after
    known, without = (_told(devices, one, values) for values in (before, plain))
    harmed = _told(devices, one, after)
    has_it = {member.device for member in of.treated}
    measured = {name: (harmed if name in has_it else without)[name] for name in without}
    at_end, _ = played.figures(number, *of.late, least=0.0)
    late = {devices[at] for at in np.flatnonzero(~np.isnan(at_end)).tolist()}
    try:
        trials = _trials(devices, one.gate, counts)
        return judged(one.gate, of, measured, known, late, at_level, earlier, trials=trials)
    except ArithmeticError as exc:
        return Verdict(state=GateState.HOLD, reason=f"cannot be asked: {exc}")


def _trials(devices: Sequence[str], gate: Gate, counts: Floats) -> dict[str, float]:
    """Return of how many trials each share is: of a rate each second is one."""
    if not has_trials(gate):
        return {}
    each = HOUR_S if gate.statistic == "rate" else 1.0
    return {devices[at]: each * float(counts[at]) for at in np.flatnonzero(counts > 0.0).tolist()}


def _told(devices: Sequence[str], one: RehearsedGate, values: Floats) -> dict[str, float]:
    """Return figures as a gate compares them: their logarithms if it compares parts."""
    if one.gate.is_relative:
        with np.errstate(divide="ignore"):
            values = np.log(np.maximum(values, 0.0))
    return {devices[at]: float(values[at]) for at in np.flatnonzero(~np.isnan(values)).tolist()}
