"""The battery: what a load draws from it, what a charger or the sun gives, and whether it reaches.

The board's draw from the battery is a line over the load, whose base is what the idle board takes
less what comes in. The load changes within seconds, what comes in within minutes: so a change of
the draw together with the load teaches the slope, and everything else moves the base. The greatest
base that lasted is the idle board without income; what the base is below it comes in now.

Rules:
- Pure. Before the first reading the charge is unknown, not full. If a later reading is missing,
  the energy left follows from the fitted power.
- Without a gauge of power, the draw comes from the steps of the gauge of charge; without a known
  capacity too, everything is counted in shares of the charge instead of joules.

Source:
    Linear power model of a processor: Fan, Weber and Barroso, Power Provisioning for a
    Warehouse-sized Computer (ISCA 2007), section 4.
"""

from __future__ import annotations

import math
from typing import Final

import msgspec

from agent.select.days import DayPattern
from agent.select.gauge import Shown, believed, capacity_j, left_j
from agent.select.kalman import Line
from agent.select.usual import Usual
from wire.durations import DAY_S, HOUR_S
from wire.health import HealthSnapshot

MW_PER_W: Final = 1000.0
FALL: Final = 0.0099
"""Most gauges count in hundredths, so a capacity is taken from falls of at least a hundredth. The
value is slightly less, because divisions round."""

LEAST_W: Final = 1e-3
"""No board draws less."""

BUSY_OVER_IDLE: Final = 1.5
"""What full load adds, over the draw of the idle board: small boards take two to three times as
much when busy. It holds until loads have shown the slope."""

IDLE_LASTS_S: Final = 20 * HOUR_S
"""How long a full battery feeds an idle board, as long as none was seen to draw from it."""

PRIOR: Final = 0.7
"""Relative deviation of the first guess of base and slope."""

NOISE: Final = 0.03
"""Relative deviation of a reading of the power."""

BASE_DRIFT_PER_S: Final = 2e-6
SLOPE_DRIFT_PER_S: Final = 2e-8
"""Relative variances: the base moves with the sun, the slope hardly."""

SURPRISE: Final = 3.0
"""A reading so many deviations off is a jump of what comes in: a cloud, or a charger."""

RISES_S: Final = 600.0
"""Time constant with which the idle board's draw follows a greater base; heat and other programs
raise the base for less."""

FALLS_S: Final = 2 * DAY_S
STEADY_FALLS_S: Final = 3 * HOUR_S
"""With which it follows a smaller base: slowly while what comes in varies, soon while it does not:
the sun changes within the hour, and what never changes may as well count as a smaller draw."""

NEW_S: Final = 3600.0
"""In the first hour of drawing from the battery nothing is known of the board without income."""

SOME_S: Final = 1.0
SOME: Final = 1e-9
"""Less than any board draws, in watts and in shares of the charge per second."""

STEADY: Final = 0.1
"""Deviation of what comes in, over the usual draw, up to which it counts as steady."""

UNFED_S: Final = 900.0
"""After so long without charging, single readings of the power show the line. Before, only those
with much load may show a draw at all, which would bend the line."""

RECENT_S: Final = 1800.0
"""Time constant of what lately came in: over the clouds of half an hour."""

DARK_S: Final = 300.0
"""The same, while nothing comes in at all: a charger that is gone is no cloud."""

FULL: Final = 0.985
FLAT_S: Final = 900.0
"""A gauge that stands still for so long while nothing is drawn is on mains."""

CHARGED_S: Final = 600.0
"""So long it has to charge before the next discharge counts as a new one."""

GAUGE_NOISE: Final = 0.5
"""A step may have come anywhere between two looks."""

SHORTEST_S: Final = 0.01
"""Two looks that are nearer show no rate."""

LEAST_NOISE: Final = 0.01
LEAST_IDLE: Final = 0.05
"""No idle board draws less, over what full load adds."""

LEAST_FALL: Final = 0.0005
"""Smaller steps of the charge are noise; gauges count in hundredths or thousandths."""


class BatteryFit(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of the battery, of the draw from it, and of what comes in."""

    draw: Line | None = None
    """Net draw from the battery over the load, what comes in subtracted: watts, or shares of the
    charge per second; None before the first reading."""

    in_shares: bool = False
    """Whether `draw` and all that follows from it is in shares of the charge, not in joules."""

    drawn_s: float = 0.0
    """For how long the board was seen to draw from the battery; at 0 its draw is a guess."""

    idle: float | None = None
    """Draw of the idle board if nothing comes in; None until a draw was seen."""

    energy_j: float | None = None
    """Energy left in the battery; None if it is unknown."""

    ratio: float | None = None
    """Charge at its last reading; `discharging` is also the last reading."""

    discharging: bool | None = None
    capacity_j: float | None = None
    """As the battery reports it, or computed from falls of the charge under a known draw."""

    start_ratio: float | None = None
    """The charge to which the gauge last fell: between two falls it does not show the charge."""

    drawn_j: float = 0.0
    """Energy drawn since that fall."""

    mark: float | None = None
    """Reading at the last step of the gauge, midway between two; None before a step. A share of the
    charge, or joules where only the energy is read."""

    mark_s: float = 0.0
    """Time since that step."""

    mark_load_s: float = 0.0
    """Load times time since that step."""

    income: float = 0.0
    """What lately came in: mean of half an hour."""

    income_variance: float = 0.0
    incomes: DayPattern = DayPattern()
    usual: Usual = Usual()
    odd: int = 0
    """Readings of the charge in a row that cannot be."""

    local_s: float = 0.0
    """Local time of day of the last reading."""

    discharged_s: float = 0.0
    """For how long it has been discharging."""

    charged_s: float = 0.0
    """For how long it has not."""

    unfed_s: float = 0.0
    """For how long it has been discharging without any break."""

    @property
    def is_held(self) -> bool:
        """Whether something feeds the board that is not measured: the battery is full, or kept."""
        full = self.ratio is not None and self.ratio >= FULL
        return self.discharging is False and (full or min(self.mark_s, self.charged_s) >= FLAT_S)

    @property
    def amount(self) -> float | None:
        """What is left, in joules or as a share; None if it is unknown."""
        return self.ratio if self.in_shares else self.energy_j

    @property
    def whole(self) -> float | None:
        """What the full battery holds, in joules or as a share; None if it is unknown."""
        if self.in_shares:
            return 1.0
        if self.capacity_j is not None:
            return self.capacity_j
        if not self.energy_j or self.ratio is None or self.ratio < LEAST_FALL:
            return None
        return self.energy_j / self.ratio

    def update(
        self,
        health: HealthSnapshot,
        load: float,
        period_s: float,
        *,
        demand_per_s: float | None = None,
        other_load: float = 0.0,
    ) -> BatteryFit:
        """Return the fit after a period.

        Args:
            health: Readings at the end of the period.
            load: Share of the period in which the processor was busy, 0 to 1.
            period_s: Length of the period in seconds.
            demand_per_s: Requests that are expected each second now; None if none could come.
            other_load: Share of the period in which other programs kept the processor busy.
        """
        shown = Shown(
            ratio=self.ratio, energy_j=self.energy_j, whole_j=self.capacity_j, odd=self.odd
        )
        health, odd = believed(health, shown, period_s)
        told = health.battery_discharging
        discharging = self.discharging if told is None else told
        if discharging is None and health.battery_ratio is None and health.battery_energy_j is None:
            return self
        power_w = health.power_mw / MW_PER_W if told and health.power_mw is not None else None
        fit = msgspec.structs.replace(self, start_ratio=None, drawn_j=0.0)
        if power_w is not None:
            fit = self._count(health.battery_ratio, power_w * period_s)
        drawn = self.draw.at(load) * period_s if self.draw and discharging else 0.0
        fit = msgspec.structs.replace(
            fit,
            energy_j=left_j(health, fit.energy_j, fit.capacity_j, 0.0 if fit.in_shares else drawn),
            ratio=self.ratio if health.battery_ratio is None else health.battery_ratio,
            capacity_j=capacity_j(health, fit.capacity_j),
            discharging=discharging,
            discharged_s=_discharged_s(self, discharging, period_s),
            charged_s=self.charged_s + period_s if discharging is False else 0.0,
            unfed_s=self.unfed_s + period_s if discharging else 0.0,
            usual=self.usual.update(health.local_s, load, other_load, demand_per_s, period_s),
            odd=odd,
            local_s=health.local_s,
        )
        no_steps = fit.energy_j is None and not fit.in_shares
        if power_w is not None and (fit.unfed_s >= UNFED_S or fit.draw is None or no_steps):
            fit = _measured(fit, load, power_w, period_s, NOISE * power_w, in_shares=False)
            fit = msgspec.structs.replace(fit, mark=None, mark_s=0.0, mark_load_s=0.0)
        elif discharging is not None and not (no_steps and fit.draw is not None):
            fit = _stepped(fit, self, load, period_s)
        if fit.is_held:
            fit = msgspec.structs.replace(fit, mark=None)
        return _with_income(fit, load, period_s)

    def lasts_s(self, load: float) -> float | None:
        """Return how long the battery lasts at a load if what comes in stays; None if unknown."""
        amount = self.amount
        if self.draw is None or amount is None:
            return None
        net = self.draw.at(load)
        return amount / net if net >= (1e-9 if self.in_shares else LEAST_W) else None

    def _count(self, ratio: float | None, drawn_j: float) -> BatteryFit:
        start, before = self.start_ratio, self.ratio
        if ratio is None or before is None or ratio > before:
            return msgspec.structs.replace(self, start_ratio=None, drawn_j=0.0)
        if start is None:
            fallen = ratio if ratio < before else None
            return msgspec.structs.replace(self, start_ratio=fallen, drawn_j=0.0)
        total_j, fall = self.drawn_j + drawn_j, start - ratio
        if fall < FALL or ratio == before or total_j <= 0.0:
            return msgspec.structs.replace(self, drawn_j=total_j)
        shown_j = total_j / fall
        known_j = shown_j if self.capacity_j is None else 0.8 * self.capacity_j + 0.2 * shown_j
        return msgspec.structs.replace(self, start_ratio=ratio, drawn_j=0.0, capacity_j=known_j)


def _stepped(fit: BatteryFit, before: BatteryFit, load: float, period_s: float) -> BatteryFit:
    """Return the fit after a look at the gauge of energy or charge.

    A gauge counts in steps. At a step the true amount is midway between the two readings, so
    what was drawn between two steps is known, also where the direction changed in between.
    """
    in_shares = fit.energy_j is None
    whole = 1.0 if in_shares else fit.whole
    # In shares, because a capacity that was learnt anew is no step.
    now, then, unit = fit.ratio, before.ratio, whole
    if fit.ratio is None or whole is None:
        now, then, unit = fit.energy_j, before.energy_j, 1.0
    if now is None or unit is None:
        return fit
    since_s, load_s = fit.mark_s + period_s, fit.mark_load_s + load * period_s
    if then is None or in_shares != fit.in_shares:
        return msgspec.structs.replace(
            fit, mark=None, mark_s=0.0, mark_load_s=0.0, **_unit(fit, in_shares)
        )
    if abs(now - then) < LEAST_FALL * (whole or now) / unit or since_s < SHORTEST_S:
        return msgspec.structs.replace(fit, mark_s=since_s, mark_load_s=load_s)
    step = 0.5 * (now + then)
    if fit.mark is not None:
        net = (fit.mark - step) * unit / since_s
        unsure = abs(now - then) * unit * GAUGE_NOISE * max(period_s / since_s, 0.1) / since_s
        fit = _measured(fit, load_s / since_s, net, since_s, unsure, in_shares=in_shares)
    return msgspec.structs.replace(fit, mark=step, mark_s=0.0, mark_load_s=0.0)


def _unit(fit: BatteryFit, in_shares: bool) -> dict[str, object]:
    """Return what a change of the unit makes void."""
    if in_shares == fit.in_shares:
        return {}
    return {
        "in_shares": in_shares, "draw": None, "idle": None, "drawn_s": 0.0, "income": 0.0,
        "income_variance": 0.0, "incomes": DayPattern(),
    }  # fmt: skip


def _measured(
    fit: BatteryFit, load: float, net: float, period_s: float, sigma: float, *, in_shares: bool
) -> BatteryFit:
    """Return the fit after a net draw was measured."""
    fit = msgspec.structs.replace(fit, **_unit(fit, in_shares))
    guessed = fit.drawn_s <= 0.0 < net and fit.unfed_s > 0.0
    if fit.draw is None or fit.idle is None or guessed:
        return msgspec.structs.replace(fit, **_first(load, net, fit.whole or net))
    scale = fit.idle + fit.draw.slope
    noise = max(sigma, LEAST_NOISE * scale, SOME) ** 2
    line = fit.draw.drifted(
        BASE_DRIFT_PER_S * period_s * scale**2, SLOPE_DRIFT_PER_S * period_s * scale**2
    )
    surprise = net - line.at(load)
    if surprise**2 > SURPRISE**2 * (line.variance_at(load) + noise):
        line = line.drifted(surprise**2, 0.0)
    if fit.unfed_s >= UNFED_S:
        line = line.update(load, net, gain=1.0, noise=noise)
    else:
        share = line.base_variance / (line.base_variance + noise)
        line = msgspec.structs.replace(
            line,
            base=line.base + share * surprise,
            base_variance=(1.0 - share) * line.base_variance,
            covariance=(1.0 - share) * line.covariance,
        )
    # The draw under the usual load is known best: the line turns about that point.
    idle = fit.idle - (line.slope - fit.draw.slope) * fit.usual.load
    steady = fit.income_variance < (STEADY * (idle + line.slope * fit.usual.load)) ** 2
    gap, follows_s = line.base - idle, RISES_S
    if fit.drawn_s >= NEW_S:
        # What only noise lifts for a while would stay.
        gap = math.copysign(max(abs(gap) - math.sqrt(line.base_variance), 0.0), gap)
    if gap < 0.0 and (steady or fit.drawn_s >= NEW_S):
        follows_s = STEADY_FALLS_S if steady else FALLS_S
    if gap > 0.0 or fit.unfed_s >= UNFED_S:
        idle += gap * -math.expm1(-period_s / follows_s)
    return msgspec.structs.replace(
        fit,
        draw=line,
        idle=max(idle, LEAST_IDLE * line.slope),
        drawn_s=fit.drawn_s + min(period_s, fit.unfed_s),
    )


def _with_income(fit: BatteryFit, load: float, period_s: float) -> BatteryFit:
    if fit.draw is None or fit.idle is None or period_s <= 0.0:
        return fit
    now = max(fit.idle - fit.draw.base, 0.0)
    if fit.discharging is False:
        now = max(now, fit.idle + fit.draw.slope * load)
    usual = fit.idle + fit.draw.slope * fit.usual.load
    is_dark = now < STEADY * usual and fit.unfed_s >= UNFED_S
    share = -math.expm1(-period_s / (DARK_S if is_dark else RECENT_S))
    surprise = now - fit.income
    return msgspec.structs.replace(
        fit,
        income=fit.income + share * surprise,
        income_variance=(1.0 - share) * (fit.income_variance + share * surprise**2),
        incomes=fit.incomes.update(fit.local_s, now, period_s),
    )


def _first(load: float, net: float, whole: float) -> dict[str, object]:
    """Return line and idle draw after the first measurement."""
    if net > 0.0:
        idle = base = max(net, SOME) / (1.0 + BUSY_OVER_IDLE * load)
    else:
        idle = max(whole / IDLE_LASTS_S, SOME)
        base = net - BUSY_OVER_IDLE * idle * load
    slope = BUSY_OVER_IDLE * idle
    line = Line(
        base=base,
        slope=slope,
        base_variance=(PRIOR * idle) ** 2,
        slope_variance=(PRIOR * slope) ** 2,
    )
    return {"draw": line, "idle": idle, "drawn_s": SOME_S if net > 0.0 else 0.0}


def _discharged_s(before: BatteryFit, discharging: bool | None, period_s: float) -> float:
    if discharging:
        return before.discharged_s + (period_s if before.discharging else 0.0)
    return 0.0 if before.charged_s + period_s >= CHARGED_S else before.discharged_s
