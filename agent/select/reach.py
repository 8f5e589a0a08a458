"""Whether a battery reaches an aim: a pure judgement from its fit, with a probability.

Rules:
- Pure, and monotone: more load never reaches further.
- What the day pattern has not seen comes from the present: what comes in fades over hours, as the
  sun does; requests go on as they are.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

import msgspec

from agent.select.asked_last import last_asked
from agent.select.battery import BatteryFit
from agent.select.days import BIN_S
from agent.select.recent import normal_share
from wire.durations import DAY_S
from wire.policy import Objective

INCOME_FADES_S: Final = 3 * 3600.0
"""Time constant of what comes in where no day was seen: from noon, a panel gives about as much as
if it went on like now for three to four hours."""

INCOME_SIGMA: Final = 0.3
"""Relative deviation of that."""

DRAW_SIGMA: Final = 0.08
"""Relative deviation of the draw over hours: heat, other programs, more or fewer requests."""

FED_SIGMA: Final = 0.05
RESERVE: Final = 0.02
"""Of the charge, but at most half of what is left: what gauges err by, and below which devices
switch themselves off."""

GAUGE_SIGMA: Final = 0.005
"""Of the charge: half a step of a gauge that counts in hundredths."""

WORK_OVER_IDLE: Final = 10.0
"""What full load adds where no draw is known: as if nearly all of it was for work, so that a low
charge asks for the least work."""

SOME: Final = 1e-12
MOST_MORE: Final = 4.0
"""Requests are expected to be at most so many times as now: the pattern may be of another site."""


class Reach(msgspec.Struct, frozen=True, kw_only=True):
    """How far a battery gets."""

    probability: float
    """That it is not empty before the aim."""

    empty_s: float | None
    """In how many seconds it will be empty; None if it reaches the aim."""

    def share(self, need_s: float) -> float:
        """Return the share of the time until the aim that it lasts."""
        return 1.0 if self.empty_s is None or need_s <= 0.0 else min(self.empty_s / need_s, 1.0)


def need_s(aim: Objective, fit: BatteryFit) -> float | None:
    """Return for how long the battery still has to last; None if nothing is aimed at.

    Args:
        aim: The objective.
        fit: What is known of the battery.
    """
    until_s = aim.battery_until_s
    left_s = (
        aim.battery_lasts_s - fit.discharged_s
        if until_s is None
        else (until_s - fit.local_s) % DAY_S
    )
    return left_s if left_s > 0.0 else None


def reaches(fit: BatteryFit, load: float, for_s: float) -> Reach | None:
    """Judge whether a battery lasts at a load.

    Args:
        fit: What is known of the battery.
        load: Share of the processor that is busy at the usual rate of requests, 0 to 1.
        for_s: Time for which it has to last, in seconds; at most a day is looked at.

    Returns:
        The judgement; None if charge or draw are unknown.
    """
    ahead = _ahead(fit, for_s)
    if ahead is None:
        return None
    left, whole, slope, idle = ahead.left, ahead.whole, ahead.slope, ahead.idle
    worst, empty_s, at_s = math.inf, None, 0.0
    for step_s, more, income, spread in ahead.steps:
        net = idle + slope * min(load * more, 1.0) - income
        after = left - net * step_s
        if empty_s is None and after <= 0.0:
            empty_s = at_s + max(left, 0.0) / max(net, SOME)
        left, at_s = min(whole, after), at_s + step_s
        reached = left / spread
        worst = min(worst, reached)
    if ahead.is_guessed:
        # Nobody knows whether what comes in will fade; while it feeds the board, nothing is lost.
        feeds = (fit.income - idle - slope * load) / ahead.fed_sigma
        worst = max(worst, feeds)
    if worst > 0.0:
        empty_s = None
    return Reach(probability=normal_share(min(worst, 40.0)), empty_s=empty_s)


class _Ahead(NamedTuple):
    """What comes until the aim, whatever the load is."""

    left: float
    """The charge that may be used."""

    whole: float
    idle: float
    slope: float
    steps: tuple[tuple[float, float, float, float], ...]
    """Of each half hour: its length, the requests over those of now, what comes in, and the
    deviation of the charge at its end."""

    is_guessed: bool
    fed_sigma: float


@last_asked
def _ahead(fit: BatteryFit, for_s: float) -> _Ahead | None:
    """Return what comes until the aim; None if charge or draw are unknown."""
    amount, line, idle = fit.amount, fit.draw, fit.idle
    if amount is None or line is None:
        return None
    if idle is None:
        idle = line.base
    usual = idle + line.slope * fit.usual.load
    whole = math.inf if fit.whole is None else max(fit.whole, amount)
    draw_sigma = DRAW_SIGMA * usual
    gauge = GAUGE_SIGMA * (whole if whole < math.inf else amount)
    if whole < math.inf:
        # The board runs: a gauge that shows nothing hides up to half a step.
        amount = max(amount, 0.5 * GAUGE_SIGMA * whole)
    reserve = min(RESERVE * (whole if whole < math.inf else amount), 0.5 * amount)
    at_s, sigma_in, steps = 0.0, 0.0, []
    end_s, guessed = min(for_s, DAY_S), False
    while at_s < end_s:
        local_s = (fit.local_s + at_s) % DAY_S
        step_s = min(BIN_S, end_s - at_s)
        income, sigma, unseen = _income(fit, local_s, at_s)
        guessed = guessed or unseen
        at_s, sigma_in = at_s + step_s, sigma_in + sigma * step_s
        spread = math.sqrt(gauge**2 + (draw_sigma * at_s) ** 2 + sigma_in**2)
        steps.append((step_s, _more(fit, local_s), income, max(spread, SOME)))
    fed = math.hypot(math.sqrt(max(fit.income_variance, 0.0)), FED_SIGMA * usual)
    return _Ahead(
        left=amount - reserve,
        whole=whole,
        idle=idle,
        slope=line.slope,
        steps=tuple(steps),
        is_guessed=guessed,
        fed_sigma=max(fed, SOME),
    )


def budget(fit: BatteryFit, for_s: float, probability: float = 0.5) -> float | None:
    """Return the greatest load at which a battery lasts.

    Args:
        fit: What is known of the battery.
        for_s: Time for which it has to last.
        probability: With which it has to last.

    Returns:
        The load to a hundredth, 0 to 1; 0 if not even an idle board lasts; None if unknown.
    """
    least, most = 0, 101
    while most - least > 1:
        middle = (least + most) // 2
        found = reaches(fit, middle / 100.0, for_s)
        if found is None:
            return None
        least, most = (middle, most) if found.probability >= probability else (least, middle)
    return least / 100.0


def share_unknown(load: float) -> float:
    """Return how long a battery of unknown draw lasts at a load, over how long it lasts idle."""
    return 1.0 / (1.0 + WORK_OVER_IDLE * load)


def _income(fit: BatteryFit, local_s: float, ahead_s: float) -> tuple[float, float, bool]:
    """Return what comes in at a time: mean, deviation, and whether this is a guess."""
    seen = fit.incomes.expected(local_s) if ahead_s >= BIN_S else None
    if seen is not None:
        return *seen, False
    fades = math.exp(-ahead_s / INCOME_FADES_S)
    return fit.income * fades, INCOME_SIGMA * fit.income * fades, True


def _more(fit: BatteryFit, local_s: float) -> float:
    """Return the requests at a time of day over those of now."""
    seen = fit.usual.demands.expected(local_s)
    if seen is None or not fit.usual.demand:
        return 1.0
    return min(seen[0] / fit.usual.demand, MOST_MORE)
