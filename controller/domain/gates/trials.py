"""How well a share is known by the requests that it rests on, however alike devices are. Pure.

Devices of which none has failed yet all measure 0, so they show no spread: Student's interval then
knows their number, and not that each has answered only some requests. A share is no better known
than a count of as many requests tells, if each of them fails for itself.

Rules:
- A request is taken to fail for itself, as often on all devices. Where failures come together,
  devices differ once one was seen, and the interval of devices is wider than this one: the wider of
  both counts. While none was seen, as many that come together tell as little as one.
- Shares above one half are counted by their rest: where nearly all answers are right, the wrong
  ones.
- It is about quotients of counters, about rates, where each second is a trial, about shares of
  classes, and about means of ones and zeros. How many trials any other figure rests on is not
  known.

Source:
    The limits of a count are Byar's: Breslow and Day, Statistical Methods in Cancer Research II
    (1987), section 2.3; for no event at all they are a little above the exact `-ln(level / 2)`. A
    weighted mean of shares as one count of fewer trials: Fay and Feuer, Confidence intervals for
    directly standardized rates (Statistics in Medicine 16, 1997), section 2. Two of them make the
    limits of the difference: Zou and Donner, Construction of confidence limits about effect
    measures (Statistics in Medicine 27, 2008), section 2.
"""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import Final, NamedTuple

from controller.domain.gates.language import Gate
from telemetry.metrics import known

_HALF: Final = 0.5
_HALVINGS: Final = 30
_MOST_TIMES: Final = 1024.0


class Trials(NamedTuple):
    """What one side has shown: a share, and how many trials it rests on."""

    share: float
    """The mean over devices, weighted as they are in the difference."""

    number: float
    """As many trials of one device would know it as well; infinite if that is not known."""

    def apart(self, z: float) -> tuple[float, float]:
        """Return how far below and above the true share may lie.

        Args:
            z: The quantile of the standard normal distribution.
        """
        if math.isinf(self.number):
            return 0.0, 0.0
        is_rest = _HALF < self.share <= 1.0
        count = self.number * (1.0 - self.share if is_rest else self.share)
        less, more = (count - _least(count, z)), (_most(count, z) - count)
        below, above = (more, less) if is_rest else (less, more)
        return below / self.number, above / self.number


def has_trials(gate: Gate) -> bool:
    """Tell whether the figures of a gate are shares of a number of trials that is known."""
    if gate.over or gate.is_shift or gate.statistic == "rate":
        return True
    metric = known(gate.metric)
    is_mean = gate.statistic == "mean" and gate.unit == "pp"
    return is_mean and metric is not None and metric.kind == "histogram"


Sides = tuple[Trials, Trials]
"""The devices with the new release, and those with the old one."""


def apart(sides: Sides, level: float) -> tuple[float, float]:
    """Return how far below and above its estimate the true difference may lie.

    Args:
        sides: What each has shown.
        level: The chance that it does not, above 0: half of it on each side.
    """
    z = -NormalDist().inv_cdf(level / 2.0)
    (new_below, new_above), (old_below, old_above) = (side.apart(z) for side in sides)
    return math.hypot(new_below, old_above), math.hypot(new_above, old_below)


def times_needed(sides: Sides, level: float, distance: float) -> float:
    """Return how many times as many trials would tell at least, if the shares stay as they are.

    Args:
        sides: What each has shown.
        level: The chance that the interval errs.
        distance: How far the limit is above the estimate; below 0 if it is below it.

    Returns:
        At least 1; infinite if a thousand times as many would not.
    """
    low, high = 1.0, _MOST_TIMES
    if not _tells(sides, level, high, distance):
        return math.inf
    for _ in range(_HALVINGS):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if _tells(sides, level, middle, distance) else (middle, high)
    return high


def _tells(sides: Sides, level: float, times: float, distance: float) -> bool:
    new, old = (side._replace(number=side.number * times) for side in sides)
    below, above = apart((new, old), level)
    return above < distance if distance > 0.0 else below < -distance


def _most(count: float, z: float) -> float:
    one_more = count + 1.0
    return one_more * (1.0 - 1.0 / (9.0 * one_more) + z / (3.0 * math.sqrt(one_more))) ** 3


def _least(count: float, z: float) -> float:
    if count <= 0.0:
        return 0.0
    return count * max(1.0 - 1.0 / (9.0 * count) - z / (3.0 * math.sqrt(count)), 0.0) ** 3
