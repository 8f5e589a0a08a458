"""How often drift is told where there is none, and how surely where there is some.

Fleets are drawn whose devices differ from each other: each has shares of its own around those of
the evaluation (a distribution of Dirichlet), and its own number of requests. The reference is a
sample of them, too. Without a shift, an answer should be beyond `FALSE_ALARMS` in at most that
share; its bound here is what chance makes of that in as many fleets. Beside it stands the test that
counts every request as an observation of its own (chi-square of two samples, Pearson).
"""

from __future__ import annotations

import sys
from statistics import NormalDist
from typing import Final, NamedTuple

import numpy as np

from benchmarks.harness import Row, alone, main
from telemetry.server.drift import FALSE_ALARMS, Floats, drift

FLEETS, QUICK_FLEETS = 1000, 100
REQUESTS: Final = 300
"""The middle one of the devices has so many."""

DECILES: Final = np.full(10, 0.1)
CLASSES: Final = (1 / np.arange(1.0, 34.0)) / (1 / np.arange(1.0, 34.0)).sum()
LOW_MARGINS: Final = np.array([0.1, 0.9])


class Kind(NamedTuple):
    """What fleets are drawn."""

    name: str
    usual: Floats
    """Shares in the evaluation."""

    devices: int
    alike: float
    """Concentration: devices of 1000 hardly differ, those of 5 hardly resemble each other."""

    uneven: float
    """Logarithmic standard deviation of the number of requests."""

    samples: int
    """Of the reference."""


KINDS: Final = (
    Kind("deciles, 6 devices", DECILES, 6, 50, 0.3, 500),
    Kind("deciles, 30 devices that differ much", DECILES, 30, 5, 1.0, 2000),
    Kind("deciles, 300 devices", DECILES, 300, 50, 1.0, 200),
    Kind("classes, 30 devices", CLASSES, 30, 50, 1.0, 500),
    Kind("classes, 300 devices", CLASSES, 300, 20, 0.3, 5000),
    Kind("low margins, 10 devices", LOW_MARGINS, 10, 50, 0.3, 500),
    Kind("low margins, 30 devices that differ much", LOW_MARGINS, 30, 5, 1.0, 2000),
)


def measure(quick: bool) -> list[Row]:
    """Draw fleets without and with a shift."""
    fleets = QUICK_FLEETS if quick else FLEETS
    bound = FALSE_ALARMS + 3 * (FALSE_ALARMS * (1 - FALSE_ALARMS) / fleets) ** 0.5
    rows = []
    for kind in KINDS:
        chance = np.random.Generator(np.random.PCG64(20261126))
        quiet = [_drawn(kind, kind.usual, chance) for _ in range(fleets)]
        alarms = [float(np.mean([is_told(*each) for each in quiet])) for is_told in (_is, _pearson)]
        rows.append(alone(f"{kind.name}: false alarms", alarms[:1], unit="1", at_most=bound))
        rows.append(alone(f"{kind.name}: the same by requests", alarms[1:], unit="1"))
        moved = [_drawn(kind, _shifted(kind.usual), chance) for _ in range(fleets // 5)]
        missed = 1 - float(np.mean([_is(*each) for each in moved]))
        rows.append(alone(f"{kind.name}: shifts missed", [missed], unit="1"))
    return rows


def _drawn(kind: Kind, shares: Floats, chance: np.random.Generator) -> tuple[Floats, Floats]:
    """Return a reference, and the counts of the devices of a fleet."""
    own = chance.dirichlet(shares * kind.alike, kind.devices)
    sizes = np.maximum(chance.lognormal(np.log(REQUESTS), kind.uneven, kind.devices), 1)
    counts = np.array(
        [chance.multinomial(int(size), each) for size, each in zip(sizes, own, strict=True)], float
    )
    reference = chance.multinomial(kind.samples, kind.usual).astype(float)
    return reference, counts


def _is(reference: Floats, counts: Floats) -> bool:
    return drift(reference, counts).chance <= FALSE_ALARMS


def _pearson(reference: Floats, counts: Floats) -> bool:
    """Test as if no two requests had anything in common; quantile by Wilson and Hilferty (1931)."""
    table = np.array([reference, counts.sum(axis=0)])
    table = table[:, table.sum(axis=0) > 0]
    expected = table.sum(axis=1)[:, None] * table.sum(axis=0) / table.sum()
    degrees = table.shape[1] - 1
    third = 2 / (9 * degrees)
    limit = degrees * (1 - third + NormalDist().inv_cdf(1 - FALSE_ALARMS) * third**0.5) ** 3
    return bool(((table - expected) ** 2 / expected).sum() > limit)


def _shifted(shares: Floats) -> Floats:
    """Return shares of which a fifth has gone to the first bin."""
    moved = shares * 0.8
    moved[0] += 0.2
    return moved


if __name__ == "__main__":
    sys.exit(main("Drift: false alarms and missed shifts", measure))
