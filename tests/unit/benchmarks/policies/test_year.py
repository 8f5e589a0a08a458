"""The days of a year: equal for equal seeds, with nights, weekends, seasons and jobs."""

from __future__ import annotations

import functools

import pytest

from agent.replay.traces import MAX_REQUESTS, Trace, trace_from_bytes, trace_to_bytes
from benchmarks.policies.families import LONGEST_TICK_S, Draw
from benchmarks.policies.year import DAYS, MIDSUMMER, WEEK, draw_day, warmth
from wire.durations import DAY_S

SEED = 7
# Drawn on first use and not when tests are collected.
kept = functools.cache(functools.partial(draw_day, SEED))


@pytest.fixture(params=range(WEEK), ids=lambda number: f"day-{number}")
def drawn(request: pytest.FixtureRequest) -> Draw:
    return kept(request.param)


def test_a_day_is_a_trace_that_the_agent_would_read(drawn: Draw) -> None:
    plain = Trace(header=drawn.trace.header, ticks=drawn.trace.ticks)
    assert trace_from_bytes(trace_to_bytes(plain)) == plain
    assert plain.duration_s == pytest.approx(DAY_S)
    assert 30.0 <= plain.header.period_s <= LONGEST_TICK_S
    assert 0 < sum(map(len, drawn.trace.came)) < MAX_REQUESTS


def test_a_seed_and_a_number_are_a_day() -> None:
    assert draw_day(SEED, 3) == kept(3)
    assert draw_day(SEED + 1, 3).variants != kept(3).variants
    assert kept(4).variants != kept(3).variants


def test_requests_are_fewer_by_night(drawn: Draw) -> None:
    hours = [0] * 24
    for tick, came in zip(drawn.trace.ticks, drawn.trace.came, strict=True):
        hours[int(tick.at_s // 3600.0)] += len(came)
    assert sum(hours[2:6]) <= sum(hours[14:18])


def test_a_job_runs_in_working_hours_only() -> None:
    working: set[int] = set()
    weekend: set[int] = set()
    for number in range(WEEK):
        drawn = kept(number)
        hours = {int(t.at_s // 3600.0) for t in drawn.trace.ticks if t.inputs.other_share > 0.08}
        (working if number % WEEK < 5 else weekend).update(hours)
    assert working
    assert working <= set(range(8, 18))
    assert weekend == set()


def test_it_is_warmest_at_midsummer() -> None:
    seasons = [warmth(number) for number in range(DAYS)]
    assert max(seasons) == seasons[MIDSUMMER] == 1.0
    assert min(seasons) == pytest.approx(0.0, abs=1e-4)
