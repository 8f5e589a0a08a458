"""Student's t distribution, for any level: a few devices at a strict level need its far tail. Pure.

Source:
    Abramowitz and Stegun, Handbook of Mathematical Functions: 26.7.1 (the distribution as an
    incomplete beta function) and 26.5.8 (its continued fraction), evaluated by Lentz's method
    (Applied Optics 15, 1976).
"""

from __future__ import annotations

import math
from typing import Final

_TINY: Final = 1e-300
_EXACT: Final = 1e-14
_MOST_TERMS: Final = 10_000
_STEPS: Final = 200


def student_t(level: float, degrees: float) -> float:
    """Return a quantile of Student's t distribution.

    Args:
        level: From 0.5, below 1.
        degrees: Degrees of freedom, above 0; they need not be whole.

    Returns:
        The value below which that share lies.
    """
    beyond = 1.0 - level
    if beyond <= 0.0:  # nearer to 1 than a number can be
        return math.inf
    low, high = 0.0, 1.0
    while _beyond(high, degrees) > beyond:
        low, high = high, 2.0 * high
    found = (low + high) / 2.0
    for _ in range(_STEPS):
        tail = _beyond(found, degrees)
        low, high = (found, high) if tail > beyond else (low, found)
        # Newton's step on the logarithm of the tail, or a halving where that leads outside.
        step = tail * math.log(tail / beyond) / _density(found, degrees) if tail > 0.0 else math.inf
        wanted = found + step
        wanted = wanted if low < wanted < high else (low + high) / 2.0
        if abs(wanted - found) <= _EXACT * found or wanted in {low, high}:
            return wanted
        found = wanted
    return found


def _density(x: float, degrees: float) -> float:
    gammas = math.lgamma((degrees + 1.0) / 2.0) - math.lgamma(degrees / 2.0)
    power = (degrees + 1.0) / 2.0 * math.log1p(x * x / degrees)
    return max(math.exp(gammas - power) / math.sqrt(math.pi * degrees), _TINY)


def _beyond(x: float, degrees: float) -> float:
    """Return the share above a value, which is not negative."""
    return _incomplete_beta(degrees / 2.0, 0.5, degrees / (degrees + x * x)) / 2.0


def _incomplete_beta(a: float, b: float, x: float) -> float:
    """Return the regularized incomplete beta function, for x within 0 to 1."""
    if not 0.0 < x < 1.0:
        return x
    # The fraction converges fast below this, and the function mirrors itself.
    if x > (a + 1.0) / (a + b + 2.0):
        return 1.0 - _incomplete_beta(b, a, 1.0 - x)
    gammas = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
    front = math.exp(gammas + a * math.log(x) + b * math.log1p(-x)) / a
    found = upper = 1.0
    lower = 0.0
    for term in range(_MOST_TERMS):
        half = term // 2
        if term == 0:
            part = 1.0
        elif term % 2:
            part = -(a + half) * (a + b + half) * x / ((a + 2 * half) * (a + 2 * half + 1.0))
        else:
            part = half * (b - half) * x / ((a + 2 * half - 1.0) * (a + 2 * half))
        lower = 1.0 / _not_zero(1.0 + part * lower)
        upper = _not_zero(1.0 + part / upper)
        found *= lower * upper
        if abs(lower * upper - 1.0) < _EXACT:
            break
    return front * (found - 1.0)


def _not_zero(value: float) -> float:
    return value if abs(value) > _TINY else _TINY
