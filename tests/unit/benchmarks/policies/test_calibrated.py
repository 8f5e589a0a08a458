"""What was said beside what came: bins, scores, intervals, and which requests a statement is of."""

from __future__ import annotations

import itertools
import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.replay.run import Ticked, ticks
from benchmarks.calibration import claim, rows_of
from benchmarks.policies.calibrated import (
    LIMITS,
    Period,
    brier,
    calibration_error,
    outcomes,
    periods,
    reliability,
    running_shares,
    unanswered,
    within,
)
from benchmarks.policies.families import Draw, Ready, draw
from wire.policy import PolicySpec

PERIODS = st.builds(
    lambda stated, running, requests, share: Period(
        stated, running, requests, round(share * requests)
    ),
    st.floats(0.0, 1.0),
    st.floats(0.0, 1.0),
    st.integers(1, 50),
    st.floats(0.0, 1.0),
)
DAYS = st.lists(st.lists(PERIODS, max_size=6), min_size=1, max_size=5)


def said(stated: float, requests: int, in_time: int) -> Period:
    return Period(stated=stated, running=0.5, requests=requests, in_time=in_time)


def stated(period: Period) -> float:
    return period.stated


def honest_days(count: int, seed: int = 1) -> list[list[Period]]:
    """Return days on which as many were in time as was said, but for chance."""
    chance = random.Random(seed)
    days = []
    for _ in range(count):
        day = []
        for _ in range(200):
            share = chance.choice((0.3, 0.7, 0.85, 0.92, 0.95, 0.96, 0.98, 0.995))
            held = sum(chance.random() < share for _ in range(10))
            day.append(said(share, 10, held))
        days.append(day)
    return days


@settings(max_examples=30)
@given(DAYS)
def test_every_request_is_in_one_bin(days: list[list[Period]]) -> None:
    table = reliability(days)
    everything = list(itertools.chain.from_iterable(days))
    assert sum(line.requests for line in table) == sum(p.requests for p in everything)
    held = math.fsum(line.held.value * line.requests for line in table)
    assert held == pytest.approx(sum(p.in_time for p in everything))
    for line in table:
        assert line.low <= line.stated + 1e-9
        assert line.stated <= line.high + 1e-9
        assert line.held.low <= line.held.value + 1e-9
        assert line.held.value <= line.held.high + 1e-9


def test_a_limit_belongs_to_the_bin_above_it_and_one_to_the_last() -> None:
    days = [[said(limit, 1, 1) for limit in LIMITS]]
    table = {(line.low, line.high): line.requests for line in reliability(days)}
    assert table == dict.fromkeys(itertools.pairwise(LIMITS), 1) | {(0.99, 1.0): 2}


def test_a_bin_without_a_request_has_no_line() -> None:
    assert reliability([[said(0.6, 4, 2)], []])[0][:4] == (0.5, 0.8, 4, 0.6)
    assert len(reliability([[said(0.6, 4, 2)], []])) == 1
    assert reliability([[], []]) == []


def test_a_mean_is_over_requests_not_over_decisions() -> None:
    line = within([[said(0.9, 1, 0), said(0.92, 9, 9)]], 0.9, 0.93, closed=False)
    assert line is not None
    assert (line.requests, line.held.value) == (10, 0.9)
    assert line.stated == pytest.approx(0.918)


def test_the_bootstrap_resamples_days() -> None:
    same = [[said(0.95, 100, 95)] for _ in range(20)]
    line = within(same, 0.94, 0.96, closed=True)
    assert line is not None
    assert line.held == (0.95, 0.95, 0.95), "days that are alike leave no doubt"
    halves = [[said(0.95, 100, 100 if number % 2 else 90)] for number in range(20)]
    line = within(halves, 0.94, 0.96, closed=True)
    assert line is not None
    # The standard error of the mean of 20 days that are 0.05 off is 0.011.
    assert line.held.value == pytest.approx(0.95)
    assert line.held.low == pytest.approx(0.95 - 1.96 * 0.0112, abs=0.004)
    assert line.held.high == pytest.approx(0.95 + 1.96 * 0.0112, abs=0.004)


def test_the_scores_by_hand() -> None:
    days = [[said(0.8, 4, 3)], [said(0.4, 1, 1)]]
    assert brier(days, stated) == pytest.approx((3 * 0.04 + 0.64 + 0.36) / 5)
    # 0.8 is in the third bin, 0.4 in the first: |3.2 - 3| + |0.4 - 1|.
    assert calibration_error(days, stated) == pytest.approx((0.2 + 0.6) / 5)
    assert brier(days, lambda period: period.running) == pytest.approx(0.25)


@given(DAYS.filter(any))
def test_the_scores_are_within_their_range(days: list[list[Period]]) -> None:
    assert 0.0 <= brier(days, stated) <= 1.0
    assert 0.0 <= calibration_error(days, stated) <= 1.0


def test_who_says_what_comes_meets_the_aim_and_who_boasts_misses_it() -> None:
    honest = honest_days(30)
    assert claim(honest).met is True
    assert calibration_error(honest, stated) < 0.01
    boast = [[p._replace(stated=0.95) for p in day if p.stated == 0.85] for day in honest]
    assert claim(boast).met is False
    assert claim([[said(0.5, 3, 1)]]).met is None


def test_the_rows_name_the_seed_and_the_table() -> None:
    rows = rows_of(honest_days(3), 77)
    names = [row.name for row in rows]
    assert rows[0].spread == "--seed 77"
    assert names[2].startswith("held where 95 % was said (94% to 96%), n=")
    assert sum(" % was said, n=" in name for name in names) == 7
    assert names[-2:] == ["Brier score", "expected calibration error"]
    assert rows_of([[]], 1)[-1].value is None


@pytest.fixture(scope="module")
def crowded() -> Draw:
    """A short trace on which requests are late, wait over ticks, and are refused."""
    drawn = draw("request-bursts", 1)
    begun = drawn.trace
    return drawn._replace(
        trace=Ready(header=begun.header, ticks=begun.ticks[:400], came=begun.came[:400])
    )


@pytest.fixture(scope="module")
def slowest(crowded: Draw) -> list[Ticked]:
    """The trace with the slowest variant: a queue builds up."""
    name = max(crowded.variants, key=lambda v: v.latency_p50_ms or 0.0).name
    return list(ticks(crowded.trace, crowded.variants, PolicySpec(kind="rules"), pinned=name))


def test_an_outcome_counts_where_its_request_arrived(crowded: Draw, slowest: list[Ticked]) -> None:
    header, came = crowded.trace.header, [len(requests) for requests in crowded.trace.came]
    everything = outcomes(slowest, header.period_s, math.inf)
    left = unanswered(slowest[-1], header.period_s, len(slowest))
    refused = round(sum(t.step.served.refused for t in slowest))
    assert sum(everything) + len(left) + refused == sum(came)
    assert any(got > 0 for got in everything)
    assert all(got <= arrived for got, arrived in zip(everything, came, strict=True))
    in_time = outcomes(slowest, header.period_s, header.deadline_ms)
    missed = sum(t.step.served.missed for t in slowest)
    assert sum(came) - len(left) - sum(in_time) == missed


def test_the_running_share_knows_only_what_was_before(crowded: Draw, slowest: list[Ticked]) -> None:
    deadline_ms = crowded.trace.header.deadline_ms
    shares = running_shares(slowest, deadline_ms)
    assert shares[0] is None
    assert running_shares(slowest[:50], deadline_ms) == shares[:50]
    assert all(0.0 <= share <= 1.0 for share in shares if share is not None)


def test_what_was_said_is_of_the_decision_that_served(crowded: Draw) -> None:
    found = periods(crowded)
    assert len(found) > 50
    assert all(0 <= p.in_time <= p.requests for p in found)
    assert all(0.0 <= p.stated <= 1.0 for p in found)
    assert sum(p.requests for p in found) <= sum(map(len, crowded.trace.came))
