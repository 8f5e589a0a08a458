"""The days of a year: each is a day of 24 hours on a board of its own.

A day has few requests by night and many by day, and fewer at a weekend. The air follows the hour
and the season. On working days a job beside the variants comes and goes, and now and then there is
a rush. Board, variants, deadline, requests and sensors are drawn as for all families.

Rules:
- Pure: the seed and the number of the day determine a day. A policy starts anew on each, so that
  the days are independent and a bootstrap may resample them.
"""

from __future__ import annotations

import functools
import math
import random
from typing import Final

from agent.replay.board import Inputs
from benchmarks.policies import surroundings
from benchmarks.policies.families import Draw, Family, draw_of
from benchmarks.policies.surroundings import Scene, daylight, switched

DAYS: Final = 365
WEEK: Final = 7
WORKING_DAYS: Final = 5
MIDSUMMER: Final = 200
"""Number of the warmest day."""

WINTER_C: Final = 14.0
"""How much colder the coldest day is."""

SECONDS_PER_HOUR: Final = 3600.0
WORKING_HOURS: Final = (8.0, 18.0)
OUTLIER_SHARE: Final = 0.3
"""Share of the days on which a few requests take ten times as long."""

FULL_DAY: Final = (24.0, 24.0)


def draw_day(master: int, number: int) -> Draw:
    """Return a day of a year.

    Args:
        master: Seed of the year.
        number: Number of the day, from 0.
    """
    name = f"day-{number}"
    chance = random.Random(f"{master} {name} kind")
    outliers = (0.004, 0.03) if chance.random() < OUTLIER_SHARE else (0.0, 0.0)
    family = Family(
        functools.partial(day, number=number), FULL_DAY, outliers=outliers, declared_sigma=0.1
    )
    return draw_of(family, name, master)


def day(scene: Scene, *, number: int) -> tuple[Inputs, ...]:
    """Return the inputs of a day.

    Args:
        scene: The device, its variants and what is asked of it.
        number: Number of the day.
    """
    chance = scene.chance
    works_today = number % WEEK < WORKING_DAYS
    least, most = chance.uniform(0.05, 0.4), chance.choice((1.0, scene.crowd()))
    if not works_today:
        most *= 0.5
    rush, in_rush = (
        chance.uniform(1.2, 2.0),
        switched(scene, chance.uniform(200.0, 900.0), chance.uniform(3600.0, 14_400.0)),
    )
    share, slower = chance.uniform(0.1, 0.5), scene.slower()
    runs = switched(scene, chance.uniform(600.0, 3600.0), chance.uniform(600.0, 7200.0))
    noon_c = scene.hot_c(share) + chance.uniform(-6.0, 2.0) - WINTER_C * (1.0 - warmth(number))
    swing_c = chance.uniform(4.0, 12.0)

    def busy(tick: int) -> bool:
        hour = tick * scene.period_s / SECONDS_PER_HOUR
        begins, ends = WORKING_HOURS
        return works_today and runs[tick] and begins <= hour < ends

    def demand(at_s: float) -> float:
        usual = least + (max(most, least) - least) * daylight(0.0, at_s)
        return usual * (rush if in_rush[round(at_s / scene.period_s)] else 1.0)

    return surroundings.inputs(
        scene,
        ambient_c=lambda at_s: noon_c - swing_c * (1.0 - daylight(0.0, at_s)),
        demand=demand,
        slowdown=lambda tick: slower if busy(tick) else 1.0,
        other_share=lambda tick: share if busy(tick) else 0.0,
    )


def warmth(number: int) -> float:
    """Return how warm the season is on a day: 1 at midsummer, 0 half a year later."""
    return 0.5 * (1.0 + math.cos(math.tau * (number - MIDSUMMER) / DAYS))
