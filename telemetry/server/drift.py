"""How far what a model is asked and answers has moved away from its reference. Pure.

Both are counts of the same bins: what share of the answers names each class, what share has a small
margin, how the means of inputs spread over the tenths of the evaluation.

The device is the unit of chance: its requests resemble each other, so a million requests to three
devices are three observations. Where devices of one place resemble each other, the place can be the
unit (`telemetry.server.units`). The reference is a sample, too. The question is whether devices
that ask what the evaluation asked, each in its own way, would differ from it as much as these do.

Rules:
- Of answers about fleets that have not moved, at most about `FALSE_ALARMS` name something, however
  many outputs and measures an answer has: `told` shares that out among them. How far this holds
  where devices differ much and there are few of them, benchmarks/drift_alarms.py measures.
- With fewer than `LEAST_DEVICES` devices nothing is told; where some devices bring most of the
  requests, they count as fewer.
- Bins that are rare in the reference count as one: chance in them follows no normal distribution.
- The draws begin with a fixed seed: the same data give the same answer.

Source:
    Population stability index: Siddiqi, Credit Risk Scorecards (2006), as the divergence of
    Kullback and Leibler, On Information and Sufficiency (1951). Distance: Endres and Schindelin, A
    New Metric for Probability Distributions (2003). Chance with devices as clusters: Rao and Scott,
    The Analysis of Categorical Data from Complex Sample Surveys (1981), drawn instead of
    approximated; with few clusters: Thomas and Rao, Small-Sample Comparisons of Level and Power for
    Simple Goodness-of-Fit Statistics Under Cluster Sampling (1987). Several answers at once: Holm,
    A Simple Sequentially Rejective Multiple Test Procedure (1979).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
from numpy.random import PCG64

Floats = npt.NDArray[np.float64]

DRAWS: Final = 20_000
SEED: Final = 1
LEAST_DEVICES: Final = 5
FALSE_ALARMS: Final = 0.01
LEAST_COUNT: Final = 5.0
"""Bins of which the reference has fewer samples count as one bin."""

UNSEEN: Final = 0.5
"""What is added to each count, so that a bin that one side has not seen divides nothing by zero:
the prior of Jeffreys."""

LEAST_ROOT: Final = 0.05
"""Of a mean square: the approximation of its distribution reaches below 0."""


@dataclass(frozen=True, slots=True)
class Drift:
    """How far requests have moved away from the reference."""

    stability_index: float
    """Population stability index. By custom, below 0.1 is little and above 0.25 is much."""

    distance: float
    """Distance of Jensen and Shannon with logarithms of base 2: from 0 to 1."""

    samples: float
    """How many requests were looked at."""

    units: int
    """Of how many devices, or other observations, they are."""

    chance: float
    """Probability that chance alone moves as far; NaN where nothing can be told."""

    lacks: str = ""
    """Why nothing can be told."""

    @property
    def can_tell(self) -> bool:
        """Whether there was enough to tell whether it is chance."""
        return math.isfinite(self.chance)


def drift(reference: Floats, counts: Floats, units: str = "devices") -> Drift:
    """Compare the requests of a fleet with the reference.

    Args:
        reference: Shape (bins,): how many samples of the evaluation are in each bin; at least one.
        counts: Shape (devices, bins): how many requests of each device are in each bin; at least
            one in all. Devices without requests are left out.
        units: What the devices are called in a sentence: they may be groups of devices.

    Returns:
        How far they are apart, and how likely chance is the reason.
    """
    counts = counts[counts.sum(axis=1) > 0]
    reference, counts = _without_rare(reference, counts)
    devices, bins = counts.shape
    own = counts.sum(axis=1)
    samples = float(own.sum())
    expected, found = _shares(reference), _shares(counts.sum(axis=0))
    index = _index(found, expected)
    distance = _distance(found, expected)
    effective = samples**2 / float((own**2).sum())
    lacks = _lacks(devices, bins, effective, units)
    if lacks:
        return Drift(index, distance, samples, devices, math.nan, lacks)
    chance = _chance(reference, counts, effective)
    return Drift(index, distance, samples, devices, chance)


def _lacks(devices: int, bins: int, effective: float, units: str) -> str:
    """Return why nothing can be told; empty if it can.

    Args:
        devices: How many there are.
        bins: How many bins are not rare.
        effective: How many devices with equally many requests would tell as much.
        units: What the devices are called.
    """
    if devices < LEAST_DEVICES:
        return f"fewer than {LEAST_DEVICES} {units} have counted requests"
    if effective < LEAST_DEVICES:
        return f"a few of the {devices} {units} bring most of the requests"
    return "the evaluation has too few samples" if bins == 1 else ""


def stability_indexes(reference: Floats, counts: Floats) -> Floats:
    """Return the population stability index of each device alone.

    Args:
        reference: Shape (bins,): as for `drift`.
        counts: Shape (devices, bins): at least one request of each.

    Returns:
        Shape (devices,).
    """
    reference, counts = _without_rare(reference, counts)
    expected = _shares(reference)
    every = counts.sum(axis=1, keepdims=True) + UNSEEN * counts.shape[1]
    found = (counts + UNSEEN) / every
    return np.asarray(((found - expected) * np.log(found / expected)).sum(axis=1))


def by_chance(reference: Floats, counts: Floats) -> Floats:
    """Return about what the indexes would be if each request were drawn from the same world.

    Requests of a device resemble each other, so a device that has not moved may have more.

    Args:
        reference: Shape (bins,): as for `drift`.
        counts: Shape (devices, bins): at least one request of each.

    Returns:
        Shape (devices,).

    Source:
        Yurdakul and Naranjo, Statistical Properties of the Population Stability Index (Journal of
        Risk Model Validation 14, 2020): its mean is that of a chi-square over the samples.
    """
    reference, counts = _without_rare(reference, counts)
    return np.asarray((len(reference) - 1) * (1 / counts.sum(axis=1) + 1 / reference.sum()))


def told(drifts: Sequence[Drift]) -> tuple[bool, ...]:
    """Say of each part of an answer whether it is beyond what chance gives.

    Args:
        drifts: All parts of the answer: each output and input by each measure, in each group.

    Returns:
        For each, whether it moved.
    """
    order = sorted(
        (at for at, one in enumerate(drifts) if one.can_tell), key=lambda at: drifts[at].chance
    )
    moved = [False] * len(drifts)
    for rank, at in enumerate(order):
        if drifts[at].chance > FALSE_ALARMS / (len(order) - rank):
            break
        moved[at] = True
    return tuple(moved)


def _chance(reference: Floats, counts: Floats, effective: float) -> float:
    """Return the probability that chance moves the shares as far as they have moved.

    Args:
        reference: Samples by bin, none of them rare.
        counts: Requests by device and bin.
        effective: How many devices with equally many requests would tell as much.
    """
    devices = len(counts)
    expected = reference / reference.sum()
    own = counts.sum(axis=1)
    found = counts.sum(axis=0) / own.sum()
    scale = (_shares(reference) + _shares(counts.sum(axis=0))) / 2
    moved = float(((found - expected) ** 2 / scale).sum())
    # How much the shares of the fleet would vary if other devices of the same kind had been asked.
    apart = (counts - own[:, None] * found) / own.sum() * math.sqrt(devices / (devices - 1))
    # Where fewer requests fell into a bin, devices seem to vary less than those of the reference.
    apart *= np.sqrt(np.maximum(_shares(reference) / _shares(counts.sum(axis=0)), 1.0))
    between = apart.T @ apart
    of_reference = (np.diag(expected) - np.outer(expected, expected)) / reference.sum()
    generator, bins = PCG64(SEED), len(expected)
    normal = _normal(generator, bins) @ _root(between)
    # With few devices nobody knows well how much they vary, but each bin tells some of it.
    degrees = (effective - 1) * _independent(between, scale)
    normal /= np.sqrt(_mean_square(_normal(generator, 1), degrees))
    normal += _normal(generator, bins) @ _root(of_reference)
    by_chance = (normal**2 / scale).sum(axis=1)
    return float((1 + (by_chance >= moved).sum()) / (DRAWS + 1))


def _normal(generator: PCG64, width: int) -> Floats:
    """Return independent values of the standard normal distribution, shape (DRAWS, width).

    Source:
        Box and Muller, A Note on the Generation of Random Normal Deviates (1958).
    """
    shares = ((generator.random_raw(2 * DRAWS * width) >> 11) + 0.5) * 2.0**-53
    length, turn = shares.reshape(2, DRAWS, width)
    return np.asarray(np.sqrt(-2 * np.log(length)) * np.cos(2 * math.pi * turn))


def _mean_square(normal: Floats, degrees: float) -> Floats:
    """Return values of the distribution of chi-square, divided by its degrees of freedom.

    Source:
        Wilson and Hilferty, The Distribution of Chi-Square (1931).
    """
    third = 2 / (9 * degrees)
    return np.asarray(np.maximum(1 - third + normal * math.sqrt(third), LEAST_ROOT) ** 3)


def _independent(covariance: Floats, scale: Floats) -> float:
    """Return how many independent values of equal variance would vary like the weighted bins.

    Source:
        Satterthwaite, An Approximate Distribution of Estimates of Variance Components (1946).
    """
    weighted = covariance / scale
    both = float((weighted * weighted.T).sum())
    return max(float(np.trace(weighted)) ** 2 / both, 1.0) if both else 1.0


def _root(covariance: Floats) -> Floats:
    """Return what makes independent normal values have a covariance."""
    values, vectors = np.linalg.eigh(covariance)
    return np.asarray((vectors * np.sqrt(np.maximum(values, 0.0))).T)


def _without_rare(reference: Floats, counts: Floats) -> tuple[Floats, Floats]:
    """Return both with the rare bins as one, which is the last."""
    rare = reference < LEAST_COUNT
    if rare.sum() <= 1:
        return reference, counts
    return (
        np.append(reference[~rare], reference[rare].sum()),
        np.hstack((counts[:, ~rare], counts[:, rare].sum(axis=1, keepdims=True))),
    )


def _shares(counts: Floats) -> Floats:
    return np.asarray((counts + UNSEEN) / (counts.sum() + UNSEEN * len(counts)))


def _index(found: Floats, expected: Floats) -> float:
    return float(((found - expected) * np.log(found / expected)).sum())


def _distance(one: Floats, other: Floats) -> float:
    middle = (one + other) / 2
    divergence = (one * np.log2(one / middle)).sum() + (other * np.log2(other / middle)).sum()
    return math.sqrt(max(float(divergence) / 2, 0.0))
