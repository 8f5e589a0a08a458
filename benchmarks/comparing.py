"""How often `fleet telemetry compare` tells a difference where there is none, and where there is.

Fleets are drawn whose devices differ: each has a level of its own (lognormal), its requests vary
around it (lognormal), and busy ones have more of them. Two releases run on different devices, or
on the same ones before and after an update, which suits some devices a little better than others
and may reach fast ones first.
Without a difference, at most one comparison of twenty should tell one; the bound here is what
chance makes of that in as many fleets. Beside it stands what a notebook would ask: Welch's t test
over all requests, each taken for an observation of its own.

Source:
    Welch, The generalization of "Student's" problem (Biometrika 34, 1947). Its quantile is that of
    the normal distribution: there are thousands of requests.
"""

from __future__ import annotations

import sys
from statistics import NormalDist
from typing import Final, NamedTuple

import numpy as np

from benchmarks.harness import Row, alone, main
from telemetry.histogram import RELATIVE_ERROR
from telemetry.server.comparison import (
    CONFIDENCE,
    Floats,
    alike,
    compared,
    mean_group,
    quantile_group,
)

FLEETS, QUICK_FLEETS = 300, 60
REQUESTS: Final = 200
"""The middle one of the devices has so many."""

MEDIAN_MS: Final = 20.0
NOISE: Final = 0.3
"""Logarithmic standard deviation of the requests of one device."""

SLOWER: Final = 1.2
BUCKETS: Final = np.exp(np.arange(0.0, 8.0, 0.02))
"""Bounds two percent apart, as those of a histogram."""


class Kind(NamedTuple):
    """What fleets are drawn."""

    name: str
    devices: int
    """In each release."""

    apart: float
    """Logarithmic standard deviation of the levels of devices."""

    uneven: float
    """Logarithmic standard deviation of the number of requests."""

    paired: float | None = None
    """If both releases run on the same devices: how differently the second one suits them. They are
    then as busy as before."""

    is_staged: bool = False
    """Whether the faster a device is, the earlier it went over, and the fewer requests it answered
    with the first release."""


KINDS: Final = (
    Kind("8 devices", 8, 0.2, 0.3),
    Kind("30 devices, uneven", 30, 0.3, 1.0),
    Kind("200 devices", 200, 0.3, 0.5),
    Kind("before and after on 8 devices", 8, 0.3, 0.3, paired=0.05),
    Kind("before and after on 30 devices", 30, 0.3, 1.0, paired=0.05),
    Kind("an update that reaches fast devices first", 30, 0.3, 0.3, paired=0.05, is_staged=True),
)

Requests = list[Floats]
"""The latencies of each device, in ms."""


def measure(quick: bool) -> list[Row]:
    """Draw fleets without and with a difference."""
    fleets = QUICK_FLEETS if quick else FLEETS
    told = 1 - CONFIDENCE
    bound = told + 3 * (told * (1 - told) / fleets) ** 0.5
    rows = []
    for kind in KINDS:
        chance = np.random.Generator(np.random.PCG64(20261127))
        quiet = [_drawn(kind, 1.0, chance) for _ in range(fleets)]
        for name, tells in (("mean", _tells_mean), ("p95", _tells_p95)):
            alarms = float(np.mean([tells(kind, *pair) for pair in quiet]))
            rows.append(
                alone(f"{kind.name}: false differences, {name}", [alarms], unit="1", at_most=bound)
            )
        by_requests = float(np.mean([_welch(*pair) for pair in quiet]))
        rows.append(alone(f"{kind.name}: the same by Welch over requests", [by_requests], unit="1"))
        slower = [_drawn(kind, SLOWER, chance) for _ in range(fleets // 5)]
        missed = 1 - float(np.mean([_tells_mean(kind, *pair) for pair in slower]))
        rows.append(alone(f"{kind.name}: a fifth slower, missed", [missed], unit="1"))
    return rows


def _drawn(kind: Kind, factor: float, chance: np.random.Generator) -> tuple[Requests, Requests]:
    """Return the requests of the devices of both releases."""
    levels = chance.normal(0.0, kind.apart, (2, kind.devices))
    sizes = chance.lognormal(np.log(REQUESTS), kind.uneven, (2, kind.devices))
    if kind.paired is not None:
        levels[1] = levels[0] + chance.normal(0.0, kind.paired, kind.devices)
        sizes[1] = sizes[0]
    if kind.is_staged:
        share = (np.argsort(np.argsort(levels[0])) + 0.5) / kind.devices
        sizes *= np.array([share, 1 - share])
    first, second = (
        [
            MEDIAN_MS * np.exp(level + chance.normal(0.0, NOISE, chance.poisson(size) + 1))
            for level, size in zip(*side, strict=True)
        ]
        for side in zip(levels, sizes, strict=True)
    )
    return first, [each * factor for each in second]


def _tells_mean(kind: Kind, first: Requests, second: Requests) -> bool:
    totals, counts = (
        _placed(kind, [np.array([what(each) for each in side]) for side in (first, second)])
        for what in (np.sum, np.size)
    )
    weights = alike(*counts)
    groups = [mean_group(t * w, n * w) for t, n, w in zip(totals, counts, weights, strict=True)]
    return compared(*groups).is_told


def _tells_p95(kind: Kind, first: Requests, second: Requests) -> bool:
    tables = _placed(
        kind,
        [np.array([np.histogram(each, BUCKETS)[0] for each in side]) for side in (first, second)],
    )
    weights = alike(*(table.sum(axis=1) for table in tables))
    groups = [
        quantile_group(0.95, t * w[:, None], BUCKETS[1:], RELATIVE_ERROR, t.sum())
        for t, w in zip(tables, weights, strict=True)
    ]
    return compared(*groups).is_told


def _placed(kind: Kind, sides: list[Floats]) -> list[Floats]:
    """Return a row for each device of both releases: those of the other one have nothing."""
    first, second = (side.astype(float) for side in sides)
    if kind.paired is not None:
        return [first, second]
    return [
        np.concatenate([first, np.zeros_like(second)]),
        np.concatenate([np.zeros_like(first), second]),
    ]


def _welch(first: Requests, second: Requests) -> bool:
    one, other = np.concatenate(first), np.concatenate(second)
    error = (one.var(ddof=1) / len(one) + other.var(ddof=1) / len(other)) ** 0.5
    beyond = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
    return bool(abs(other.mean() - one.mean()) > beyond * error)


if __name__ == "__main__":
    sys.exit(main("Comparisons: false and missed differences", measure))
