"""The turns of devices that do not begin come evenly while others begin."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from controller.domain.gates.turns import (
    MOMENTS,
    REFILLS,
    is_refilled,
    moment,
    passed,
    substitutes,
)
from controller.domain.starting_order import PLACES


@given(st.integers(0, 102 * PLACES))
def test_each_device_has_its_turn_before_a_stage_is_full(place: int) -> None:
    assert 0 <= moment(place) < passed(7, 7)


@given(st.integers(0, 500), st.integers(0, 500))
def test_turns_come_with_the_devices_that_begin(begun: int, size: int) -> None:
    over = passed(begun, size)
    assert 0 <= over <= MOMENTS == passed(size, size)
    if begun < size:
        assert over / MOMENTS <= begun / size < (over + 1) / MOMENTS


@given(st.integers(1, 3000))
def test_the_control_group_is_filled_up_at_the_end_of_a_stage_and_seldom_before(size: int) -> None:
    over = [passed(begun, size) for begun in range(size + 1)]
    times = [is_refilled(*each) for each in pairwise(over)]
    assert times[-1]
    assert sum(times) == min(REFILLS, size)


STRATA = st.sampled_from("abc")


@given(st.dictionaries(st.integers(0, 20), STRATA), st.dictionaries(st.integers(30, 50), STRATA))
def test_places_in_the_control_group_go_to_the_first_free_of_the_stratum(
    lost: dict[int, str], free: dict[int, str]
) -> None:
    found = substitutes(lost, free)
    for of in "abc":
        wanted = [device for device, stratum in lost.items() if stratum == of]
        there = [device for device, stratum in free.items() if stratum == of]
        assert [found.get(device) for device in wanted] == [
            *there[: len(wanted)], *[None] * (len(wanted) - len(there))
        ]  # fmt: skip
    assert found.keys() <= lost.keys()
