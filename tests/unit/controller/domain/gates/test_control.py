"""Who keeps the old release follows from the order of starting alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.domain.gates.control import comparable, control_group, held_out
from controller.domain.gates.states import LEAST_DEVICES
from controller.domain.starting_order import PLACES, group_of, tail_after


@given(st.integers(min_value=10, max_value=200), st.floats(min_value=1.0, max_value=50.0))
def test_each_profile_has_its_part_and_at_most_half_are_held_out(
    devices: int, percent: float
) -> None:
    places = {f"d{number}": number * 7919 % 1009 for number in range(devices)}
    profiles = {name: f"p{int(name[1:]) % 3}" for name in places}
    control = control_group(places, profiles, percent)
    assert LEAST_DEVICES <= len(control) <= devices // 2
    shares = {
        each: sum(profiles[name] == each for name in control) for each in set(profiles.values())
    }
    assert max(shares.values()) - min(shares.values()) <= LEAST_DEVICES
    for profile in shares:
        members = [name for name in places if profiles[name] == profile]
        held = [name for name in members if name in control]
        last = sorted(members, key=lambda name: (places[name], name))[len(members) - len(held) :]
        assert sorted(held) == sorted(last)


def test_without_a_share_nobody_is_held_out() -> None:
    assert control_group({"a": 1}, {}, 0.0) == frozenset()


def test_a_device_that_nobody_can_be_compared_with_fills_no_control_group() -> None:
    """Ten cameras and a server: the control group is five cameras, wherever the server stands."""
    for at in range(11):
        places = {f"d{number:02}": number for number in range(11)}
        profiles = {name: "server" if place == at else "camera" for name, place in places.items()}
        control = control_group(places, profiles, 30.0)
        assert [profiles[name] for name in control] == ["camera"] * 5
        assert comparable([11], places, profiles, control) == [(5, 5)]


def test_both_sides_of_each_stage_are_counted() -> None:
    places = {f"d{number:02}": number for number in range(20)}
    profiles = {name: "server" if place % 4 == 0 else "camera" for name, place in places.items()}
    control = [name for name, place in places.items() if place >= 14]
    # Servers: 0, 4, 8 and 12 begin, 16 is in the control group.
    found = comparable([3, 12, 14], places, profiles, control)
    assert found == [(0, 0), (9, 6), (10, 5)]


@pytest.mark.parametrize("running", [0, 10, 25])
def test_who_runs_the_release_already_is_held_out_by_nobody_and_compared_with_nobody(
    running: int,
) -> None:
    places = {f"d{number:02}": number * 7919 % 1009 for number in range(30)}
    profiles = dict.fromkeys(places, "camera")
    runs_it = {*list(places)[:running]}
    control, kinds = held_out(places, profiles, 30.0, running=runs_it)
    assert not control & runs_it
    assert len(control) == {0: 9, 10: 6, 25: 2}[running]
    target = [30 - len(control)]
    ((new, old),) = comparable(target, places, kinds, control)
    assert new + old == {0: 30, 10: 20, 25: 0}[running], "of five too few are on each side"


def test_what_is_added_together_is_a_group() -> None:
    """The last group has all that is added after it; places fit a database's numbers."""
    first = tail_after(5)
    places, groups = first, [group_of(first)]
    for _ in range(40):
        places = tail_after(places + PLACES - 1)
        groups.append(group_of(places))
    assert groups == [min(101 + at, 127) for at in range(41)]
    assert places + PLACES - 1 < 2**31
    assert tail_after(None) == first
