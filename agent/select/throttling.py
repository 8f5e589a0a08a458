"""What throttling shows: at which headroom it comes, and which load the board bears without it.

Some boards are slowed down below the limit of their zones, and some sensors read too low, are
stuck, or there is none. Where throttling begins or ends, the board was just loaded with what it
bears, and throttling that goes on, or stays away, tells on which side it is.

Rules:
- Pure.
- A processor that is throttled from the beginning shows nothing: an operator may have limited it.
- What was not seen for an hour is forgotten: then more work is tried again.

Source:
    One measurement per look: a Kalman filter of a constant that drifts (Bar-Shalom, Li and
    Kirubarajan, Estimation with Applications to Tracking and Navigation, 2001, section 5.2).
"""

from __future__ import annotations

import math
from typing import Final

import msgspec

from agent.select.heat import SLOPE_PRIOR
from agent.select.recent import normal_share
from wire.durations import HOUR_S
from wire.health import HealthSnapshot

UNSLOWED: Final = 0.99
"""A limit of the clock above this slows nothing down."""

RISES_PER_S: Final = 0.1 / HOUR_S
"""What was long not seen is forgotten: upwards, at a tenth of the scale in the hour."""

COOL: Final = 0.7
"""No board is throttled for its heat below this headroom: where its sensor reads less, the sensor
does not show the heat."""

COOLED, FALLS = 0.15, 0.05
"""By how much the board has cooled for a check of the sensor, about 5 degrees, and by how much the
readings have to fall then."""

COOLS_S: Final = 120.0
"""Time after throttling in which a slow sensor follows."""

LAG_S: Final = 120.0
"""Time over which loads count together: between that of a chip and that of a case."""

MEAN_S: Final = 20.0
"""Time over which readings are averaged."""

EDGE_SIGMA: Final = 0.1
"""How far from the bearable load the load is where throttling begins or ends: a governor waits for
some degrees between the two, and full load warms a board by 30."""

DRIFT_PER_S: Final = 0.15**2 / HOUR_S
"""Variance per second: the surroundings may change by 5 degrees in an hour."""


class Bearable(msgspec.Struct, frozen=True, kw_only=True):
    """The load that a board bears without being throttled, as a share of the processor."""

    load: float
    variance: float = EDGE_SIGMA**2

    def chance(self, load: float) -> float:
        """Return the probability that a load throttles the processor."""
        return normal_share((load - self.load) / math.sqrt(self.variance))

    def look(self, load: float, period_s: float, *, on: bool, edge: bool) -> Bearable:
        """Return the estimate after a look at the throttling.

        Args:
            load: Of the last minutes.
            period_s: Time since the last look.
            on: Whether the processor is throttled.
            edge: Whether throttling began or ended.
        """
        drifted = self.variance + DRIFT_PER_S * period_s
        if not edge and (load < self.load) is not on:
            return Bearable(load=self.load, variance=drifted)
        # While it goes on, looks within the same minutes tell the same.
        noise = EDGE_SIGMA**2 * (1.0 if edge else max(LAG_S / period_s, 1.0))
        gain = drifted / (drifted + noise)
        return Bearable(load=self.load + gain * (load - self.load), variance=(1.0 - gain) * drifted)


class Throttling(msgspec.Struct, frozen=True, kw_only=True):
    """What throttling showed of the heat; nothing at the start."""

    at: float | None = None
    """The least headroom at which the processor was throttled lately."""

    bearable: Bearable | None = None
    """None while no throttling was seen to begin within the last hour."""

    on: bool | None = None
    """Whether the processor was throttled at the last look."""

    free_s: float = 0.0
    """Time since it was throttled last."""

    load: float | None = None
    """Mean load of the last minutes; None before the first look."""

    reading: float | None = None
    """The sensor's mean headroom lately; None before the first reading."""

    hot: tuple[float, float] | None = None
    """The reading and the mean load when throttling began last; None without a reading then. While
    it goes on the board cools down, by more than ten degrees under some governors."""

    followed: bool = True
    """Whether the readings fell when the board last cooled down after throttling."""

    @property
    def hidden(self) -> Bearable | None:
        """The load that the board bears, if no sensor shows its heat; else None."""
        shown = self.followed and self.hot is not None and self.hot[0] >= COOL
        return None if shown else self.bearable

    def update(
        self, on: bool | None, headroom: float | None, load: float, period_s: float
    ) -> Throttling:
        """Return what is known after a period.

        Args:
            on: Whether the processor is throttled; None if that was not read.
            headroom: Reading at the end of the period; None if there was none.
            load: Share of the period in which the processor was busy, 0 to 1.
            period_s: Length of the period in seconds.
        """
        at = self._at(headroom, period_s, on=on is True)
        if on is None or period_s <= 0.0:
            return msgspec.structs.replace(self, at=at)
        load = _mean(self.load, load, period_s / LAG_S)
        reading = (
            self.reading if headroom is None else _mean(self.reading, headroom, period_s / MEAN_S)
        )
        free_s = 0.0 if on else self.free_s + period_s
        known, edge = self.bearable, self.on is not None and on is not self.on
        if (known is None and not (on and edge)) or free_s > HOUR_S:
            return Throttling(at=at, on=on, free_s=free_s, load=load, reading=reading)
        return Throttling(
            at=at,
            bearable=Bearable(load=load)
            if known is None
            else known.look(load, period_s, on=on, edge=edge),
            on=on,
            free_s=free_s,
            load=load,
            reading=reading,
            hot=self.hot if not (on and edge) else None if headroom is None else (headroom, load),
            followed=self._followed(free_s, reading, load),
        )

    def _at(self, headroom: float | None, period_s: float, *, on: bool) -> float | None:
        risen = None if self.at is None else self.at + RISES_PER_S * period_s
        known = risen if risen is not None and risen < 1.0 else None
        if not on or headroom is None or headroom >= 1.0:  # there every board is throttled
            return known
        return headroom if known is None else min(known, headroom)

    def _followed(self, free_s: float, reading: float | None, load: float) -> bool:
        """Tell whether the sensor followed when the board cooled down."""
        if self.hot is None or reading is None or free_s < COOLS_S:
            return self.followed
        was, under = self.hot
        has_cooled = SLOPE_PRIOR * (under - load) >= COOLED
        return was - reading >= FALLS if has_cooled else self.followed


def is_slowed(health: HealthSnapshot) -> bool | None:
    """Tell whether the processor is throttled; None if that was not read."""
    limit = health.cpu_frequency_limit_ratio
    if health.throttled is None and limit is None:
        return None
    return health.throttled is True or (limit is not None and limit < UNSLOWED)


def _mean(known: float | None, new: float, periods: float) -> float:
    """Return a running mean; `periods` is the time over that of the mean."""
    return new if known is None else known + (new - known) * -math.expm1(-periods)
