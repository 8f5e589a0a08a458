"""The share of requests that are answered in time, by queueing theory.

Rules:
- Pure. What is not known is an average over what it may be.

Source:
    The mean wait: Pollaczek and Khinchine (Kleinrock, Queueing Systems, volume 1, section 5.6); of
    any arrivals and services: Kingman (1961), with the dispersion of counts in place of the
    variation of the times between requests. A request waits with the probability of the use, and
    its wait is then about exponential: exact for exponential services, the limit in heavy traffic
    for all (Kingman, 1962; Kleinrock, volume 2, section 2.1). Of requests that come in batches, all
    but the first wait for those before them, whether the server is busy or not, and the mean wait
    is longer by `(batch - 1) / (1 - use)` service times (Burke, Delays in Single-Server Queues with
    Batch Input, Operations Research, 1975). Service times are lognormal; over those within the
    deadline, the part that the wait takes away is a mean over equal steps.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

from agent.select.recent import normal_share

LEAST: Final = 1e-9
"""Used in place of zero times."""

STEPS: Final = 16
"""Of the deviation of the logarithm of the service time."""

WIDEST: Final = 4.0
"""Standard deviations beyond which no service time counts."""

MOST_LOG_SIGMA: Final = 8.0
"""Of a service time: with more, nothing is known of it, and its mean is no number any more."""


def share_in_time(
    deadline_s: float,
    rates_per_s: Sequence[float],
    *,
    service_s: float,
    log_sigma: float,
    wait_factor: float,
    batch: float = 1.0,
) -> float:
    """Return the share of requests that are answered within a deadline.

    Args:
        deadline_s: From the request to its answer; infinite if they need only be answered at all.
        rates_per_s: Rates of the requests of equal probability.
        service_s: Mean service time.
        log_sigma: Standard deviation of its logarithm.
        wait_factor: Mean wait over `use / (1 - use)` service times; 0.5 for random arrivals and
            constant services.
        batch: Mean number of requests that come at once.

    Returns:
        0 to 1, the mean over the requests of all rates.
    """
    service_s, batch = max(service_s, LEAST), max(batch, 1.0)
    services = _services(deadline_s, service_s, log_sigma)
    answered = total = share = 0.0
    before = math.nan
    for rate in rates_per_s:
        # The greater the rate, the more requests there are that see it.
        weight = max(rate, LEAST)
        if rate != before:  # without requests, all are the same
            share = _share(services, rate * service_s, service_s, wait_factor, batch)
        answered, total, before = answered + weight * share, total + weight, rate
    return answered / total


class _Services(NamedTuple):
    """How long requests run, whatever their rate is."""

    in_time: float
    """Share of the requests that do not run longer than the deadline, waits left out."""

    rests_s: tuple[tuple[float, float], ...]
    """Of those: how often each, and how long it may wait; empty where waits change nothing."""


def wait_factor(dispersion: float, log_variance: float) -> float:
    """Return the mean wait over `use / (1 - use)` service times, by Kingman's approximation.

    Args:
        dispersion: Variance of the counts of requests, or of batches, over their mean.
        log_variance: Variance of the logarithm of the service time.
    """
    return 0.5 * (dispersion + math.expm1(min(log_variance, MOST_LOG_SIGMA**2)))


def most_per_s(
    deadline_s: float, *, service_s: float, wait_factor: float, batch: float = 1.0
) -> float:
    """Return the rate at which the mean answer takes as long as the deadline.

    Args:
        deadline_s: From the request to its answer; may be infinite.
        service_s: Mean service time.
        wait_factor: As above.
        batch: As above.

    Returns:
        Requests per second; 0 if an answer takes longer even if hardly any come.
    """
    if math.isinf(deadline_s):
        return 1.0 / max(service_s, LEAST)
    left_s = deadline_s - service_s
    spare_s = left_s - (batch - 1.0) * service_s
    if spare_s <= 0.0:
        return 0.0
    return spare_s / (left_s + wait_factor * service_s) / max(service_s, LEAST)


def _services(deadline_s: float, service_s: float, log_sigma: float) -> _Services:
    if math.isinf(deadline_s):
        return _Services(1.0, ())
    if deadline_s <= 0.0:
        return _Services(0.0, ())
    sigma = min(max(log_sigma, LEAST), MOST_LOG_SIGMA)
    # The median of a lognormal distribution is below its mean by half the variance.
    median_log = math.log(service_s) - 0.5 * sigma**2
    most = (math.log(deadline_s) - median_log) / sigma
    in_time = normal_share(most)
    if in_time <= LEAST:
        return _Services(in_time, ())
    step = (min(most, WIDEST) + WIDEST) / STEPS
    steps = [-WIDEST + (number + 0.5) * step for number in range(STEPS)]
    weights = [math.exp(-0.5 * z * z) for z in steps]
    total = math.fsum(weights)
    if total <= 0.0:
        return _Services(in_time, ())
    rests_s = [deadline_s - math.exp(median_log + sigma * z) for z in steps]
    return _Services(
        in_time, tuple((w / total, rest) for w, rest in zip(weights, rests_s, strict=True))
    )


def _share(
    services: _Services, use: float, service_s: float, wait_factor: float, batch: float
) -> float:
    if use >= 1.0:
        return 0.0
    if not services.rests_s:
        return services.in_time
    late = 0.0
    for share, waited in _waits(use, wait_factor, batch):
        if waited <= LEAST or share <= 0.0:
            continue
        per_s = 1.0 / (waited * service_s)
        late += share * sum(
            weight * math.exp(-rest_s * per_s) if rest_s > 0.0 else weight
            for weight, rest_s in services.rests_s
        )
    return services.in_time * (1.0 - late)


def _waits(use: float, wait_factor: float, batch: float) -> tuple[tuple[float, float], ...]:
    """Return which shares of the requests wait, and how many service times each in the mean.

    Those that find the server idle wait for the others of their batch alone; those that find it
    busy, for all that are there. A wait of more is never shorter, so that less use is never later.
    """
    others = batch - 1.0
    busy = (wait_factor + others * (2.0 - use)) / (1.0 - use)
    idle = min(batch, wait_factor + 2.0 * others)
    return (use, busy), ((1.0 - use) * others / batch, idle)


def drained_share(
    waiting: float, rate_per_s: float, service_s: float, left_s: float, ahead_s: float
) -> float:
    """Return the share of the coming time in which requests that wait do not make new ones late.

    Those that wait are answered one after another while others come: a fluid (Kleinrock, volume 2,
    section 2.7).

    Args:
        waiting: Requests that wait now.
        rate_per_s: Rate of those that come.
        service_s: Mean service time.
        left_s: From the request to its answer; may be infinite.
        ahead_s: The coming time.

    Returns:
        0 to 1; never less for a shorter service time.
    """
    wait_s, bearable_s = waiting * service_s, max(left_s - service_s, 0.0)
    if wait_s <= bearable_s:
        return 1.0
    spare = 1.0 - rate_per_s * service_s
    if spare <= 0.0:
        return 0.0
    return max(1.0 - (wait_s - bearable_s) / spare / ahead_s, 0.0)


def excess(use: float) -> float:
    """Return the share of the requests that a server cannot answer, however long they wait."""
    return max(1.0 - 1.0 / use, 0.0) if use > 0.0 else 0.0
