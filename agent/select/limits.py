"""What comes near to the limits of a device: its heat, its memory, its battery.

A load, a need of memory and an objective in, what stands against them out: with a name, a text, and
what it costs as a share of each answer.

Rules:
- Pure. A quantity that was never read is not judged. If later readings are missing, the value comes
  from the model, or is the worst of the last minutes.
- All is of the whole device: a load is that of everything that runs.
"""

from __future__ import annotations

import math
from typing import Final, Literal

import msgspec

from agent.select import reach
from agent.select.decisions import apart
from agent.select.estimates import GIB, Estimates
from agent.select.heat import Forecast
from agent.select.recent import normal_share
from wire.durations import DAY_S
from wire.policy import PolicySpec

LIKELY: Final = 1.0
"""Standard deviations above the mean; one case in six exceeds them."""

RATHER: Final = 0.5
"""One case in three exceeds this; enough where a switch back is still possible and the policy
learns from the try."""

SOON_S: Final = (10.0, 60.0)
"""The shorter is the time to switch back; the longer shows whether that would be needed."""

LASTING_S: Final = 600.0
"""A switch to more work is worth it only if heat probably stays below severe for this long."""

COOLING_S: Final = (2.0, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0)
"""When to look whether a board that is too hot has cooled down."""

SOON_HOT: Final = 4.0
"""How many answers one from a board in severe heat counts as."""

THROTTLED: Final = 0.1
"""Answers that a throttled processor costs beside its slowness, as a share: it shows that the board
is hot, even where its sensor reads too low."""

HIDDEN: Final = 2.0
"""How many answers one counts as from a board that is throttled for a heat that no sensor shows:
half as many as in severe heat, because throttling may begin below it or above it."""

UNKNOWN_DRAW: Final = 4.0
"""How many answers one counts as that a low battery may not give: nobody knows how low it is."""

SLIGHT: Final = 0.01
"""A cost below this is not worth a name."""

SENSOR_SIGMA: Final = 0.03
"""What a sensor may be off by for all time: a degree; good ones are calibrated to one or two."""

STAYS_FREE: Final = 0.5
"""Share of the memory reserve that must stay free; below it a variant has to go."""

SCARCE: Final = 0.5
"""Answers that a variant costs whose memory is all that there is: the next program that needs some
ends it."""

RATHER_THAN_NOT, SURELY = 0.5, 0.9
"""Probabilities that the battery reaches the aim: to go on, and to begin more work."""

MIB: Final = 1024 * 1024

Kind = Literal["deadline", "heat", "memory", "battery", "accuracy"]


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """One way in which a variant misses the objective."""

    kind: Kind
    text: str
    cost: float
    """Answers that it loses, as a share; it may be above 1 where worse than no answer."""

    urgent: bool = False
    """Whether the variant must go at once."""

    void: bool = False
    """Whether no answer of it counts, however good it is."""


def free_bytes(known: Estimates, *, lately: bool) -> int | None:
    """Return the memory that would be free with no variant loaded; None if it is unknown.

    Args:
        known: What was learnt of the device.
        lately: Whether to take the worst of the last minutes.
    """
    if (lately or known.free_bytes is None) and known.taken_peak.value is not None:
        return int(-known.taken_peak.value)
    return known.free_bytes


def memory(
    peak_bytes: int | None, known: Estimates, spec: PolicySpec, *, held_bytes: int, lately: bool
) -> Fault | None:
    """Return what is wrong with a need of memory.

    Args:
        peak_bytes: The need; None if it is unknown.
        known: What was learnt of the device.
        spec: The reserve that stays free, once for the device.
        held_bytes: What other models hold.
        lately: Whether it has to fit under the conditions of the last minutes, with all of the
            reserve.
    """
    free = free_bytes(known, lately=lately)
    if free is None or peak_bytes is None:
        return None
    free -= held_bytes
    kept = spec.low_memory_bytes if lately else round(STAYS_FREE * spec.low_memory_bytes)
    need = peak_bytes + kept
    if need <= free:
        return None
    there, needed = apart(max(free, 0) / MIB, need / MIB, 0)
    text = f"needs {needed} MiB with the reserve, {there} MiB are available"
    if peak_bytes > free:
        # The less a variant needs, the sooner there is enough of it.
        cost = 1.0 + need / (need + GIB)
        return Fault(kind="memory", text=text, cost=cost, urgent=True, void=True)
    return Fault(kind="memory", text=text, cost=SCARCE * (need - free) / kept)


def heat(known: Estimates, load: float) -> Fault | None:
    """Return what is wrong with the heat under a load.

    Args:
        known: What was learnt of the device.
        load: Share of the processor that is busy.
    """
    now = known.heat.now
    if now is not None and now.mean >= 1.0:
        # Until the board has cooled down no answer counts, whatever the forecast is.
        ahead = [known.heat.forecast(load, after_s) for after_s in COOLING_S]
        hot = sum(1.0 for forecast in ahead if forecast is None or forecast.mean >= 1.0)
        cost = SOON_HOT * (1.0 + hot + load) / (1.0 + len(COOLING_S))
        text = f"headroom is {now.mean:.2f}: the board is too hot"
        return Fault(kind="heat", text=text, cost=cost, urgent=True, void=True)
    (near_s, near), (far_s, far) = ((s, known.heat.forecast(load, s)) for s in _horizons(known))
    if near is None or far is None:
        return None
    cost = SOON_HOT * (_chance(near, 1.0) + near_s / far_s * _chance(far, 1.0))
    slowed_at = known.throttling.at
    if slowed_at is not None:
        cost += THROTTLED * _chance(far, slowed_at)
    soon = _hottest([(near_s, near, LIKELY)])
    if soon is not None:
        return Fault(kind="heat", text=soon, cost=cost, urgent=True)
    if cost < SLIGHT:
        return None
    limit = "severe" if slowed_at is None else f"{slowed_at:.2f}, where it is throttled,"
    text = f"headroom may reach {limit} within {far_s:g} s"
    return Fault(kind="heat", text=text, cost=cost)


def hidden_heat(known: Estimates, load: float) -> Fault | None:
    """Return what is wrong with a heat that only throttling shows.

    Args:
        known: What was learnt of the device.
        load: Share of the processor that is busy.
    """
    bearable = known.throttling.hidden
    cost = 0.0 if bearable is None else HIDDEN * bearable.chance(load)
    if cost < SLIGHT:
        return None
    text = "the processor may be throttled, and no sensor shows why"
    return Fault(kind="heat", text=text, cost=cost)


def _horizons(known: Estimates) -> tuple[float, float]:
    """Return the times to look ahead: no shorter than it takes to decide again."""
    near_s, far_s = (max(after_s, 2.0 * known.period_s) for after_s in SOON_S)
    return near_s, far_s


def _chance(ahead: Forecast, limit: float) -> float:
    """Return the probability that a headroom is above a limit."""
    return normal_share((ahead.mean - limit) / math.hypot(ahead.sigma, SENSOR_SIGMA))


def _hottest(ahead: list[tuple[float, Forecast | None, float]]) -> str | None:
    """Return what the greatest headroom may be, so many deviations above each forecast's mean."""
    reached = [(f.at_most(z), after_s) for after_s, f, z in ahead if f is not None]
    worst, at_s = max(reached, default=(-math.inf, 0.0))
    return f"headroom may reach {worst:.2f} in {at_s:g} s" if worst >= 1.0 else None


def lasting_heat(known: Estimates, load: float) -> Fault | None:
    """Return why a load must not begin, because it could not go on for minutes.

    Args:
        known: What was learnt of the device.
        load: Share of the processor that is busy.
    """
    near_s, far_s = _horizons(known)
    ahead = ((near_s, LIKELY), (far_s, LIKELY), (LASTING_S, RATHER))
    text = _hottest([(after_s, known.heat.forecast(load, after_s), z) for after_s, z in ahead])
    return None if text is None else Fault(kind="heat", text=text, cost=1.0)


def battery(
    known: Estimates, spec: PolicySpec, load: float, *, service_s: float, asked: bool
) -> tuple[Fault | None, Fault | None]:
    """Return what is wrong with a load that empties the battery too soon: to go on, and to begin.

    A variant serves as long as the battery rather reaches the aim with it; one with more work comes
    back only if the battery surely does. Between the two, energy is saved that pays for the switch.

    Args:
        known: What was learnt of the device.
        spec: The aim.
        load: Share of the processor that is busy at the usual rate of requests.
        service_s: How long the variant runs for a request.
        asked: Whether requests usually come.
    """
    fit = known.battery
    need_s = reach.need_s(spec.aim, fit)
    if need_s is None or fit.is_held:
        return None, None
    found = reach.reaches(fit, load, need_s)
    if found is None:
        # Unknown is not full: if only a low charge is known, the least work is best.
        if fit.ratio is None or fit.ratio >= spec.low_battery_ratio:
            return None, None
        if not asked:
            load = service_s / (service_s + 1.0)
        text = f"the battery has {fit.ratio:.0%}, and its draw is not known yet"
        cost = UNKNOWN_DRAW * (1.0 - reach.share_unknown(load))
        fault = Fault(kind="battery", text=text, cost=cost)
        return fault, fault
    if found.probability >= SURELY:
        return None, None
    fault = _empty(known, found, need_s)
    return (fault if found.probability < RATHER_THAN_NOT else None), fault


def _empty(known: Estimates, found: reach.Reach, need_s: float) -> Fault:
    fit = known.battery
    required = f"{_time_of_day(fit.local_s + need_s)} is required"
    if found.empty_s is None:
        text = f"the battery lasts with probability {found.probability:.2f} only, {required}"
        return Fault(kind="battery", text=text, cost=1.0 - found.probability)
    # An empty battery answers nothing for the rest of the time; no work at all would last longest.
    idle = reach.reaches(fit, fit.usual.other_load, need_s) or found
    cost = 1.0 - found.share(need_s) / max(idle.share(need_s), reach.SOME)
    text = f"the battery would be empty at {_time_of_day(fit.local_s + found.empty_s)}"
    return Fault(kind="battery", text=f"{text}, {required}", cost=min(max(cost, 0.0), 1.0))


def _time_of_day(local_s: float) -> str:
    days, minutes = int(local_s / DAY_S), int(local_s / 60.0)
    day = "" if days < 1 else " tomorrow" if days == 1 else f" in {days} days"
    return f"{minutes // 60 % 24:02d}:{minutes % 60:02d}{day}"
