"""What a gate says: pass, fail or hold.

Rules:
- A gate fails when the whole interval is beyond its limit, and passes when the whole interval is
  within: then it is as sure that the release does not do more as it would be that it does.
- Else it holds: more devices or more time will tell. A figure that nobody reports tells nothing,
  so it never passes.
- The next device may be off by the limit although none was so far: with few devices the interval is
  wide even if all measured the same.
- A share is no better known than its requests can tell, however alike devices are (`trials`).
- A pass says what part of the devices may do otherwise although none was seen that does. A gate in
  the worst case passes only if that is within its limit, too.
- Devices that do not count are told, with why.
- A part of the old value is no limit where more than a tenth of those that tell measure 0.
- If devices with the new release tell less often of themselves than the control group does, the
  gate holds: those that are silent may be the ones that it harmed (`silence`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from controller.domain.gates.contrast import Contrast
from controller.domain.gates.language import Gate
from controller.domain.gates.silence import MOST_SILENT, Coverage, Silence
from controller.domain.gates.states import GateState
from controller.domain.gates.trials import apart, times_needed

TELLING: Final = 1e100
"""An interval that goes further tells nothing."""

MOST_LOG: Final = 20.0
"""The same for logarithms of parts: half a billion times as much."""

_SHOWN_DIGITS: Final = 3
_NOISE_DIGITS: Final = 12

_NOT_ASKED: Final = Silence()


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What a look at a gate has shown."""

    state: GateState
    reason: str
    estimate: float | None = None
    """By how much the new release differs: a part for `%`, a share for `pp`, else in the unit; None
    if nothing can be told."""

    low: float | None = None
    high: float | None = None
    treated: int = 0
    """Devices with the new release that count."""

    control: int = 0
    unseen: float | None = None
    """What part of the devices may do otherwise although none was seen that does; None but of a
    pass without the worst case."""

    silence: Silence = _NOT_ASKED


def verdict(
    gate: Gate,
    found: Contrast,
    level: float,
    coverage: Coverage,
    *,
    most: float | None = None,
    earlier: Sequence[Silence] = (),
) -> Verdict:
    """Return what a gate says.

    Args:
        gate: The gate.
        found: How devices differ.
        level: The chance that the interval errs.
        coverage: How many devices there are, and tell enough.
        most: A bound of the harm of a gate in the worst case.
        earlier: The silence at earlier looks in the stage.

    Returns:
        The verdict with its reason.
    """
    silence, silent = coverage.silence()
    lacks = found.lacks
    if lacks and coverage.old.devices:
        lacks += _uncounted(found, coverage)
    told = Verdict(
        state=GateState.HOLD,
        reason=_at_zero(coverage) or lacks,
        treated=found.treated,
        control=found.control,
        silence=silence,
    )
    if told.reason:
        return told
    found = found.widened(gate.bound)
    low, high = _interval(gate, found, level, most)
    furthest = MOST_LOG if gate.is_relative else TELLING
    if not all(abs(value) <= furthest for value in (low, high)):  # nor what is no number
        why = "devices differ too much from one another to tell anything yet"
        return replace(told, reason=why)
    state, unseen = _state(gate, low, high), None
    reason = f"{_text(gate, found.difference)}, {_text(gate, low)} to {_text(gate, high)}"
    now, mean = silence.part(), silence.part(*earlier)
    if state is GateState.HOLD:
        reason += f": cannot tell yet{_needs(gate, found, level, (low, high), coverage)}"
        if gate.in_worst_case and (hit := coverage.new.known - coverage.new.still):
            reason += f"; silent devices that count as hit: {hit}"
    if state is not GateState.FAIL and max(now, mean) >= MOST_SILENT:
        if now < MOST_SILENT:
            silent = f"over the looks of the stage {100.0 * mean:.0f} % fewer devices with the new "
            silent += "release told enough than with the old one"
        state, reason = GateState.HOLD, f"{silent}; those that tell: {reason}"
    elif state is GateState.PASS and not gate.in_worst_case:
        sides = [number for number in (found.treated, found.control) if number]
        unseen = 1.0 - level ** (1.0 / min(sides))
        reason += f"; up to {100.0 * unseen:.2g} % of devices may do otherwise, unseen"
    reason += _uncounted(found, coverage)
    return replace(
        told,
        state=state,
        reason=reason,
        unseen=unseen,
        estimate=_shown(gate, found.difference),
        low=_shown(gate, low),
        high=_shown(gate, high),
    )


def _interval(gate: Gate, found: Contrast, level: float, most: float | None) -> tuple[float, float]:
    """Return within what the difference lies, by devices, by their requests and at the worst."""
    low, high = found.interval(level)
    if found.trials is not None:
        below, above = apart(found.trials, level)
        low, high = min(low, found.difference - below), max(high, found.difference + above)
    if most is not None and math.isfinite(high - low):
        low, high = (low, max(high, most)) if gate.limit > 0 else (min(low, -most), high)
    if gate.unit == "pp":  # a share lies between 0 and 1, so two are no further apart
        low, high = max(low, -1.0), min(high, 1.0)
    return low, high


def _state(gate: Gate, low: float, high: float) -> GateState:
    # What may fall is turned round, so that more is worse.
    worst, best = (high, low) if gate.limit > 0 else (-low, -high)
    if gate.is_shift:
        worst, best = max(-low, high), max(low, -high)
    if best > abs(gate.bound):
        return GateState.FAIL
    return GateState.PASS if worst < abs(gate.bound) else GateState.HOLD


def _at_zero(coverage: Coverage) -> str:
    """Say that a part of the old value tells too little; empty if it does not."""
    for side, what in (
        (coverage.new, "with the new release"),
        (coverage.old, "with the old one"),
    ):
        if side.zero > MOST_SILENT * side.told:
            return (
                f"{side.zero} of {side.told} devices {what} measure 0, now or before, which has no "
                "part to grow by: give the limit without %, in the metric's own unit or in pp"
            )
    return ""


def _needs(
    gate: Gate, found: Contrast, level: float, ends: tuple[float, float], coverage: Coverage
) -> str:
    """Say how many devices would do, if the estimate stays: the error falls with their root.

    Where there are enough of them, and too few requests, it is a matter of time.
    """
    low, high = ends
    difference = found.difference
    to_limit = gate.bound - difference
    if gate.is_shift and difference < 0.0:
        to_limit = -gate.bound - difference
    distance = abs(to_limit)
    if distance <= 0.0 or not math.isfinite(high - low) or not found.control:
        return ""
    by_devices, _ = found.interval(level)
    if found.trials is not None and difference - by_devices < distance and not gate.in_worst_case:
        times = times_needed(found.trials, level, to_limit)
        more = f"at least {max(times, 1.1):.2g} times as long, or as many requests, would"
        return f"; {more}" if math.isfinite(times) else ""
    times = ((high - low) / 2.0 / distance) ** 2
    if gate.in_worst_case:  # a bound of what was not seen falls with their number
        reach = high - difference if gate.limit > 0 else difference - low
        times = max(reach / distance, 1.0)
    if times > 1000.0:  # noqa: PLR2004 - nobody has so many
        return ""
    wanted = math.ceil(min(found.treated, found.control) * times)
    more = (
        ", more than the rollout has"
        if 2 * wanted > coverage.new.devices + coverage.old.devices
        else ""
    )
    return f"; about {wanted} devices on each side would{more}"


def _uncounted(found: Contrast, coverage: Coverage) -> str:
    """Say how many devices there are that do not count, and why; empty if all do."""
    told = []
    for side, counts, what in (
        (coverage.new, found.treated, "new"),
        (coverage.old, found.control, "old"),
    ):
        if silent := side.devices - max(side.told, counts):
            told.append(f"{silent} {what} measured too little")
        if (alone := side.told - counts) > 0:
            told.append(f"{alone} {what} have too few of their kind on the other side")
    return f"; not counted: {', '.join(told)}" if told else ""


def _shown(gate: Gate, value: float) -> float:
    return math.expm1(value) if gate.is_relative else value


def _text(gate: Gate, value: float) -> str:
    """Return a difference for people: `+3.1 %`, `-0.42 pp`, `+1.5`."""
    shown = round(_shown(gate, value), _NOISE_DIGITS)
    if not gate.unit:
        return f"{shown:+.{_SHOWN_DIGITS}g}"
    return f"{100.0 * shown:+.{_SHOWN_DIGITS}g} {gate.unit}"
