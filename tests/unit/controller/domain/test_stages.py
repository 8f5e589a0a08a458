"""Stages as a rollout has them: who starts in which, in what order, and how fast."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from controller.domain.gates.control import held_out
from controller.domain.rollout_plan import PlannedDevice, plan
from controller.domain.rollout_view import StageSpec
from controller.domain.stage_progress import stage_size
from controller.domain.stages import Growth, grown, reach, resolved
from controller.domain.start_rate import LULL_S, Bucket, StartRate, starting_s
from controller.domain.starting_order import (
    PLACES,
    StartingOrder,
    group_of,
    places,
    position,
)

ALL = StageSpec(percent=100.0)
sizes = st.one_of(
    st.builds(StageSpec, count=st.integers(1, 40)),
    st.builds(StageSpec, percent=st.floats(1, 100)),
    st.just(StageSpec(count=0, selector="chosen")),
)


def names(count: int) -> list[str]:
    return [f"cam-{number:03}" for number in range(count)]


@given(st.data(), st.lists(sizes, max_size=5), st.integers(1, 60), st.booleans())
def test_each_device_is_in_one_stage_and_chosen_ones_are_in_theirs_at_the_latest(
    data: st.DataObject, asked: list[StageSpec], count: int, has_gates: bool
) -> None:
    last = sum(bool(stage.selector) for stage in asked)
    drawn = data.draw(st.lists(st.integers(0, last), min_size=count, max_size=count))
    groups = dict(zip(names(count), drawn, strict=True))
    placed = places(StartingOrder(groups=groups, last=last), "r1", names(count))
    assert {device: group_of(place) for device, place in placed.items()} == groups
    offline = data.draw(st.sets(st.sampled_from(names(count))))
    devices = [
        PlannedDevice(id=name, profile="pi4", place=placed[name], is_online=name not in offline)
        for name in names(count)
    ]
    made = plan(devices, [*asked, ALL], has_gates=has_gates, control_percent=10)
    began = {d.id: stage.number for stage in made.stages for d in stage.devices}
    held = {device.id for device in made.control}
    assert sorted([*began, *held]) == names(count)
    assert len(began) == sum(len(stage.devices) for stage in made.stages)
    chooses = [n for n, stage in enumerate(asked, start=1) if stage.selector]
    for device, number in began.items():
        group = groups[device]
        if group < last:
            assert number <= chooses[group], "it comes in its stage at the latest"
        before = chooses[group - 1] if group else 0
        assert number > before or group == 0, "and not while a stage chooses others"


def placed(groups: Sequence[int]) -> dict[str, int]:
    """Return devices of these groups with their places."""
    return {f"d{at:03}": group * PLACES + at for at, group in enumerate(groups)}


def test_a_stage_that_chooses_has_the_number_of_its_devices_in_all() -> None:
    asked = (StageSpec(count=1), StageSpec(selector="a"), StageSpec(selector="b"), ALL)
    stages = resolved(asked, placed([0, 0, 0, 0, 1, 2, 2]), {}, ["d000"])
    assert [stage.count for stage in stages] == [1, 3, 4, None]
    assert [reach(asked, number) for number in (1, 2, 3, 4)] == [PLACES, PLACES, 2 * PLACES, None]
    assert resolved((ALL,), placed([0]), {}, []) == (ALL,)


def test_a_stage_waits_for_gates_if_it_reaches_enough_devices_that_can_be_compared() -> None:
    asked = (StageSpec(selector="few"), StageSpec(selector="lab"), StageSpec(count=20), ALL)
    fleet = placed([*[0] * 8, *[1] * 12, *[2] * 80])
    held = [*list(fleet)[15:20], *list(fleet)[92:]]
    stages = resolved(asked, fleet, {}, held)
    assert [stage.count for stage in stages[:2]] == [8, 15]
    assert [stage.asks_gates for stage in stages] == [False, True, True, True]
    fleet = placed([*[0] * 8, *[2] * 92])
    lone = resolved((asked[0], StageSpec(count=10), ALL), fleet, {}, list(fleet)[90:])
    assert [stage.asks_gates for stage in lone] == [False, False, True]


def test_a_device_that_is_alone_of_its_profile_is_not_compared() -> None:
    fleet = placed([0] * 12)
    alone = {one: "box" if one == "d000" else "pi" for one in fleet}
    asked = (StageSpec(count=5), StageSpec(count=6), ALL)
    held = list(fleet)[7:]
    first, second, last = resolved(asked, fleet, alone, held)
    assert (first.asks_gates, second.asks_gates, last.asks_gates) == (False, True, True)
    all_alike = resolved(asked, fleet, dict.fromkeys(fleet, "pi"), held)
    assert all_alike[0].asks_gates


@given(
    st.one_of(
        st.builds(StageSpec, count=st.integers(1, 500)),
        st.builds(StageSpec, percent=st.floats(0.1, 100)),
    ),
    st.floats(1.1, 1000),
    st.integers(1, 100_000),
)
def test_growth_ends_with_all_devices_and_never_shrinks(
    first: StageSpec, factor: float, devices: int
) -> None:
    made = grown([first], Growth(factor=factor, soak_s=9.0), devices, 1000)
    assert made[0] == first
    assert made[-1].percent == 100.0
    assert all(stage.soak_s == 9.0 for stage in made[1:])
    reached = [min(stage_size(stage, devices), devices) for stage in made]
    assert reached == sorted(reached)


def test_growth_multiplies_numbers_and_shares() -> None:
    three = Growth(factor=3.0)
    assert [s.count for s in grown([StageSpec(count=1)], three, 50, 100)] == [1, 3, 9, 27, None]
    assert [s.percent for s in grown([StageSpec(percent=5.0)], three, 50, 100)] == [5, 15, 45, 100]
    assert len(grown([StageSpec(count=1)], Growth(factor=1.1), 10**6, 100)) == 101


@given(st.lists(st.sampled_from("abc"), min_size=1, max_size=200), st.integers(1, 10))
def test_each_part_of_a_spread_order_has_of_each_value_its_share(
    labels: list[str], tenths: int
) -> None:
    values = dict(zip(names(len(labels)), labels, strict=True))
    placed = places(StartingOrder(values=values), "r1", list(values))
    early = [device for device, place in placed.items() if place < PLACES * tenths // 10]
    for value, count in Counter(labels).items():
        mine = sum(values[device] == value for device in early)
        assert abs(mine - count * tenths / 10) <= 1.0
    assert all(0 <= place < PLACES for place in placed.values())


def test_a_plain_order_is_the_shuffle_that_it_always_was() -> None:
    assert places(StartingOrder(), "r1", ["a"]) == {"a": position("r1", "a")}


def test_each_group_of_enough_devices_has_a_control_group_of_its_own() -> None:
    groups = dict.fromkeys(names(50), 2) | dict.fromkeys(names(14), 1) | dict.fromkeys(names(4), 0)
    placed = places(StartingOrder(groups=groups, last=2), "r1", names(50))
    held, _ = held_out(placed, dict.fromkeys(placed, "pi4"), 10.0, running=())
    assert Counter(groups[device] for device in held) == {1: 5, 2: 5}


rates = st.builds(
    StartRate,
    per_minute=st.floats(0.1, 10_000),
    factor=st.just(1.0) | st.floats(1.1, 10),
    after=st.integers(1, 500),
    max_per_minute=st.floats(0.1, 100_000),
)


@given(rates, st.integers(0, 10**7), st.integers(0, 10**7))
def test_a_rate_grows_with_successes_up_to_its_maximum(
    rate: StartRate, few: int, more: int
) -> None:
    few, more = sorted((few, more))
    most = max(rate.per_minute, rate.max_per_minute)
    assert rate.per_minute <= rate.at(few) <= rate.at(more) <= most


def test_a_rate_doubles_after_each_ten() -> None:
    rate = StartRate(per_minute=10.0, factor=2.0, after=10, max_per_minute=50.0)
    assert [rate.at(n) for n in (0, 9, 10, 20, 29, 30, 10**9)] == [10, 10, 20, 40, 40, 50, 50]


@given(rates, st.lists(st.floats(0, 300), min_size=1, max_size=50))
def test_no_more_devices_start_than_the_rate_says(rate: StartRate, waits_s: list[float]) -> None:
    bucket, started = Bucket(), 0
    for wait_s in waits_s:
        bucket = bucket.filled(rate.per_minute, bucket.at_s + wait_s)
        now = int(bucket.room)
        bucket, started = Bucket(room=bucket.room - now, at_s=bucket.at_s), started + now
    per_s = rate.per_minute / 60.0
    assert started <= sum(waits_s) * per_s + max(1.0, LULL_S * per_s) + 1e-6


def test_how_long_starting_takes_follows_the_growing_rate() -> None:
    assert starting_s(StartRate(per_minute=10.0), 0, 30) == 180.0
    rate = StartRate(per_minute=10.0, factor=2.0, after=10, max_per_minute=20.0)
    assert starting_s(rate, 0, 30) == 60.0 + 60.0
    assert starting_s(rate, 5, 5) == 30.0
    assert starting_s(rate, 100, 0) == 0.0
