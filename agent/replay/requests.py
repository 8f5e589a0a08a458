"""The requests of a trace as single events: when each arrives, and how long it takes.

The time that a request takes is the median of the variant that serves it, times a factor of the
request. The factor is `exp(service_sigma * z)`, log-normal with median 1 (its mean is larger by
`exp(service_sigma**2 / 2)`); a share of the requests, the outliers, takes `outlier_factor` times
that. So the median of the requests that are no outliers is the variant's.

Arrivals, always with the mean rate `demand_per_s` of their tick:
- `regular`: equal gaps, which go on over the ticks.
- `poisson`: a Poisson process.
- `bursts`: a batch Poisson process. Bursts arrive as a Poisson process; the number of requests in
  one is geometric with mean `burst_size`, and they arrive at the same time.

Rules:
- Pure. Arrivals and factors follow from the header and the demand alone, never from what a policy
  did: all policies meet the same requests.

Source:
    Processes: Kleinrock, Queueing Systems, volume 1, sections 2.4 and 4.5. Log-normal services with
    rare outliers: Dean and Barroso, The Tail at Scale, CACM 56(2), 2013.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Final, Literal, NamedTuple

import msgspec

from agent.replay.chance import SEEDS, normal_quantile, start, uniform

MAX_SIGMA: Final = 3.0
MAX_FACTOR: Final = 1e4
MAX_BURST: Final = 1000.0
ARRIVALS, SIZES, SERVICES = 1, 2, 3
"""Streams of random numbers."""

HALF: Final = 0.5
"""The first regular request arrives after half a gap."""


class Requests(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the requests of a trace arrive, and how their services differ."""

    arrivals: Literal["fluid", "regular", "poisson", "bursts"] = "fluid"
    """`fluid`: no single requests, but a flow; the other keys then mean nothing."""

    seed: int = 1
    service_sigma: float = 0.1
    """Standard deviation of the logarithm of a service time."""

    outlier_share: float = 0.0
    outlier_factor: float = 10.0
    burst_size: float = 4.0
    """Mean number of requests in a burst."""

    def faults(self) -> tuple[str, ...]:
        """Return what is impossible about the requests; empty if they are possible."""
        rules = (
            (0 <= self.seed < SEEDS, f"seed is not within 0 to {SEEDS - 1}"),
            (
                0.0 <= self.service_sigma <= MAX_SIGMA,
                f"service_sigma is not within 0 to {MAX_SIGMA:g}",
            ),
            (0.0 <= self.outlier_share <= 1.0, "outlier_share is not within 0 to 1"),
            (
                1.0 <= self.outlier_factor <= MAX_FACTOR,
                f"outlier_factor is not within 1 to {MAX_FACTOR:g}",
            ),
            (1.0 <= self.burst_size <= MAX_BURST, f"burst_size is not within 1 to {MAX_BURST:g}"),
        )
        return tuple(text for holds, text in rules if not holds)


class Request(NamedTuple):
    """One request."""

    at_s: float
    """Time of its arrival, from the beginning of the tick."""

    factor: float
    """The time that it takes, over the median of the variant."""


def arrivals(
    requests: Requests, demands_per_s: Iterable[float], period_s: float
) -> Iterator[tuple[Request, ...] | None]:
    """Yield the requests of each tick.

    Args:
        requests: How they arrive.
        demands_per_s: Mean rate in each tick.
        period_s: Length of a tick in seconds.

    Yields:
        The requests in the order of their arrival; None for each tick if they are a flow.
    """
    owed = HALF
    for tick, rate in enumerate(demands_per_s):
        if requests.arrivals == "fluid":
            yield None
            continue
        if requests.arrivals == "regular":
            times, owed = _regular(owed, rate, period_s)
        elif requests.arrivals == "poisson":
            times = list(_poisson(start(requests.seed, ARRIVALS, tick), rate, period_s))
        else:
            times = _bursts(requests, tick, rate, period_s)
        yield tuple(map(Request, times, _factors(requests, tick, len(times))))


def _regular(owed: float, rate: float, period_s: float) -> tuple[list[float], float]:
    due = owed + rate * period_s
    count = math.floor(due)
    return [max(number - owed, 0.0) / rate for number in range(1, count + 1)], due - count


def _poisson(state: int, rate: float, period_s: float) -> Iterator[float]:
    """Yield the times of a Poisson process; it has no memory, so each tick may begin it anew."""
    at_s, number = 0.0, 0
    while rate > 0.0:
        at_s -= math.log(uniform(state, number)) / rate
        if at_s >= period_s:
            return
        yield at_s
        number += 1


def _bursts(requests: Requests, tick: int, rate: float, period_s: float) -> list[float]:
    arrive = start(requests.seed, ARRIVALS, tick)
    sizes = start(requests.seed, SIZES, tick)
    # Geometric by inversion: the logarithm of the share of bursts that go on after each request.
    goes_on = math.log1p(-1.0 / requests.burst_size) if requests.burst_size > 1.0 else -math.inf
    times: list[float] = []
    for number, at_s in enumerate(_poisson(arrive, rate / requests.burst_size, period_s)):
        more = math.floor(math.log(uniform(sizes, number)) / goes_on)
        times.extend([at_s] * (1 + more))
    return times


def _factors(requests: Requests, tick: int, count: int) -> Iterator[float]:
    state = start(requests.seed, SERVICES, tick)
    sigma, share = requests.service_sigma, requests.outlier_share
    for number in range(count):
        if sigma == 0.0 and share == 0.0:
            yield 1.0
            continue
        chance, longer = uniform(state, number), 1.0
        # One random number says whether it is an outlier, and what it is among its kind.
        if chance < share:
            chance, longer = chance / share, requests.outlier_factor
        elif share:
            chance = (chance - share) / (1.0 - share)
        chance = min(max(chance, 2.0**-53), 1.0 - 2.0**-53)
        yield longer * math.exp(sigma * normal_quantile(chance))
