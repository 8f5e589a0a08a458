"""When gates are looked at, and how strict each look is. Pure.

A rollout is looked at again and again, and each look may err. The chance that any of them ever does
is bounded: each look may err with a part of what is allowed in all, and the parts of all looks,
however many come, add up to at most 1. So the intervals of all looks together are a confidence
sequence at the times of the looks: it may be read at any of them, and a decision may be taken then,
without regard to when it will end. That holds whatever the values of a device in one look have to
do with those in the next, as they have: the union bound asks nothing of them.

Rules:
- When the next look comes depends on time alone, never on what was measured.
- Looks come at growing distances, so that a long wait does not use up the shares.
- All gates of a rollout share what is allowed.
- Half of it is for the looks at the ends of soaks, evenly, one for each stage: then there is most
  to see, and how many such looks come is known when the rollout is made. All looks share the rest.

Source:
    Howard, Ramdas, McAuliffe and Sekhon, Time-uniform, nonparametric, nonasymptotic confidence
    sequences (Annals of Statistics 49, 2021), section 3.1: stitching, a union bound over epochs
    whose lengths grow geometrically.
"""

from __future__ import annotations

from typing import Final

ERROR: Final = 0.05
"""The chance that any gate of a rollout ever tells a difference that is not there."""

GROWTH: Final = 1.5
"""By how much longer than the last a distance between looks is."""

FIRST_PART: Final = 4.0
"""The first look of a stage comes after this part of its soak time."""

LEAST_S: Final = 60.0
"""Telemetry is stored by the minute."""

ENDS: Final = 0.5
"""What part of the allowed error is for the looks at the ends of soaks."""

_EVEN: Final = 5
"""The first looks share so evenly: with 1, the first alone would take one half."""


def share(look: int) -> float:
    """Return what part a look may take of what all looks share.

    Args:
        look: Its number in the rollout, from 1.

    Returns:
        `m / ((k + m - 1) (k + m))` for `m` of 5; over all looks the sum is 1.
    """
    return _EVEN / ((look + _EVEN - 1) * (look + _EVEN))


def level(look: int, gates: int, *, ends: int = 0) -> float:
    """Return with what chance the interval of one gate in one look may err.

    Args:
        look: Its number in the rollout, from 1.
        gates: How many gates the rollout has.
        ends: For a look at the end of a soak, how many of these share what is for them; 0 for any
            other look.
    """
    of_ends = ENDS / ends if ends else 0.0
    return ERROR * ((1.0 - ENDS) * share(look) + of_ends) / gates


def is_end(now_s: float, since_s: float | None, last_s: float | None, soak_s: float) -> bool:
    """Tell whether a look is the one at the end of a soak.

    Args:
        now_s: When it is, by the rollout's own clock.
        since_s: Since when the stage is complete; None while it runs.
        last_s: The last look; None for none.
        soak_s: How long the stage is to stay good.
    """
    if since_s is None:
        return False
    end_s = since_s + soak_s
    return end_s <= now_s and (last_s is None or last_s < end_s)


def next_look_s(since_s: float, last_s: float | None, soak_s: float) -> float:
    """Return when gates are looked at next, by the rollout's own clock.

    Args:
        since_s: Since when the stage is as it is: its beginning, or its completion.
        last_s: The last look; None, or a time before `since_s`, for none in this stage.
        soak_s: How long the stage is to stay good; a look comes at the end of that at the latest.
    """
    first_s = max(soak_s / FIRST_PART, LEAST_S)
    if last_s is None or last_s < since_s:
        return since_s + min(first_s, max(soak_s, LEAST_S))
    wanted_s = since_s + max((last_s - since_s) * GROWTH, last_s - since_s + LEAST_S)
    end_s = since_s + soak_s
    return end_s if last_s < end_s < wanted_s else wanted_s
