"""Whether what a policy expects comes true: stated shares in time beside those that came.

Rules:
- Pure. A statement holds for the requests that arrive until the next decision. A request that was
  refused, or lost, was not in time. Those without an answer at the end of a trace do not count.
- A bin holds statements from its lower limit up to its upper one, which belongs to the next bin;
  that of the last bin is its own.
- Intervals resample whole days, because the requests of a day share their fate.

Source:
    Reliability tables and the expected calibration error: Naeini, Cooper and Hauskrecht, Obtaining
    Well Calibrated Probabilities Using Bayesian Binning (AAAI 2015). Brier, Verification of
    Forecasts Expressed in Terms of Probability, Monthly Weather Review 78 (1950).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

from agent.replay.run import Ticked, ticks
from benchmarks.policies import intervals
from benchmarks.policies.families import Draw
from benchmarks.policies.intervals import Interval

LIMITS: Final = (0.0, 0.50, 0.80, 0.90, 0.93, 0.95, 0.97, 0.99, 1.0)
"""Of the bins of a reliability table."""

REMEMBERED: Final = 100
"""Answers that the running share remembers, about."""

EXPECTED: Final = "in_time_expected"
MS_PER_S: Final = 1000.0


class Period(NamedTuple):
    """What was said of the requests of a tick, and what came of them."""

    stated: float
    """By the policy."""

    running: float
    """By the running share of the answers before."""

    requests: int
    in_time: int


class Bin(NamedTuple):
    """A line of a reliability table."""

    low: float
    high: float
    requests: int
    stated: float
    """Mean over the requests."""

    held: Interval
    """Share of the requests that were in time."""


def periods(drawn: Draw) -> list[Period]:
    """Run `adaptive` over a day.

    Args:
        drawn: The day.

    Returns:
        The ticks in which the policy said something and requests came.
    """
    header = drawn.trace.header
    found = list(ticks(drawn.trace, drawn.variants, drawn.spec("adaptive")))
    came = [len(requests) for requests in drawn.trace.came]
    in_time = outcomes(found, header.period_s, header.deadline_ms)
    for place in unanswered(found[-1], header.period_s, len(found)):
        came[place] -= 1
    running = running_shares(found, header.deadline_ms)
    said = (t.step.decision.inputs[EXPECTED] if t.step.decision else None for t in found)
    return [
        Period(stated, before, requests, held)
        for stated, before, requests, held in zip(said, running, came, in_time, strict=True)
        if stated is not None and before is not None and requests > 0
    ]


def outcomes(found: Sequence[Ticked], period_s: float, deadline_ms: float) -> list[int]:
    """Return for each tick how many of its requests were answered in time, then or later.

    Args:
        found: The ticks.
        period_s: Length of a tick.
        deadline_ms: Time within which an answer is in time.
    """
    in_time = [0] * len(found)
    for number, ticked in enumerate(found):
        for answer in ticked.after.answers:
            if answer.latency_ms <= deadline_ms:
                in_time[number + math.floor(answer.arrived_s / period_s)] += 1
    return in_time


def unanswered(last: Ticked, period_s: float, count: int) -> list[int]:
    """Return the tick of each request that has neither an answer nor a refusal at the end.

    Args:
        last: The last tick.
        period_s: Length of a tick.
        count: Number of ticks.
    """
    backlog = last.after.backlog
    arrived = [request.at_s for request in backlog.waiting]
    if backlog.running is not None:
        arrived.append(backlog.running.arrived_s)
    # A backlog's times are from the end of its tick.
    return [count + math.floor(at_s / period_s) for at_s in arrived]


def running_shares(found: Iterable[Ticked], deadline_ms: float) -> list[float | None]:
    """Return the share in time that an exponential mean knew before each tick.

    Args:
        found: The ticks.
        deadline_ms: Time within which an answer is in time.

    Returns:
        One for each tick; None before the first answer or refusal.
    """
    share: float | None = None
    shares = []
    for ticked in found:
        shares.append(share)
        held = [float(answer.latency_ms <= deadline_ms) for answer in ticked.after.answers]
        for outcome in (*held, *[0.0] * round(ticked.step.served.refused)):
            share = outcome if share is None else share + (outcome - share) / REMEMBERED
    return shares


def reliability(days: Sequence[Sequence[Period]], limits: Sequence[float] = LIMITS) -> list[Bin]:
    """Return the lines of a reliability table; bins without a request have none.

    Args:
        days: The periods of each day.
        limits: Of the bins, rising.
    """
    found = []
    for low, high in itertools.pairwise(limits):
        closed = high == limits[-1]
        if line := within(days, low, high, closed=closed):
            found.append(line)
    return found


def within(
    days: Sequence[Sequence[Period]], low: float, high: float, *, closed: bool
) -> Bin | None:
    """Return what held of the statements in a range; None without a request.

    Args:
        days: The periods of each day.
        low: The least statement.
        high: The greatest one.
        closed: Whether a statement of exactly `high` counts.
    """
    chosen = [
        [p for p in day if low <= p.stated and (p.stated < high or (closed and p.stated == high))]
        for day in days
    ]
    requests = sum(p.requests for day in chosen for p in day)
    if not requests:
        return None
    stated = math.fsum(p.stated * p.requests for day in chosen for p in day) / requests
    return Bin(low, high, requests, stated, _held(chosen))


def _held(days: Sequence[Sequence[Period]]) -> Interval:
    """Return the share in time with its interval, by a bootstrap of the days that say something."""
    some = [day for day in days if day]
    return intervals.of_ratio(
        [sum(p.in_time for p in day) for day in some],
        [sum(p.requests for p in day) for day in some],
    )


def brier(days: Iterable[Sequence[Period]], stated: Callable[[Period], float]) -> float:
    """Return the mean square of statement less outcome, over all requests, at least one.

    Args:
        days: The periods of each day.
        stated: Which statement of a period.
    """
    total, requests = 0.0, 0
    for period in itertools.chain.from_iterable(days):
        share = stated(period)
        late = period.requests - period.in_time
        total += period.in_time * (1.0 - share) ** 2 + late * share**2
        requests += period.requests
    return total / requests


def calibration_error(
    days: Iterable[Sequence[Period]],
    stated: Callable[[Period], float],
    limits: Sequence[float] = LIMITS,
) -> float:
    """Return the mean distance of stated and held share over the bins, weighted by requests.

    Args:
        days: The periods of each day, with at least one request.
        stated: Which statement of a period.
        limits: Of the bins, rising.
    """
    count = len(limits) - 1
    off, requests = [0.0] * count, 0
    for period in itertools.chain.from_iterable(days):
        share = stated(period)
        place = min(sum(share >= limit for limit in limits[1:]), count - 1)
        off[place] += share * period.requests - period.in_time
        requests += period.requests
    return math.fsum(map(abs, off)) / requests
