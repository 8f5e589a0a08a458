"""The levers beside the variant: each by example, and what holds whatever the device says."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.select.levers import LEAST_RATIO, RISE_PER_S, Levers, Strain, next_levers

NONE = Levers()


def after(*strains: Strain, period_s: float = 1.0) -> Levers:
    """Return the levers after one strain after the other."""
    levers = NONE
    for strain in strains:
        levers = next_levers(levers, strain, period_s)
    return levers


def test_without_strain_no_lever_is_in_force() -> None:
    assert after(Strain()) == NONE
    assert after(Strain(headroom=0.3, battery=math.inf, contended=False, throttled=False)) == NONE


def test_heat_ends_joining_makes_wait_and_asks_for_fewer_requests() -> None:
    hot = after(Strain(headroom=0.925))
    assert (hot.joins, hot.defer, hot.causes) == (False, True, ("heat",))
    assert hot.sampling_ratio == pytest.approx(0.55)
    assert hot.reasons == ("heat: headroom 0.93",)
    assert after(Strain(headroom=1.2)).sampling_ratio == LEAST_RATIO


def test_a_processor_that_is_slowed_down_is_hot_and_bears_what_its_clock_allows() -> None:
    slow = after(Strain(headroom=0.5, throttled=True, clock_ratio=0.6))
    assert (slow.causes, slow.joins) == (("heat",), False)
    assert slow.sampling_ratio == 0.6
    assert after(Strain(headroom=0.5, throttled=False, clock_ratio=0.6)) == NONE


def test_a_headroom_that_is_no_number_is_unknown() -> None:
    hot, unread = Strain(headroom=0.925), Strain(headroom=math.nan)
    assert after(hot, unread).sampling_ratio == after(hot, Strain()).sampling_ratio


def test_a_strain_ends_below_another_threshold_than_it_began() -> None:
    hot, warm, cool = (Strain(headroom=h) for h in (0.9, 0.8, 0.6))
    assert after(warm).causes == ()
    assert after(hot, warm).causes == ("heat",)
    assert after(hot, warm, cool).causes == ()
    assert after(hot, warm, cool, warm).causes == ()


def test_unknown_is_neither_cool_nor_full_nor_free() -> None:
    strained = Strain(
        headroom=0.95, battery=0.5, contended=True, demand_per_s=20.0, capacity_per_s=10.0
    )
    levers = after(strained, Strain())
    assert levers.causes == ("battery", "contention", "heat", "load")
    assert levers.sampling_ratio == after(strained).sampling_ratio
    assert all("no reading" in r or "other programs" in r for r in levers.reasons)


def test_a_low_battery_asks_for_what_would_let_it_last() -> None:
    low = after(Strain(battery=0.7))
    assert (low.defer, low.joins, low.sampling_ratio) == (True, True, 0.7)
    assert after(Strain(battery=0.7), Strain(battery=1.1)).defer
    assert not after(Strain(battery=0.7), Strain(battery=1.3)).defer


def test_contention_only_makes_wait() -> None:
    busy = after(Strain(contended=True))
    assert busy == Levers(defer=True, causes=("contention",), reasons=busy.reasons)
    assert busy.reasons == ("other programs: they keep the processor busy",)


def test_under_load_late_requests_are_shed_and_runs_are_joined_even_in_heat() -> None:
    loaded = Strain(demand_per_s=20.0, capacity_per_s=10.0, longest_wait_s=0.08)
    levers = after(loaded)
    assert (levers.longest_wait_s, levers.defer, levers.joins) == (0.08, True, True)
    assert after(msgspec.structs.replace(loaded, headroom=0.95)).joins
    idle = msgspec.structs.replace(loaded, demand_per_s=1.0)
    assert after(loaded, idle).longest_wait_s is None


@pytest.mark.parametrize("obeys", [True, False])
def test_the_advice_finds_what_the_worker_bears_if_it_is_obeyed(obeys: bool) -> None:
    levers, sent = NONE, []
    for _ in range(200):
        demand = 40.0 * (levers.sampling_ratio if obeys else 1.0)
        sent.append(demand)
        levers = next_levers(levers, Strain(demand_per_s=demand, capacity_per_s=10.0), 1.0)
    if obeys:
        assert max(sent[50:]) <= 10.0 * 1.2
        assert min(sent[50:]) >= 10.0 * 0.7
    else:
        assert levers.sampling_ratio == LEAST_RATIO


def test_what_fell_at_once_rises_slowly() -> None:
    levers = after(Strain(headroom=1.0))
    assert levers.sampling_ratio == LEAST_RATIO
    cool = Strain(headroom=0.2)
    for number in range(1, 10):
        levers = next_levers(levers, cool, 1.0)
        assert levers.sampling_ratio == pytest.approx(LEAST_RATIO + number * RISE_PER_S)
    assert next_levers(levers, cool, 0.0).sampling_ratio == levers.sampling_ratio


ratios = st.floats(0.0, 2.0)
strains = st.builds(
    Strain,
    headroom=st.none() | ratios,
    hot=st.just(0.85) | st.floats(0.5, 1.5),
    cool=st.floats(0.0, 0.5),
    throttled=st.none() | st.booleans(),
    clock_ratio=st.none() | st.floats(0.0, 1.0),
    battery=st.none() | ratios | st.just(math.inf),
    contended=st.none() | st.booleans(),
    demand_per_s=st.none() | st.floats(0.0, 1e6),
    capacity_per_s=st.none() | st.floats(0.0, 1e6),
    late=st.none() | st.booleans(),
    longest_wait_s=st.none() | st.floats(0.0, 10.0),
)
periods = st.floats(0.0, 60.0)
befores = st.lists(strains, max_size=3).map(lambda some: after(*some))


def gives_no_more(worse: Levers, better: Levers) -> bool:
    return worse.sampling_ratio <= better.sampling_ratio and worse.defer >= better.defer


@given(befores, strains, periods, st.floats(0.0, 2.0), st.floats(0.0, 2.0))
def test_more_heat_never_gives_more(
    before: Levers, strain: Strain, period_s: float, one: float, other: float
) -> None:
    cooler, hotter = (
        next_levers(before, msgspec.structs.replace(strain, headroom=h), period_s)
        for h in sorted((one, other))
    )
    assert gives_no_more(hotter, cooler)
    assert hotter.joins <= cooler.joins


@given(befores, strains, periods, st.floats(0.0, 3.0), st.floats(0.0, 3.0))
def test_less_battery_never_gives_more(
    before: Levers, strain: Strain, period_s: float, one: float, other: float
) -> None:
    low, full = (
        next_levers(before, msgspec.structs.replace(strain, battery=b), period_s)
        for b in sorted((one, other))
    )
    assert gives_no_more(low, full)


@given(befores, strains, periods, st.floats(0.0, 1e4), st.floats(0.0, 1e4), st.floats(0.1, 1e4))
def test_more_requests_never_give_more(
    before: Levers, strain: Strain, period_s: float, one: float, other: float, capacity: float
) -> None:
    calm, loaded = (
        next_levers(
            before,
            msgspec.structs.replace(strain, demand_per_s=d, capacity_per_s=capacity),
            period_s,
        )
        for d in sorted((one, other))
    )
    assert gives_no_more(loaded, calm)


@pytest.mark.parametrize(
    ("cause", "unknown"),
    [
        ("heat", {"headroom": None, "throttled": None}),
        ("battery", {"battery": None}),
        ("contention", {"contended": None}),
        ("load", {"demand_per_s": None, "capacity_per_s": None, "late": None}),
    ],
)
@given(before=befores, strain=strains, period_s=periods)
def test_an_unknown_reading_ends_no_strain_and_begins_none(
    cause: Any, unknown: dict[str, Any], before: Levers, strain: Strain, period_s: float
) -> None:
    levers = next_levers(before, msgspec.structs.replace(strain, **unknown), period_s)
    assert (cause in levers.causes) is (cause in before.causes)
    if cause in before.causes and cause != "contention":
        assert levers.sampling_ratio <= before.sampling_ratio


@given(befores, strains, periods)
def test_levers_are_within_bounds_and_explained(
    before: Levers, strain: Strain, period_s: float
) -> None:
    levers = next_levers(before, strain, period_s)
    assert LEAST_RATIO <= levers.sampling_ratio <= 1.0
    assert levers.sampling_ratio <= before.sampling_ratio + RISE_PER_S * period_s + 1e-9
    assert levers.defer is bool(levers.causes)
    if levers.causes:
        assert len(levers.reasons) == len(levers.causes)
    else:
        assert bool(levers.reasons) is (levers.sampling_ratio < 1.0)
    assert next_levers(before, strain, period_s) == levers
