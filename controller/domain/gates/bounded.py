"""How much a release may harm a share, whatever the devices do that were not seen. Pure.

Student's interval trusts that the devices that were seen are like those that were not. That errs
where a release harms few devices, but those wholly: of twenty devices that are all well, none shows
what becomes of the hundredth. A share lies between 0 and 1, so its mean can be bounded without that
trust: somebody who bets against a mean that is true does not get rich.

Rules:
- Each device is a bet that its share is below the mean in question, at several stakes at once. A
  mean at which the bets together win `1 / level` times what was put in is too large.
- The same bets, on the other side, bound what the old release did: of five devices of a control
  group that are all alike, none shows what the sixth does.
- Stakes depend on no device, and devices may have means of their own, so their order says nothing.

Source:
    Waudby-Smith and Ramdas, Estimating Means of Bounded Random Variables by Betting (Journal of the
    Royal Statistical Society B 86, 2024), section 4, with constant stakes and their mixture instead
    of predictable ones: devices have no order. With constant stakes the bound is of the mean of the
    devices' means: the product of what the bets bring is expected to be at most the power of their
    mean (the inequality of arithmetic and geometric means).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from controller.domain.gates.contrast import Observed
from controller.domain.gates.states import LEAST_OF_STRATUM

Floats = npt.NDArray[np.float64]

STAKES: Final = 2.0 ** -np.arange(0.0, 8.0)
"""What part of the greatest possible stake is put on a bet: the whole is best where all shares are
0, less where they differ."""

_ALL_ZERO: Final = 0.5
"""What part of the money is on the whole stake; the others share the rest."""

_HALVINGS: Final = 40


def most_harm(
    treated: Sequence[Observed], control: Sequence[Observed], level: float, *, falls: bool
) -> float:
    """Bound by how much a release makes shares worse, as a mean over the devices like these.

    Args:
        treated: Devices with the new release.
        control: Those with the old one; none to compare each device with itself before.
        level: The chance that it does more harm than that, above 0.
        falls: Whether a share that falls is worse, not one that grows.

    Returns:
        The bound: a difference of shares, at most 1.
    """
    if not control:
        known = [one for one in treated if math.isfinite(one.before)]
        moved = _harms([one.value for one in known], falls) - _harms(
            [one.before for one in known], falls
        )
        return 2.0 * most_mean((moved + 1.0) / 2.0, level) - 1.0
    harmed: list[Floats] = []
    usual: list[Floats] = []
    weights: list[tuple[Floats, Floats]] = []
    for name in sorted({one.stratum for one in treated} & {one.stratum for one in control}):
        mine, theirs = (
            _harms([one.value for one in side if one.stratum == name], falls)
            for side in (treated, control)
        )
        if min(len(mine), len(theirs)) < LEAST_OF_STRATUM:
            continue
        weight = len(mine) * len(theirs) / (len(mine) + len(theirs))
        harmed.append(mine)
        usual.append(theirs)
        weights.append(
            (np.full(len(mine), weight / len(mine)), np.full(len(theirs), weight / len(theirs)))
        )
    if not harmed:
        return 1.0
    new, old = (np.concatenate(each) for each in zip(*weights, strict=True))
    most = most_mean(np.concatenate(harmed), level / 2.0, new)
    return most - (1.0 - most_mean(1.0 - np.concatenate(usual), level / 2.0, old))


def most_mean(shares: Floats, level: float, weights: Floats | None = None) -> float:
    """Return a bound that the mean of shares does not exceed.

    Args:
        shares: Of each device, from 0 to 1.
        level: The chance that the mean is above the bound, above 0.
        weights: What each device counts; None for all the same.

    Returns:
        The bound, at most 1; 1 of no devices.
    """
    if not len(shares):
        return 1.0
    parts = np.ones(len(shares)) if weights is None else weights * len(weights) / weights.sum()
    most = float(parts.max())
    scaled = shares * parts / most
    low, high = float(scaled.mean()), 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2.0
        if _winnings(scaled, middle) >= math.log(1.0 / level):
            high = middle
        else:
            low = middle
    return min(high * most, 1.0)


def _harms(shares: Sequence[float], falls: bool) -> Floats:
    found = np.clip(np.array(shares, np.float64), 0.0, 1.0)
    return 1.0 - found if falls else found


def _winnings(shares: Floats, mean: float) -> float:
    """Return the logarithm of what the bets against a mean bring, for each unit put in."""
    if mean >= 1.0:
        return math.inf
    stakes = STAKES / (1.0 - mean)
    with np.errstate(divide="ignore"):  # a whole stake on a share of 1 loses all
        brought = np.log(np.maximum(1.0 + np.outer(stakes, mean - shares), 0.0)).sum(axis=1)
    money = np.full(len(STAKES), (1.0 - _ALL_ZERO) / (len(STAKES) - 1))
    money[0] = _ALL_ZERO
    most = float(brought.max())
    if most == -math.inf:
        return most
    return most + math.log(float((money * np.exp(brought - most)).sum()))
