"""Random numbers by counter: each is a function of where it is used, not of what was drawn before.

So a replay is deterministic, and two policies meet the same arrivals, services and sensor noise,
whatever they decide (common random numbers; Law, Simulation Modeling and Analysis, 5th edition,
section 11.2).

Rules:
- Pure, and equal in all versions of Python.

Source:
    SplitMix64: Steele, Lea and Flood, Fast Splittable Pseudorandom Number Generators, OOPSLA 2014,
    with the constants of `java.util.SplittableRandom`. Its state advances by a constant, so the
    n-th number is known without those before it.
"""

from __future__ import annotations

from statistics import NormalDist
from typing import Final

MASK: Final = 2**64 - 1
GAMMA: Final = 0x9E3779B97F4A7C15
"""By this much the state advances."""

UNIT: Final = 2.0**-52
SEEDS: Final = 2**53
"""Seeds are below this: JSON of any language keeps them exactly."""

normal_quantile: Final = NormalDist().inv_cdf


def mixed(state: int) -> int:
    """Return 64 bits that look random, of a state of any size."""
    state &= MASK
    state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & MASK
    return state ^ (state >> 31)


def start(seed: int, stream: int, tick: int) -> int:
    """Return the state at which the numbers of a tick begin.

    Args:
        seed: The seed of the trace.
        stream: What the numbers are for; streams are independent.
        tick: Number of the tick.
    """
    return mixed(mixed(mixed(seed) + stream * GAMMA) + tick * GAMMA)


def uniform(state: int, number: int) -> float:
    """Return the number with an index, between 0 and 1 and never one of them.

    Args:
        state: What `start` returned.
        number: Index of the random number, from 0.
    """
    return ((mixed(state + (number + 1) * GAMMA) >> 12) + 0.5) * UNIT


def normal(state: int, number: int) -> float:
    """Return the standard normal deviate with an index, by inversion.

    Args:
        state: What `start` returned.
        number: Index of the random number, from 0.
    """
    return normal_quantile(uniform(state, number))
