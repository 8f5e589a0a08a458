"""The judge's traces: valid, equal for equal seeds, within their ranges, and what they say."""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from pathlib import Path

import pytest

from agent.replay.traces import MAX_REQUESTS, Trace, trace_from_bytes, trace_to_bytes
from agent.replay.variants import checked
from benchmarks.policies.families import (
    FAMILIES,
    LONGEST_TICK_S,
    TICKS,
    Draw,
    draw,
    seeds,
    validation_sha256,
)
from benchmarks.policies.surroundings import COLDEST_C, CORUNNER_PERIOD_S, HOTTEST_C

VALIDATION_SHA256 = "7abc47e464932f97398d62977092b31433b8067e05c4b21112f69a99a54454c9"
DOCUMENT = Path(__file__).parents[4] / "docs" / "adaptation.md"
SEEDS = (9001, 9002)
KEYS = tuple(itertools.product(FAMILIES, SEEDS))
# Drawn on first use and not when tests are collected.
kept = functools.cache(draw)


@pytest.fixture(params=KEYS, ids=lambda key: f"{key[0]}-{key[1]}")
def drawn(request: pytest.FixtureRequest) -> Draw:
    return kept(*request.param)


def test_a_draw_is_a_trace_that_the_agent_would_read(drawn: Draw) -> None:
    plain = Trace(header=drawn.trace.header, ticks=drawn.trace.ticks)

    assert trace_from_bytes(trace_to_bytes(plain)) == plain


def test_its_requests_are_those_of_its_trace(drawn: Draw) -> None:
    plain = Trace(header=drawn.trace.header, ticks=drawn.trace.ticks)

    assert list(drawn.trace.arrivals()) == list(plain.arrivals())


def test_its_variants_can_be_replayed(drawn: Draw) -> None:
    known = checked(drawn.variants)

    assert 3 <= len(known) <= 6
    assert list(known) == sorted(known, key=lambda name: -(known[name].accuracy or 0.0))
    assert all(0.3 < (v.accuracy or 0.0) <= 1.0 for v in drawn.variants)
    assert set(drawn.trace.header.board.slowdowns) == set(known)


def test_it_stays_within_the_ranges(drawn: Draw) -> None:
    header, ticks = drawn.trace.header, drawn.trace.ticks

    assert 1.0 <= header.period_s <= LONGEST_TICK_S
    assert 0.5 * 3600 - 1 <= drawn.trace.duration_s <= 24 * 3600 + 1
    assert len(ticks) <= 1.1 * TICKS
    assert all(COLDEST_C - 45 <= tick.inputs.ambient_c <= HOTTEST_C + 40 for tick in ticks)
    assert not drawn.spec("adaptive").faults()
    assert sum(len(came or ()) for came in drawn.trace.arrivals()) < MAX_REQUESTS


def test_the_aim_for_the_battery_is_the_return_of_the_charger() -> None:
    for name, seed in KEYS:
        drawn = kept(name, seed)
        header, aim = drawn.trace.header, drawn.spec("adaptive").aim
        fed = [t.inputs.charger_w >= header.board.thermal.idle_w for t in drawn.trace.ticks]
        if all(fed):
            assert (drawn.battery_until, aim.battery_lasts_s) == (None, 0.0)
            continue
        assert name in {"battery-and-sun", "mixed-day"} or not any(fed)
        until_s = aim.battery_until_s
        assert until_s is not None
        # The local time of a tick at which the charger is back, or of the end.
        first = (until_s - header.begins_local_s) % 86_400.0 / header.period_s
        near = range(int(first), int(first + 60.0 / header.period_s) + 3)
        assert any(t >= len(fed) or (fed[t] and not fed[t - 1]) for t in near if t > 0)


def test_equal_seeds_give_equal_draws() -> None:
    again = {key: draw(*key) for key in [("mixed-day", 9001), ("bad-sensor", 9002)]}

    assert all(kept(*key) == drawn for key, drawn in again.items())


def test_other_seeds_and_families_give_other_boards() -> None:
    boards = {kept(*key).trace.header.board.thermal for key in KEYS}

    assert len(boards) == len(KEYS)


def test_families_do_what_their_names_say() -> None:
    def inputs(name: str) -> list[list[float]]:
        ticks = kept(name, 9001).trace.ticks
        return [
            [t.inputs.slowdown for t in ticks],
            [float(t.inputs.memory_bytes or 0) for t in ticks],
            [t.inputs.charger_w for t in ticks],
            [t.inputs.demand_per_s for t in ticks],
        ]

    def swings(values: list[float]) -> float:
        return max(values) / max(min(values), 1e-9)

    slowdown, memory, charger, demand = range(4)
    assert swings(inputs("corunner-900s")[slowdown]) > 1.25 > swings(inputs("calm")[slowdown])
    assert swings(inputs("memory-hog")[memory]) > 1.5 > swings(inputs("calm")[memory])
    assert min(inputs("battery-and-sun")[charger]) == 0.0 < max(inputs("battery-and-sun")[charger])
    assert swings(inputs("day-and-night")[demand]) > 2.5
    assert any(kept("outliers", seed).trace.header.requests.outlier_share > 0 for seed in SEEDS)


def test_the_neighbour_comes_every_quarter_of_an_hour() -> None:
    drawn = kept("corunner-900s", 9001)
    busy = [tick.inputs.slowdown > 1.2 for tick in drawn.trace.ticks]
    starts = [
        tick.at_s
        for tick, now, before in zip(drawn.trace.ticks[1:], busy[1:], busy, strict=False)
        if now and not before
    ]

    gaps = [b - a for a, b in itertools.pairwise(starts)]
    period_s = drawn.trace.header.period_s
    assert gaps
    assert all(abs(gap - CORUNNER_PERIOD_S) <= period_s for gap in gaps)


def test_declared_latencies_are_far_off_in_their_family() -> None:
    factors = [
        factor
        for seed in SEEDS
        for factor in kept("misdeclared", seed).trace.header.board.slowdowns.values()
    ]

    assert max(factors) / min(factors) > 1.4


def test_sets_differ_in_their_seeds_alone() -> None:
    development, validation = seeds("development", 20), seeds("validation", 20)
    fresh = seeds("fresh", 20, master=7)

    assert not set(development) & set(validation)
    assert fresh == seeds("fresh", 20, master=7) != seeds("fresh", 20, master=8)
    assert len(Counter([*development, *validation, *fresh])) == 60


def test_more_seeds_than_there_are_or_no_master_seed_is_refused() -> None:
    with pytest.raises(ValueError, match="the validation set has 100 seeds"):
        seeds("validation", 101)
    with pytest.raises(ValueError, match="master seed"):
        seeds("fresh", 1)


def test_nobody_has_changed_the_validation_set() -> None:
    assert validation_sha256() == VALIDATION_SHA256
    assert VALIDATION_SHA256 in DOCUMENT.read_text()
